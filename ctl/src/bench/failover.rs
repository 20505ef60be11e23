//! `rolloutctl bench failover`: repeatedly measures the time from the leader's SIGKILL to the next claim.
//!
//! Invariant: the clock starts before the signal is sent and stops at the first claim that any worker receives from a
//! leader of a later epoch; the load never pauses. Before the next kill the member is back and has caught up.
//! Absent: a planned handover, which is [`handover`](super::handover).

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::Serialize;

use super::driver::{Driver, LoadArgs};
use super::final_check::{self, Settled};
use super::ledger::yardstick;
use super::target::{Target, TargetArgs};
use crate::connect::parse_duration;
use crate::output::{self, Report, u64_string};
use crate::rolloutctl::status::{self, Survey};
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::print_note;

const CLAIM_PATIENCE: Duration = Duration::from_secs(60);
const RETURN_PATIENCE: Duration = Duration::from_secs(120);
/// Minimum load between two kills: every worker has exchanged with the new leader often.
const BETWEEN: Duration = Duration::from_secs(1);

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct FailoverArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Rows that a slot asks for at a time
    #[arg(long, value_name = "B", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// Number of kills
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,
    /// Warm-up time before the first kill
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    warmup: Duration,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failover {
    number: u32,
    killed: String,
    #[serde(serialize_with = "u64_string")]
    epoch_before: u64,
    #[serde(serialize_with = "u64_string")]
    epoch_after: u64,
    seconds: f64,
    back_seconds: f64,
}

impl Report for Failover {
    const KIND: &'static str = "BenchFailover";

    fn table(&self) -> String {
        format!("{} {:.3} s\n", self.killed, self.seconds)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FailoverSummary {
    times: u32,
    workers: u32,
    batch: u32,
    median_seconds: f64,
    p90_seconds: f64,
    worst_seconds: f64,
    disk_fsyncs_per_second: f64,
    settled: Settled,
}

impl Report for FailoverSummary {
    const KIND: &'static str = "BenchFailoverSummary";

    fn table(&self) -> String {
        format!("median {:.3} s, worst {:.3} s\n", self.median_seconds, self.worst_seconds)
    }
}

impl Verb for FailoverArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Kills and measures; prints each result, and all.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let mut target = Target::open(&globals.connect, &self.target).await?;
        let disk = yardstick(&target)?;
        let mut driver = Driver::warmed_up(&target, &self.load, self.batch, self.warmup).await?;
        let mut seconds = Vec::new();
        for number in 1..=self.times {
            let failover = one(&mut target, &mut driver, number).await?;
            print_note(format_args!(
                "{number}: {} killed, next claim after {:.3} s",
                failover.killed, failover.seconds
            ));
            seconds.push(failover.seconds);
            output::emit_next(globals.format, &failover)?;
        }
        driver.stop().await?;
        print_note(format_args!("checking conservation and digests"));
        let settled = final_check::check(target.admin(), driver.load()).await?;
        seconds.sort_by(f64::total_cmp);
        output::emit_next(
            globals.format,
            &FailoverSummary {
                times: self.times,
                workers: self.load.workers,
                batch: self.batch,
                median_seconds: quantile(&seconds, 0.5),
                p90_seconds: quantile(&seconds, 0.9),
                worst_seconds: quantile(&seconds, 1.0),
                disk_fsyncs_per_second: disk.fsyncs_per_second.round(),
                settled,
            },
        )?;
        final_check::cancel_runs(driver.feed().session(), driver.load()).await?;
        target.close().await
    }
}

async fn one(target: &mut Target, driver: &mut Driver, number: u32) -> anyhow::Result<Failover> {
    let survey = survey(target, driver).await?;
    let killed = survey.leader.context("the cluster has no leader before the kill")?;
    let epoch_before = survey.coord_epoch;
    driver.load().watch(epoch_before);
    let start = Instant::now();
    target.signal_member(&killed, libc::SIGKILL)?;
    driver
        .go_on(async |load| {
            if start.elapsed() > CLAIM_PATIENCE {
                bail!("no claim within {CLAIM_PATIENCE:?} of the death of {killed}");
            }
            Ok(load.watched().is_some())
        })
        .await?;
    // The load records the moment itself, so the polling interval here does not matter.
    let (seen, epoch_after) = driver.load().watched().context("the claim was not seen")?;
    let seconds = seen.duration_since(start).as_secs_f64();
    let back = Instant::now();
    come_back(target, driver, &killed).await?;
    let back_seconds = back.elapsed().as_secs_f64();
    driver.go_on_for(BETWEEN).await?;
    Ok(Failover { number, killed, epoch_before, epoch_after, seconds, back_seconds })
}

/// A survey while the load continues.
pub(super) async fn survey(target: &Target, driver: &mut Driver) -> anyhow::Result<Survey> {
    let mut found = None;
    driver
        .go_on(async |_| {
            found = Some(status::survey(target.admin()).await);
            Ok(true)
        })
        .await?;
    found.context("no survey")
}

/// Starts the member again and waits until it has applied the log up to the leader's index at that time.
pub(super) async fn come_back(
    target: &mut Target,
    driver: &mut Driver,
    name: &str,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut revived = false;
    let mut goal = None;
    driver
        .go_on(async |_| {
            if start.elapsed() > RETURN_PATIENCE {
                bail!("{name} has not caught up within {RETURN_PATIENCE:?}");
            }
            if !revived {
                revived = target.revive_member(name)?;
                return Ok(false);
            }
            let survey = status::survey(target.admin()).await;
            let status = survey.members.iter().find(|member| member.name == name);
            let Some(status) = status.and_then(|member| member.report.as_ref()) else {
                return Ok(false);
            };
            let goal = *goal.get_or_insert(status.applied_index + status.behind);
            Ok(status.applied_index >= goal && survey.leader.is_some())
        })
        .await
}

/// The value below which this share of the sorted values lies, by nearest rank.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_nearest_rank() {
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        let expect = |share, value: f64| assert!((quantile(&twenty, share) - value).abs() < 1e-9);
        expect(0.5, 10.0);
        expect(0.9, 18.0);
        expect(1.0, 20.0);
        assert!(quantile(&[], 0.5).abs() < 1e-9);
    }

    #[test]
    fn output_matches_the_golden_file() {
        let one = Failover {
            number: 1,
            killed: "c1".into(),
            epoch_before: 3,
            epoch_after: 4,
            seconds: 0.25,
            back_seconds: 1.5,
        };
        crate::golden::report("bench-failover.txt", &one);
        let all = FailoverSummary {
            times: 1,
            workers: 2,
            batch: 32,
            median_seconds: 0.25,
            p90_seconds: 0.25,
            worst_seconds: 0.25,
            disk_fsyncs_per_second: 1_000.0,
            settled: final_check::sample(),
        };
        crate::golden::report("bench-failover-summary.txt", &all);
    }
}
