//! Results cost few requests to the store: the slots of a worker write one object per run together, which closes by
//! size or age. The end of a run does not wait for that age.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, S3, WorkerOptions};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// The default `part.linger_ms`; other tests shorten it.
const DEFAULT_AGE_MS: u64 = 10_000;

/// A worker's slots and concurrency, the duration of each row, and the number of rows.
#[derive(Clone, Copy)]
struct Load {
    slots: u64,
    concurrency: u64,
    row_ms: u64,
    rows: u64,
    /// The age that closes a part, if not the default.
    age_ms: Option<u64>,
}

/// The results of a run with one worker.
struct RunFigures {
    /// From the creation of the run to the end of its last row.
    took: Duration,
    /// From the end of its last row to the end of the run.
    ended_after: Duration,
    /// The worker's requests to the store.
    requests: BTreeMap<String, u64>,
}

impl RunFigures {
    fn parts(&self) -> u64 {
        self.requests.get("PUT parts").copied().unwrap_or_default()
    }
}

fn run(load: Load) -> Result<RunFigures> {
    let s3 = S3::start()?;
    let mut fleet = Fleet::start(FleetOptions { s3: Some(s3.clone()), ..FleetOptions::default() })?;
    let side = fleet.path("w1.side");
    let Load { slots, concurrency, row_ms, rows, age_ms } = load;
    let engine = format!(
        "kind = \"mock\"\nslots = {slots}\nconcurrency = {concurrency}\nlatency_ms_min = {row_ms}\n\
         latency_ms_max = {row_ms}\nside_file = {side:?}\n"
    );
    let head = format!("[part]\nlinger_ms = {}\n", age_ms.unwrap_or(DEFAULT_AGE_MS));
    fleet.start_worker("w1", &WorkerOptions { engine, head })?;
    let mut batch = Batch::submit(&fleet, "run", rows, "")?;
    batch.finish(&fleet)?;
    // The mock appends a line when a row ends, so the file's last change is the end of the last row.
    let last = side.metadata()?.modified()?.duration_since(UNIX_EPOCH)?;
    let described = fleet.ctl_json(&["run", "describe", "run"])?;
    let wall = |key: &str| -> Result<Duration> {
        let text =
            described["run"][key].as_str().with_context(|| format!("no {key}: {described}"))?;
        let at = OffsetDateTime::parse(text, &Rfc3339)?;
        Ok(Duration::try_from(at - OffsetDateTime::UNIX_EPOCH)?)
    };
    let took = last.saturating_sub(wall("createdAt")?);
    let ended_after = wall("finishedAt")?.saturating_sub(last);
    let requests = s3.requests_of("w1");
    fleet.verify()?;
    fleet.passed()?;
    Ok(RunFigures { took, ended_after, requests })
}

#[test]
fn all_slots_of_a_worker_make_one_part_in_each_age() -> Result<()> {
    // A tenth of the real times: rows of 10 s and parts of 10 s.
    let age = Duration::from_secs(1);
    let seen = run(Load { slots: 8, concurrency: 1, row_ms: 1000, rows: 96, age_ms: Some(1000) })?;
    let (parts, took) = (seen.parts(), seen.took);
    // One part per age, the one open at the end, and those of the last rows, whose slots get no more.
    let most = took.as_millis() as u64 / age.as_millis() as u64 + 3;
    ensure!(parts <= most, "{parts} parts of 96 rows in {took:?}, {most} would do");
    // Separate slots would make one part per row.
    ensure!(parts < 96 / 3, "{parts} parts");
    Ok(())
}

#[test]
fn a_run_ends_with_its_last_row_and_not_with_the_age_of_a_part() -> Result<()> {
    // 10 s by default.
    let seen = run(Load { slots: 8, concurrency: 1, row_ms: 200, rows: 64, age_ms: None })?;
    ensure!(seen.parts() <= 3, "{:?}", seen.requests);
    // 100 ms, the upload and a commit, on a machine that is busy with other things.
    ensure!(seen.ended_after < Duration::from_secs(4), "it ended {:?} after", seen.ended_after);
    Ok(())
}

/// For docs/figures/workers.md: the cost of a million rows.
#[test]
#[ignore = "prints figures: two and a half minutes"]
fn requests_of_a_million_rows() -> Result<()> {
    // Run each long enough that the last part is one of several.
    for (row_ms, seconds) in [(200, 30), (1000, 40), (10_000, 60)] {
        let (slots, concurrency) = (8, 8);
        let rows = slots * concurrency * seconds * 1000 / row_ms;
        let seen = run(Load { slots, concurrency, row_ms, rows, age_ms: None })?;
        let million = |count: u64| count * 1_000_000 / rows;
        let by_kind: BTreeMap<&String, u64> =
            seen.requests.iter().map(|(what, count)| (what, million(*count))).collect();
        let line = json!({
            "rowSeconds": row_ms as f64 / 1000.0,
            "slots": slots,
            "rowsAtOncePerSlot": concurrency,
            "rows": rows,
            "seconds": seen.took.as_secs_f64(),
            "requests": seen.requests,
            "putPartsPerSecond": seen.parts() as f64 / seen.took.as_secs_f64(),
            "requestsPerMillionRowsExtrapolated": by_kind,
            "runEndedAfterMs": seen.ended_after.as_millis() as u64,
        });
        println!("{line}");
    }
    Ok(())
}
