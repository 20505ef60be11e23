//! `rolloutctl bench handover`: repeatedly measures how long workers pause when a leader shuts down cleanly.
//!
//! Invariant: the load never pauses by itself, and every worker has claimed from the leader before the benchmark stops
//! it. A pause belongs to one worker, so the figures cover all workers in all handovers. Before the next handover a
//! stopped member is back and has caught up. Absent: a crash, which is [`failover`](super::failover).

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rollout_proto::{services, v1};
use serde::Serialize;

use super::driver::{Driver, LoadArgs};
use super::failover::{come_back, quantile, survey};
use super::final_check::{self, Settled};
use super::ledger::yardstick;
use super::measurements;
use super::pauses::Pauses;
use super::target::{Target, TargetArgs};
use crate::connect::parse_duration;
use crate::output::{self, Report, u64_string};
use crate::rolloutctl::status::MemberLine;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::print_note;

const CLAIM_PATIENCE: Duration = Duration::from_secs(60);
/// Minimum load between two handovers: every worker has exchanged with the new leader often.
const BETWEEN: Duration = Duration::from_secs(1);

/// How the leader is told to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum By {
    /// SIGTERM, as in a rolling restart, and a new start
    Sigterm,
    /// Leadership transfer; the old leader continues as a follower
    Transfer,
}

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct HandoverArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Rows that a slot asks for at a time
    #[arg(long, value_name = "B", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    /// How leadership moves
    #[arg(long, value_enum, value_name = "HOW", default_value_t = By::Sigterm)]
    by: By,
    /// Number of handovers
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    times: u32,
    /// Warm-up time before the first handover
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    warmup: Duration,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Handover {
    number: u32,
    by: By,
    from: String,
    #[serde(serialize_with = "u64_string")]
    epoch_before: u64,
    #[serde(serialize_with = "u64_string")]
    epoch_after: u64,
    /// Of the workers' pauses.
    median_seconds: f64,
    worst_seconds: f64,
    /// From the order until every worker has claimed from the new leader.
    all_seconds: f64,
    #[serde(skip)]
    pauses: Vec<f64>,
}

impl Report for Handover {
    const KIND: &'static str = "BenchHandover";

    fn table(&self) -> String {
        format!(
            "{} median {:.3} s, worst {:.3} s\n",
            self.from, self.median_seconds, self.worst_seconds
        )
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct HandoverSummary {
    times: u32,
    by: By,
    workers: u32,
    batch: u32,
    /// One for each worker in each handover.
    pauses: usize,
    median_seconds: f64,
    p99_seconds: f64,
    worst_seconds: f64,
    disk_fsyncs_per_second: f64,
    disk_fsync_p99_us: u64,
    /// Of the member with the slowest recent fsyncs.
    member_fsync_p99_us: u64,
    settled: Settled,
}

impl Report for HandoverSummary {
    const KIND: &'static str = "BenchHandoverSummary";

    fn table(&self) -> String {
        format!(
            "median {:.3} s, p99 {:.3} s, worst {:.3} s\n",
            self.median_seconds, self.p99_seconds, self.worst_seconds
        )
    }
}

impl Verb for HandoverArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Hands over and measures; prints each result, and all.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let mut target = Target::open(&globals.connect, &self.target).await?;
        let disk = yardstick(&target)?;
        let mut driver = Driver::warmed_up(&target, &self.load, self.batch, self.warmup).await?;
        let mut pauses = Vec::new();
        for number in 1..=self.times {
            let handover = one(&mut target, &mut driver, &self, number).await?;
            print_note(format_args!(
                "{number}: {} went, workers paused for {:.3} s, one for {:.3} s",
                handover.from, handover.median_seconds, handover.worst_seconds
            ));
            output::emit_next(globals.format, &handover)?;
            pauses.extend(handover.pauses);
        }
        let members = measurements::counters(target.admin()).await;
        driver.stop().await?;
        print_note(format_args!("checking conservation and digests"));
        let settled = final_check::check(target.admin(), driver.load()).await?;
        pauses.sort_by(f64::total_cmp);
        output::emit_next(
            globals.format,
            &HandoverSummary {
                times: self.times,
                by: self.by,
                workers: self.load.workers,
                batch: self.batch,
                pauses: pauses.len(),
                median_seconds: quantile(&pauses, 0.5),
                p99_seconds: quantile(&pauses, 0.99),
                worst_seconds: quantile(&pauses, 1.0),
                disk_fsyncs_per_second: disk.fsyncs_per_second.round(),
                disk_fsync_p99_us: disk.p99_us,
                member_fsync_p99_us: members.values().map(|m| m.fsync_us_p99).max().unwrap_or(0),
                settled,
            },
        )?;
        final_check::cancel_runs(driver.feed().session(), driver.load()).await?;
        target.close().await
    }
}

