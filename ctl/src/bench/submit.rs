//! `rolloutctl bench submit`: from a JSONL file to durable segments that the ledger knows.
//!
//! Invariant: it runs the code of `rollout infer batch`: each row is parsed, its ID hashed, its segment made durable,
//! then declared. The clock runs from opening the file to the answer that the input is closed.
//! Absent: workers.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rollout_batch::input::files;
use rollout_batch::input::scan::{ScanControl, ScanOptions};
use rollout_batch::submission::{config::BatchConfig, spec, submit, upload};
use rollout_proto::v1;
use rollout_storage::BlobStore;
use serde::Serialize;

use super::load::NAMESPACE;
use super::measurements::{self, MemberFigures};
use super::target::{Target, TargetArgs};
use crate::output::{self, Report, count, u64_string};
use crate::rolloutctl::cluster::verify;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::print_note;

const VERIFY_PATIENCE: Duration = Duration::from_secs(120);

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct SubmitArgs {
    /// Rows of the input
    #[arg(long, value_name = "N", default_value_t = 2_000_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rows: u64,
    /// Bytes of a row, its line feed included
    #[arg(long, value_name = "BYTES", default_value_t = 200, value_parser = clap::value_parser!(u32).range(64..=65_536))]
    row_bytes: u32,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SubmitFigures {
    #[serde(serialize_with = "u64_string")]
    rows: u64,
    row_bytes: u32,
    seconds: f64,
    rows_per_second: f64,
    upload_seconds: f64,
    declare_seconds: f64,
    segments: usize,
    cpu_us_per_row: f64,
    members: Vec<MemberFigures>,
    digests_equal: bool,
}

impl Report for SubmitFigures {
    const KIND: &'static str = "BenchSubmit";

    fn table(&self) -> String {
        format!("{} rows/s\n", count(self.rows_per_second as u64))
    }
}

impl Verb for SubmitArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let target = Target::open(&globals.connect, &self.target).await?;
        let input = tempfile::Builder::new()
            .prefix("submit-")
            .tempdir_in(target.layout().root())
            .context("cannot write the input")?;
        print_note(format_args!("writing {} rows of {} bytes", count(self.rows), self.row_bytes));
        write_input(&input.path().join("prompts.jsonl"), self.rows, self.row_bytes)?;
        let config = config(input.path())?;
        let session = target.admin().open_session("rolloutctl bench").await?;
        let store = BlobStore::open(session.store_url())?;
        let run = format!("bench-submit-{:016x}", rand::random::<u64>());
        let folder = submit::draw_folder(target.admin(), &run);
        let (namespace, to) = (NAMESPACE.into(), folder.clone());
        let destination = upload::Destination { store, namespace, folder: to };
        let counters = measurements::counters(target.admin()).await;

        let (start, cpu_us) = (Instant::now(), measurements::own_cpu_us());
        let spec = spec::run_spec(&config)?;
        let found = files::find(&config.input.glob.list(), input.path()).await?;
        let control = Arc::new(ScanControl::default());
        let options = ScanOptions::default();
        let uploaded = upload::upload(
            found,
            spec::rules(&spec)?,
            options,
            control.clone(),
            &destination,
            |_| {},
        )
        .await?;
        let upload_seconds = start.elapsed().as_secs_f64();
        let created = submit::create(&session, NAMESPACE, &run, spec, &folder).await?;
        submit::declare(&session, created.run, &run, &uploaded, Vec::new()).await?;
        submit::close(&session, created.run, &run, &uploaded).await?;
        let seconds = start.elapsed().as_secs_f64();
        let cpu_us = measurements::own_cpu_us() - cpu_us;

        let after = measurements::counters(target.admin()).await;
        let described = submit::describe(target.admin(), NAMESPACE, &run).await?;
        let declared =
            described.run.and_then(|run| run.counts).map_or(0, |counts: v1::RunCounts| counts.rows);
        ensure!(declared == self.rows, "the ledger knows {declared} rows of {}", self.rows);
        ensure!(control.rows.load(Ordering::Relaxed) == self.rows, "not every row was read");
        let verification = verify::verify(target.admin(), VERIFY_PATIENCE).await?;
        ensure!(verification.agree, "the members do not agree: {}", verification.complaint());
        output::emit_next(
            globals.format,
            &SubmitFigures {
                rows: self.rows,
                row_bytes: self.row_bytes,
                seconds,
                rows_per_second: (self.rows as f64 / seconds).round(),
                upload_seconds,
                declare_seconds: seconds - upload_seconds,
                segments: uploaded.segments.len(),
                cpu_us_per_row: cpu_us as f64 / self.rows as f64,
                members: measurements::differences(&counters, &after, self.rows, seconds),
                digests_equal: verification.agree,
            },
        )?;
        submit::cancel(&session, NAMESPACE, &run, "the benchmark is over").await?;
        target.close().await
    }
}

/// Writes distinct rows, each of exactly this many bytes with its line feed.
fn write_input(path: &Path, rows: u64, row_bytes: u32) -> anyhow::Result<()> {
    let mut file = std::io::BufWriter::with_capacity(
        1 << 20,
        std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?,
    );
    let mut line = Vec::with_capacity(row_bytes as usize);
    for row in 0..rows {
        line.clear();
        write!(line, "{{\"prompt\":\"{row:012} ")?;
        line.resize(row_bytes as usize - 3, b'x');
        line.extend_from_slice(b"\"}\n");
        file.write_all(&line)?;
    }
    Ok(file.flush()?)
}

fn config(dir: &Path) -> anyhow::Result<BatchConfig> {
    let text =
        "[model]\nuri = \"bench\"\n[input]\nglob = \"prompts.jsonl\"\n[output]\ndir = \"out\"\n";
    Ok(BatchConfig::parse(text, &dir.join("batch.toml"), dir)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_json_of_the_given_size_and_differ() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("prompts.jsonl");
        write_input(&path, 3, 200).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.len(), 600);
        let prompts: std::collections::BTreeSet<String> = text
            .lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
            .map(|row| row["prompt"].as_str().unwrap().to_owned())
            .collect();
        assert_eq!(prompts.len(), 3);
        config(dir.path()).unwrap();
    }

    #[test]
    fn output_matches_the_golden_file() {
        let report = SubmitFigures {
            rows: 20_000,
            row_bytes: 100,
            seconds: 0.5,
            rows_per_second: 40_000.0,
            upload_seconds: 0.25,
            declare_seconds: 0.125,
            segments: 5,
            cpu_us_per_row: 1.5,
            members: vec![measurements::sample()],
            digests_equal: true,
        };
        crate::golden::report("bench-submit.txt", &report);
    }
}
