//! One phase of the measurement: read all counters at its start and at its end, and report the difference.
//!
//! Invariant: the generator's times, the members' counters and the reads cover the same window.
//! Absent: what happens in it.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Context as _;
use rollout_proto::v1::CountersResponse;

use super::FleetArgs;
use super::figures::{FleetFigures, GeneratorShare, Idle, MemberShare, Rate};
use super::part_processes::PartProcesses;
use super::reads::{ReadTimes, Reads};
use super::tally::{Spreads, Tally};
use crate::bench::measurements::{self, tenth};
use crate::bench::target::Target;
use crate::rolloutctl::status;

/// A reading of everything that is reported as a difference over a phase.
pub(super) struct Reading {
    at: Instant,
    counters: BTreeMap<String, CountersResponse>,
    pub(super) tally: Tally,
    spreads: Spreads,
    pub(super) epoch: u64,
    leader: String,
}

impl Reading {
    /// Takes a reading. With `reset` the generator's times start a new window.
    pub(super) async fn take(
        target: &Target,
        processes: &mut PartProcesses,
        reset: bool,
    ) -> anyhow::Result<Self> {
        let counters = measurements::counters(target.admin()).await;
        let (tally, spreads) = processes.report(reset).await?;
        let at = Instant::now();
        let survey = status::survey(target.admin()).await;
        let leader = survey.leader.unwrap_or_default();
        Ok(Self { at, counters, tally, spreads, epoch: survey.coord_epoch, leader })
    }
}

/// A phase in progress.
pub(super) struct Phase {
    name: &'static str,
    before: Reading,
}

impl Phase {
    pub(super) async fn begin(
        name: &'static str,
        (target, processes, reads): (&Target, &mut PartProcesses, &Reads),
    ) -> anyhow::Result<Self> {
        let before = Reading::take(target, processes, true).await?;
        reads.take();
        Ok(Self { name, before })
    }

    /// The epoch in which it began.
    pub(super) fn epoch(&self) -> u64 {
        self.before.epoch
    }

    pub(super) async fn end(
        self,
        args: &FleetArgs,
        (target, processes, reads): (&Target, &mut PartProcesses, &Reads),
    ) -> anyhow::Result<FleetFigures> {
        let after = Reading::take(target, processes, false).await?;
        figures(args, self.name, (&self.before, &after), (processes.len(), reads.take()))
    }
}

fn figures(
    args: &FleetArgs,
    phase: &'static str,
    (before, after): (&Reading, &Reading),
    (processes, reads): (usize, ReadTimes),
) -> anyhow::Result<FleetFigures> {
    let shape = args.shape(None).context("the shape was checked before")?;
    let seconds = after.at.duration_since(before.at).as_secs_f64().max(1e-3);
    let members = members(before, after, seconds);
    let counted = after.tally.counts.since(&before.tally.counts);
    let times = &after.spreads;
    let rate = |calls: u64| tenth(calls as f64 / seconds);
    let leads = members.iter().find(|member| member.leads);
    let leader_us = leads.map_or(0.0, |member| member.cpu_share * seconds * 1e6);
    let busy_slots = shape.busy_slots();
    Ok(FleetFigures {
        phase,
        seconds: tenth(seconds),
        workers: shape.workers,
        slots_per_worker: shape.slots,
        busy_slots,
        runs: shape.runs,
        row_ms: args.row_ms.to_string(),
        connected: after.tally.connected,
        epoch_changes: after.epoch.saturating_sub(before.epoch),
        heartbeats_per_second: rate(counted.heartbeats),
        leader_cpu_us_per_heartbeat: tenth(leader_us / counted.heartbeats.max(1) as f64),
        heartbeat: times.heartbeat.summary(),
        proposals_per_second: leads.map_or(0.0, |member| member.log_entries_per_second),
        members,
        generator: GeneratorShare {
            processes,
            cpu_share: share(after.tally.cpu_us, before.tally.cpu_us, seconds),
            resident_bytes: after.tally.resident_bytes,
        },
        claims: Rate {
            per_second: rate(counted.claims),
            rows_per_second: rate(counted.rows_granted),
            times: times.claim.summary(),
        },
        completions: Rate {
            per_second: rate(counted.completions),
            rows_per_second: rate(counted.rows_accepted),
            times: times.complete.summary(),
        },
        parts_per_second: rate(counted.parts),
        idle: Idle {
            seconds_per_slot: hundredth(
                after.tally.idle_us as f64 / 1e6 / busy_slots.max(1) as f64,
            ),
            over_a_second: after.tally.idle_over_1s,
            times: times.idle.summary(),
        },
        run_list: reads.run_list,
        worker_list: reads.worker_list,
        status: reads.status,
        reads_failed: reads.failed,
        register: times.register.summary(),
        reconnect: times.reconnect.summary(),
        work_again: times.work_again.summary(),
        work_again_p95_seconds: hundredth(times.work_again.quantile_us(0.95) as f64 / 1e6),
        fenced: counted.fenced,
        rows_refused: counted.rows_refused,
        rows_yielded: counted.rows_yielded,
        violations: counted.violations,
        examples: after.tally.examples.clone(),
    })
}