async fn one(
    target: &mut Target,
    driver: &mut Driver,
    args: &HandoverArgs,
    number: u32,
) -> anyhow::Result<Handover> {
    let survey = survey(target, driver).await?;
    let from = survey.leader.context("the cluster has no leader before the handover")?;
    let to = follower(&survey.members, number).context("no other member can lead")?;
    let epoch_before = survey.coord_epoch;
    let workers = args.load.workers as usize;
    driver.load().with(|record| record.pauses = Some(Pauses::after(epoch_before)));
    until(driver, "every worker has claimed from the leader", |p| p.begun() == workers).await?;
    let already =
        driver.load().with(|record| record.pauses.as_ref().map_or(0, |p| p.ended().len()));
    ensure!(already == 0, "leadership passed on by itself");
    let start = Instant::now();
    match args.by {
        By::Sigterm => target.signal_member(&from, libc::SIGTERM)?,
        By::Transfer => transfer(target, driver, &to).await?,
    }
    until(driver, "every worker claims from another leader", |p| p.ended().len() == workers)
        .await?;
    let all_seconds = start.elapsed().as_secs_f64();
    let ended = driver.load().with(|record| record.pauses.take());
    let ended = ended.context("no pause was measured")?;
    let mut pauses: Vec<f64> = ended.ended().map(|pause| pause.as_secs_f64()).collect();
    pauses.sort_by(f64::total_cmp);
    if args.by == By::Sigterm {
        come_back(target, driver, &from).await?;
    }
    driver.go_on_for(BETWEEN).await?;
    let epoch_after = self::survey(target, driver).await?.coord_epoch;
    Ok(Handover {
        number,
        by: args.by,
        from,
        epoch_before,
        epoch_after,
        median_seconds: quantile(&pauses, 0.5),
        worst_seconds: quantile(&pauses, 1.0),
        all_seconds,
        pauses,
    })
}

/// Continues until the pauses satisfy a condition.
async fn until(
    driver: &mut Driver,
    what: &str,
    so: impl Fn(&Pauses) -> bool,
) -> anyhow::Result<()> {
    let start = Instant::now();
    driver
        .go_on(async |load| {
            if start.elapsed() > CLAIM_PATIENCE {
                bail!("not within {CLAIM_PATIENCE:?}: {what}");
            }
            Ok(load.with(|record| record.pauses.as_ref().is_some_and(&so)))
        })
        .await
}

/// The next leader, in turns.
fn follower(members: &[MemberLine], number: u32) -> Option<String> {
    let follows = |member: &&MemberLine| {
        member.report.as_ref().is_some_and(|report| report.role == "follower")
    };
    let followers: Vec<&MemberLine> = members.iter().filter(follows).collect();
    let at = (number as usize).checked_rem(followers.len())?;
    Some(followers[at].name.clone())
}

/// Asks the leader to hand over, while the load continues. The request names the successor, so a repeat does not pass
/// leadership on.
async fn transfer(target: &Target, driver: &mut Driver, to: &str) -> anyhow::Result<()> {
    let client = target.admin();
    driver
        .go_on(async |_| {
            client
                .with_leader("transfer leader", |channel| {
                    let request =
                        v1::TransferLeaderRequest { to: to.to_owned(), from: String::new() };
                    async move { services::members(channel).transfer_leader(request).await }
                })
                .await?;
            Ok(true)
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::status::MemberReport;

    fn member(name: &str, role: &str) -> MemberLine {
        let report = MemberReport { role: role.into(), ..MemberReport::default() };
        MemberLine { name: name.into(), report: Some(report), ..MemberLine::default() }
    }

    #[test]
    fn followers_take_turns_and_no_other_member_is_asked_to_lead() {
        let roles = [("a", "leader"), ("b", "follower"), ("c", "learner"), ("d", "follower")];
        let members: Vec<_> = roles.iter().map(|(name, role)| member(name, role)).collect();
        let turns: Vec<_> = (1..=3).filter_map(|number| follower(&members, number)).collect();
        assert_eq!(turns, ["d", "b", "d"]);
        assert_eq!(follower(&members[..1], 1), None);
    }

    #[test]
    fn output_matches_the_golden_file() {
        let one = Handover {
            number: 1,
            by: By::Sigterm,
            from: "c1".into(),
            epoch_before: 3,
            epoch_after: 4,
            median_seconds: 0.05,
            worst_seconds: 0.125,
            all_seconds: 0.25,
            pauses: Vec::new(),
        };
        crate::golden::report("bench-handover.txt", &one);
        let all = HandoverSummary {
            times: 1,
            by: By::Sigterm,
            workers: 2,
            batch: 32,
            pauses: 2,
            median_seconds: 0.05,
            p99_seconds: 0.125,
            worst_seconds: 0.125,
            disk_fsyncs_per_second: 1_000.0,
            disk_fsync_p99_us: 1_500,
            member_fsync_p99_us: 1_800,
            settled: final_check::sample(),
        };
        crate::golden::report("bench-handover-summary.txt", &all);
    }
}
