//! The source of the rows makes no difference: compressed, in a table, in an object store.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Fleet, FleetOptions, S3, output};
use serde_json::{Value, json};

use super::setup::{Engine, LOADING, reference, rows, tiny_model};

const ROWS: usize = 40;

/// Runs a batch file to its end; returns its output directory.
fn run(fleet: &Fleet, name: &str, input: &str, format: &str) -> Result<PathBuf> {
    let out = fleet.path(&format!("{name}-out"));
    let config = fleet.path(&format!("{name}.batch.toml"));
    let text = format!(
        "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nmax_tokens = 12\n\
         [input]\n{input}\n[output]\ndir = {out:?}\nformat = {format:?}\n"
    );
    std::fs::write(&config, text)?;
    let config = config.to_string_lossy().into_owned();
    let args = ["infer", "batch", "--config", &config, "--name", name, "--timeout", "90s"];
    let limit = LOADING + Duration::from_secs(60);
    let ended = output(fleet.rollout(&args), limit)?;
    ensure!(ended.status.success(), "{}{}", String::from_utf8_lossy(&ended.stderr), fleet.logs());
    Ok(out)
}

fn lines(out: &std::path::Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(out.join("completions.jsonl"))?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

#[test]
fn rows_of_every_source_are_completed_as_vllm_completes_them() -> Result<()> {
    let s3 = S3::start()?;
    let mut fleet = Fleet::start(FleetOptions { s3: Some(s3.clone()), ..FleetOptions::default() })?;
    let model = tiny_model(&fleet)?;
    let plain = fleet.path("plain.jsonl");
    std::fs::write(&plain, rows(ROWS as u64))?;
    let options = json!({ "sampling": {"temperature": 0, "max_tokens": 12} });
    let expected = reference("generate", &model, &plain, &options)?;
    ensure!(expected.len() == ROWS, "the reference has {} rows", expected.len());
    fleet.start_worker("w1", &Engine::new(&model, 8).worker(""))?;
    let same = |got: &[Value], field: &str| {
        ensure!(got.len() == ROWS, "{} rows", got.len());
        for (row, (got, expected)) in got.iter().zip(&expected).enumerate() {
            ensure!(got[field] == expected["texts"][0], "row {row}: {got} for {expected}");
        }
        Ok(())
    };

    // A compressed file in, a table out.
    let packed = fleet.path("packed.jsonl.zst");
    let mut encoder = zstd::Encoder::new(std::fs::File::create(&packed)?, 3)?;
    encoder.write_all(rows(ROWS as u64).as_bytes())?;
    encoder.finish()?;
    let out = run(&fleet, "packed", &format!("glob = {packed:?}"), "parquet")?;
    let table = out.join("completions.parquet");
    ensure!(std::fs::read(&table)?.starts_with(b"PAR1"), "no table");

    // That table in: its columns besides the prompt come back. Parameters are plain text in a table and are not
    // parsed.
    let input = format!("glob = {table:?}\ncolumns = {{ sampling_params = \"\" }}");
    let got = lines(&run(&fleet, "table", &input, "jsonl")?)?;
    same(&got, "completion")?;
    same(&got, "input_completion").context("what the table said of the first run")?;

    // Objects in: they are in the store of the members and workers, and nothing else is shared.
    s3.put("work/in/a.jsonl", rows(ROWS as u64).as_bytes());
    let glob = format!("glob = \"{}/in/*.jsonl\"", s3.url());
    same(&lines(&run(&fleet, "objects", &glob, "jsonl")?)?, "completion")?;
    fleet.passed()
}