fn members(before: &Reading, after: &Reading, seconds: f64) -> Vec<MemberShare> {
    let member = |(name, new): (&String, &CountersResponse)| {
        // A restarted member counts from its start.
        let old = before.counters.get(name).filter(|old| old.cpu_us <= new.cpu_us);
        let old = old.cloned().unwrap_or_default();
        let per_second = |new: u64, old: u64| (new.saturating_sub(old) as f64 / seconds).round();
        MemberShare {
            member: name.clone(),
            leads: *name == after.leader,
            cpu_share: share(new.cpu_us, old.cpu_us, seconds),
            resident_bytes: new.resident_bytes,
            log_entries_per_second: per_second(new.log_entries, old.log_entries),
            log_bytes_per_second: per_second(new.log_bytes, old.log_bytes),
            image_bytes_per_second: per_second(new.image_bytes_written, old.image_bytes_written),
        }
    };
    after.counters.iter().map(member).collect()
}

/// Processor time as a share of one core.
fn share(new_us: u64, old_us: u64, seconds: f64) -> f64 {
    let share = new_us.saturating_sub(old_us) as f64 / 1e6 / seconds;
    (share * 1000.0).round() / 1000.0
}

fn hundredth(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

#[cfg(test)]
pub(super) fn sample() -> FleetFigures {
    use clap::Parser as _;
    #[derive(clap::Parser)]
    struct Only {
        #[command(flatten)]
        args: FleetArgs,
    }
    let args = Only::parse_from(["fleet"]).args;
    let counters = |cpu_us, log_entries| {
        let member = "c1".to_owned();
        let resident_bytes = 300 << 20;
        CountersResponse { member, cpu_us, log_entries, resident_bytes, ..Default::default() }
    };
    let at = Instant::now();
    let reading = |seconds, counters, heartbeats| {
        let mut tally = Tally::default();
        tally.counts.heartbeats = heartbeats;
        tally.connected = 1000;
        let counters = BTreeMap::from([("c1".to_owned(), counters)]);
        let (spreads, leader) = (Spreads::new(), "c1".to_owned());
        let at = at + std::time::Duration::from_secs(seconds);
        Reading { at, counters, tally, spreads, epoch: 3, leader }
    };
    let (before, after) =
        (reading(0, counters(1_000_000, 50), 0), reading(10, counters(2_500_000, 1050), 20_000));
    let times = || super::super::measurements::Times::new().summary();
    let reads = ReadTimes { run_list: times(), worker_list: times(), status: times(), failed: 0 };
    figures(&args, "load", (&before, &after), (1, reads)).expect("figures")
}
