//! The counters of one process of the generator, in a form that can be added up across processes.
//!
//! Invariant: counters only grow; times are those since the last reset. Absent: what the members count.

use serde::{Deserialize, Serialize};

use crate::bench::measurements::Times;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters since the process started.
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub(super) struct Counts { $($(#[$doc])* pub(super) $name: u64,)* }

        impl Counts {
            /// Adds another process's.
            pub(super) fn add(&mut self, other: &Self) {
                $(self.$name += other.$name;)*
            }

            /// What was counted since `before`.
            pub(super) fn since(&self, before: &Self) -> Self {
                Self { $($name: self.$name.saturating_sub(before.$name),)* }
            }
        }
    };
}

counts! {
    /// Answers that granted rows.
    claims,
    rows_granted,
    /// Answered exchanges with results.
    completions,
    /// Parts that were reported.
    parts,
    rows_accepted,
    /// Refused rows of results.
    rows_refused,
    rows_started,
    /// Starts of a row that this process had started before.
    rows_started_again,
    /// Rows that the leader dropped when the worker registered, because they were no longer the worker's.
    rows_dropped,
    rows_revoked,
    rows_yielded,
    /// Heartbeats that were answered.
    heartbeats,
    streams_ended,
    registrations,
    /// How often a worker started nothing because no heartbeat had been answered for too long.
    fenced,
    violations,
}

macro_rules! spreads {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Times since the last reset.
        #[derive(Debug, Clone)]
        pub(super) struct Spreads { $($(#[$doc])* pub(super) $name: Times,)* }

        impl Spreads {
            pub(super) fn new() -> Self {
                Self { $($name: Times::new(),)* }
            }

            fn counts(&self) -> Vec<Vec<(u64, u64)>> {
                vec![$(self.$name.counts()),*]
            }

            fn add(&mut self, counts: &[Vec<(u64, u64)>]) {
                let mut each = counts.iter();
                $(self.$name.add(each.next().map_or(&[], Vec::as_slice));)*
            }
        }
    };
}

spreads! {
    /// From a pull that found rows at once to its answer.
    claim,
    /// From results to their answer.
    complete,
    /// From a request to register to its answer.
    register,
    /// From a heartbeat to its answer.
    heartbeat,
    /// How long a slot had nothing to run while its model had rows, each time.
    idle,
    /// From the end of a stream to the first answer on the next.
    reconnect,
    /// From the time when lost workers may come back to their first row, or to their first answer if no run uses their
    /// models.
    work_again,
}

/// One report.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Tally {
    pub(super) counts: Counts,
    pub(super) spreads: Vec<Vec<(u64, u64)>>,
    /// Workers with a stream on which a heartbeat was answered.
    pub(super) connected: u64,
    /// Total time in which slots had nothing to run while their models had rows.
    pub(super) idle_us: u64,
    /// How often this lasted longer than a second.
    pub(super) idle_over_1s: u64,
    pub(super) cpu_us: u64,
    pub(super) resident_bytes: u64,
    /// The first violations.
    pub(super) examples: Vec<String>,
}

impl Tally {
    /// A report of these.
    pub(super) fn of(counts: &Counts, spreads: &Spreads) -> Self {
        Self { counts: counts.clone(), spreads: spreads.counts(), ..Self::default() }
    }

    /// Adds another process's report; the times into `spreads`.
    pub(super) fn add(&mut self, other: &Self, spreads: &mut Spreads) {
        self.counts.add(&other.counts);
        spreads.add(&other.spreads);
        self.connected += other.connected;
        self.idle_us += other.idle_us;
        self.idle_over_1s += other.idle_over_1s;
        self.cpu_us += other.cpu_us;
        self.resident_bytes += other.resident_bytes;
        self.examples.extend(other.examples.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reports_of_two_processes_add_up() {
        let one = |claims, us| {
            let mut spreads = Spreads::new();
            spreads.claim.record_us(us);
            Tally::of(&Counts { claims, ..Counts::default() }, &spreads)
        };
        let (mut sum, mut spreads) = (Tally::default(), Spreads::new());
        for tally in [one(3, 100), one(4, 900)] {
            let text = serde_json::to_string(&tally).expect("JSON");
            sum.add(&serde_json::from_str(&text).expect("a tally"), &mut spreads);
        }
        assert_eq!(sum.counts.claims, 7);
        let times = spreads.claim.summary();
        assert_eq!((times.calls, times.p50_us, times.max_us), (2, 100, 900));
        assert_eq!(spreads.register.summary().calls, 0);
        let later = Counts { claims: 9, ..Counts::default() };
        assert_eq!(later.since(&sum.counts).claims, 2);
    }
}
