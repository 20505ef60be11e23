//! A worker that runs a row after it yielded it gets its result refused: only the result of the new holder counts.
//!
//! An honest worker drops a row at once when it yields it, so the test plays the victim itself.

use anyhow::{Context, Result, ensure};
use rollout_proto::{ErrorCode, v1};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, PlayedWorker, WorkerOptions};
use std::time::{Duration, Instant};
use v1::leader_message::Kind as Down;

const PATIENCE: Duration = Duration::from_secs(60);
const ROWS: u64 = 8;
/// Rows that the victim says it has started; half of the others are stolen.
const STARTED: u64 = 2;

fn held(grant: &v1::Grant, start: u64, len: u64) -> v1::HeldRows {
    let rows = Some(v1::Rows { starts: vec![start], lens: vec![len as u32] });
    v1::HeldRows { run: grant.run, attempt: grant.attempt, rows }
}

/// A part with these rows that is in no store: if it were accepted, the run's results would be unreadable.
fn part(held: &v1::HeldRows) -> v1::PartResult {
    let part = v1::BlobRef { digest: vec![7; 32].into(), bytes: 100, ..Default::default() };
    v1::PartResult {
        run: held.run,
        part: Some(part),
        sets: vec![held.clone()],
        tokens_in: 1,
        tokens_out: 1,
    }
}

fn failure(held: &v1::HeldRows) -> v1::FailedAttempt {
    v1::FailedAttempt {
        run: held.run,
        attempt: held.attempt,
        rows: held.rows.clone(),
        class: v1::FailureClass::InvalidRow.into(),
        code: "late".into(),
        message: "it was not mine any more".into(),
        evidence: None,
    }
}

/// Checks that all of these rows are refused because the attempt is not their last.
fn check_refused(answer: &v1::ExchangeAnswer, held: &v1::HeldRows) -> Result<()> {
    let rows = |rows: &Option<v1::Rows>| -> Vec<u64> {
        let ranges = rows.iter().flat_map(|r| r.starts.iter().zip(&r.lens));
        ranges.flat_map(|(start, len)| *start..start + u64::from(*len)).collect()
    };
    let refused: Vec<u64> = answer.refused.iter().flat_map(|r| rows(&r.rows)).collect();
    ensure!(refused == rows(&held.rows), "{answer:?}");
    let stale = ErrorCode::AttemptStale.code();
    ensure!(answer.refused.iter().all(|r| r.code == stale), "{answer:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_victims_late_result_of_a_stolen_row_is_refused_and_that_of_the_idle_slot_is_accepted()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let mut batch = Batch::submit(&fleet, "late", ROWS, "")?;
    batch.until(&fleet, "all rows are pending", |c| c.pending == ROWS);
    let mut victim = PlayedWorker::come(&fleet, "victim").await?;
    let pull = v1::Exchange { credit_rows: ROWS as u32, ..Default::default() };
    let answer = victim.exchange(pull).await?;
    let [grant] = &answer.grants[..] else { anyhow::bail!("{answer:?}") };
    let queued = (ROWS - STARTED) as u32;
    let running = STARTED as u32;
    victim.heartbeat.slots = vec![v1::SlotLoad { slot: 0, queued, running, concurrency: 2 }];
    victim.heartbeat.started = vec![held(grant, 0, STARTED)];

    // The idle worker is slow, so that the first late result comes while it runs the stolen rows.
    let side = fleet.path("idle.side");
    let engine = format!(
        "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 3000\nlatency_ms_max = 3000\n\
         side_file = {side:?}\n"
    );
    fleet.start_worker("idle", &WorkerOptions { engine, ..Default::default() })?;
    let asked = victim.until("to give up rows", |kind| match kind {
        Down::Yield(asked) => Some(asked),
        _ => None,
    });
    let asked = asked.await?;
    ensure!(asked.rows_max == queued.div_ceil(2), "half of what is not started: {asked:?}");
    let count = u64::from(asked.rows_max);
    let first = ROWS - count;
    let stolen = held(grant, first, count);
    victim.heartbeat.slots[0].queued = 0;
    let given =
        v1::Exchange { r#yield: asked.id, yielded: vec![stolen.clone()], ..Default::default() };
    let answer = victim.exchange(given).await?;
    ensure!(answer.refused.is_empty(), "{answer:?}");

    // The victim reports results for the stolen rows anyway: while the other worker runs them, and after they are
    // done.
    let late = v1::Exchange { parts: vec![part(&stolen)], ..Default::default() };
    check_refused(&victim.exchange(late.clone()).await?, &stolen)?;
    let failed = v1::Exchange { failures: vec![failure(&stolen)], ..Default::default() };
    check_refused(&victim.exchange(failed.clone()).await?, &stolen)?;
    let begun = Instant::now();
    while batch.counts(&fleet).is_none_or(|c| c.done < count) {
        ensure!(begun.elapsed() < PATIENCE, "the idle worker does not finish{}", fleet.logs());
        victim
            .until("that it is heard", |kind| matches!(kind, Down::Heartbeat(_)).then_some(()))
            .await?;
    }
    let before = batch.counts(&fleet).context("counts")?;
    for late in [late, failed] {
        check_refused(&victim.exchange(late).await?, &stolen)?;
    }
    ensure!(batch.counts(&fleet).context("counts")? == before, "{before:?} was changed");
    ensure!((before.done, before.failed) == (count, 0), "{before:?}");

    // Rows that it never yielded are still its own: it returns them, and the run ends.
    let rest = held(grant, 0, first);
    let answer = victim.exchange(v1::Exchange { nacks: vec![rest], ..Default::default() }).await?;
    ensure!(answer.refused.is_empty(), "{answer:?}");
    drop(victim);
    batch.finish(&fleet)?;
    let executions = Executions::read(&[side])?;
    ensure!(
        executions.started == ROWS && executions.attempts.len() as u64 == ROWS,
        "{executions:?}"
    );
    let run = fleet.ctl_json(&["run", "describe", "late"])?;
    let stolen = run["run"]["counts"]["stolen"].as_str();
    ensure!(stolen == Some(count.to_string().as_str()), "{run}");
    fleet.verify()?;
    fleet.passed()
}
