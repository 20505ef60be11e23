//! What `bench fleet` prints: one report for each phase, and one for the proof at the end.
//!
//! Invariant: a rate is a difference over the phase and includes nothing of another phase. Absent: a
//! verdict.

use serde::Serialize;

use crate::bench::measurements::CallTimes;
use crate::output::{Report, Table, bytes, count, u64_string};

/// A member during a phase.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MemberShare {
    pub(super) member: String,
    pub(super) leads: bool,
    /// Processor time, as a share of one core.
    pub(super) cpu_share: f64,
    #[serde(serialize_with = "u64_string")]
    pub(super) resident_bytes: u64,
    pub(super) log_entries_per_second: f64,
    pub(super) log_bytes_per_second: f64,
    pub(super) image_bytes_per_second: f64,
}

/// The processes of the generator during a phase.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GeneratorShare {
    pub(super) processes: usize,
    pub(super) cpu_share: f64,
    #[serde(serialize_with = "u64_string")]
    pub(super) resident_bytes: u64,
}

/// Calls of one kind: how many per second, with how many rows, and their duration.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Rate {
    pub(super) per_second: f64,
    pub(super) rows_per_second: f64,
    #[serde(flatten)]
    pub(super) times: CallTimes,
}

/// Slots that had nothing to run while runs used their models.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Idle {
    /// Average seconds per slot.
    pub(super) seconds_per_slot: f64,
    /// How often it lasted longer than a second.
    #[serde(serialize_with = "u64_string")]
    pub(super) over_a_second: u64,
    /// The duration of each time.
    #[serde(flatten)]
    pub(super) times: CallTimes,
}

/// One phase.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FleetFigures {
    pub(super) phase: &'static str,
    pub(super) seconds: f64,
    pub(super) workers: u32,
    pub(super) slots_per_worker: u32,
    #[serde(serialize_with = "u64_string")]
    pub(super) busy_slots: u64,
    pub(super) runs: u32,
    pub(super) row_ms: String,
    #[serde(serialize_with = "u64_string")]
    pub(super) connected: u64,
    pub(super) epoch_changes: u64,
    pub(super) members: Vec<MemberShare>,
    pub(super) generator: GeneratorShare,
    pub(super) heartbeats_per_second: f64,
    /// All of the leader's processor time divided by the heartbeats of the phase: the cost of one heartbeat only if
    /// nothing else happens.
    pub(super) leader_cpu_us_per_heartbeat: f64,
    pub(super) heartbeat: CallTimes,
    pub(super) proposals_per_second: f64,
    pub(super) claims: Rate,
    pub(super) completions: Rate,
    pub(super) parts_per_second: f64,
    pub(super) idle: Idle,
    pub(super) run_list: CallTimes,
    pub(super) worker_list: CallTimes,
    pub(super) status: CallTimes,
    #[serde(serialize_with = "u64_string")]
    pub(super) reads_failed: u64,
    pub(super) register: CallTimes,
    /// From the end of a stream to the first answer on the next.
    pub(super) reconnect: CallTimes,
    /// From the time when workers that were cut off may come back until they work.
    pub(super) work_again: CallTimes,
    pub(super) work_again_p95_seconds: f64,
    #[serde(serialize_with = "u64_string")]
    pub(super) fenced: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) rows_refused: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) rows_yielded: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) violations: u64,
    pub(super) examples: Vec<String>,
}

impl Report for FleetFigures {
    const KIND: &'static str = "BenchFleet";

    fn table(&self) -> String {
        let mut members = Table::new(&["MEMBER", "CPU", "MEMORY", "ENTRIES/S", "IMAGE/S"]);
        for member in &self.members {
            members.row([
                format!("{}{}", member.member, if member.leads { " (leads)" } else { "" }),
                format!("{:.0} %", member.cpu_share * 100.0),
                bytes(member.resident_bytes),
                count(member.log_entries_per_second as u64),
                bytes(member.image_bytes_per_second as u64),
            ]);
        }
        let mut times = Table::new(&["", "PER SECOND", "P50", "P99", "MAX"]);
        let per_second = |calls: &CallTimes| calls.calls as f64 / self.seconds.max(1e-3);
        for (what, rate, spread) in [
            ("heartbeat", self.heartbeats_per_second, &self.heartbeat),
            ("claim", self.claims.per_second, &self.claims.times),
            ("completion", self.completions.per_second, &self.completions.times),
            ("idle slot", per_second(&self.idle.times), &self.idle.times),
            ("run list", per_second(&self.run_list), &self.run_list),
            ("worker list", per_second(&self.worker_list), &self.worker_list),
            ("status", per_second(&self.status), &self.status),
            ("register", per_second(&self.register), &self.register),
            ("reconnect", per_second(&self.reconnect), &self.reconnect),
            ("work again", per_second(&self.work_again), &self.work_again),
        ] {
            let ms = |us: u64| format!("{:.1} ms", us as f64 / 1000.0);
            let cells = [ms(spread.p50_us), ms(spread.p99_us), ms(spread.max_us)];
            times.row([what.to_owned(), format!("{rate:.1}")].into_iter().chain(cells));
        }
        format!(
            "{}: {} of {} workers, {:.1} s, {} epoch changes, {} violations, generator {:.0} % of a core\n{members}\n{times}\n",
            self.phase,
            self.connected,
            self.workers,
            self.seconds,
            self.epoch_changes,
            self.violations,
            self.generator.cpu_share * 100.0,
        )
    }
}

/// The proof at the end.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FleetSettled {
    pub(super) runs: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) rows: u64,
    /// By the ledger's count.
    #[serde(serialize_with = "u64_string")]
    pub(super) done: u64,
    /// By the workers' count.
    #[serde(serialize_with = "u64_string")]
    pub(super) accepted: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) started: u64,
    /// Starts of rows that had already been started.
    #[serde(serialize_with = "u64_string")]
    pub(super) started_again: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) violations: u64,
    pub(super) epoch_changes: u64,
    #[serde(serialize_with = "u64_string")]
    pub(super) digest_index: u64,
    pub(super) digests_equal: bool,
}

impl Report for FleetSettled {
    const KIND: &'static str = "BenchFleetSettled";

    fn table(&self) -> String {
        format!(
            "{} rows accepted once each, {} started again, {} epoch changes, all members alike\n",
            count(self.accepted),
            count(self.started_again),
            self.epoch_changes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::fleet::phase;

    #[test]
    fn output_matches_the_golden_file() {
        crate::golden::report("bench-fleet.txt", &phase::sample());
        let settled = FleetSettled {
            runs: 30,
            rows: 100_000,
            done: 76_800,
            accepted: 76_800,
            started: 76_900,
            started_again: 10,
            digest_index: 9_000,
            digests_equal: true,
            ..FleetSettled::default()
        };
        crate::golden::report("bench-fleet-settled.txt", &settled);
    }
}
