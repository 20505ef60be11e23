//! The members of complete rounds, in the form in which waiting participants receive them.
//!
//! *Invariant:* a round's roster is built once, however many participants wait for it. The ledger never changes it.
//!
//! Absent: rounds for which no participant waits.

use parking_lot::Mutex;
use rollout_ledger::id::{JobNo, SessionId};
use rollout_ledger::{JobName, JobView, RoundMember, StoreName};
use rollout_proto::v1;
use std::collections::BTreeMap;
use std::sync::Arc;
use v1::rendezvous_wait_response::Outcome;

/// Cached rosters. When the cache is full, one more replaces all.
const KEPT_MAX: usize = 64;

/// The result of a wait.
pub(super) enum WaitResult {
    /// The answer.
    Decided(Outcome),
    /// A complete round: the ticket and the rank of its member, and its roster.
    Round { round: u64, incarnation: SessionId, rank: u32, roster: Arc<Roster> },
}

impl WaitResult {
    /// Converts to the answer, with or without a round's members.
    pub(super) fn into_outcome(self, with_members: bool) -> Outcome {
        let (round, incarnation, rank, roster) = match self {
            Self::Decided(outcome) => return outcome,
            Self::Round { round, incarnation, rank, roster } => (round, incarnation, rank, roster),
        };
        let store = &roster.store;
        Outcome::Completed(v1::RendezvousRound {
            round,
            rank,
            world_size: roster.members.len() as u32,
            members: if with_members { roster.members.clone() } else { Vec::new() },
            store: Some(v1::StoreName {
                namespace: store.namespace.clone(),
                job: store.job.clone(),
                round: store.round,
                ticket: incarnation.0,
            }),
            first_process: roster.before.get(rank as usize).copied().unwrap_or_default(),
            processes: roster.processes,
        })
    }
}

/// The members of a round.
pub(super) struct Roster {
    members: Vec<v1::RoundMember>,
    /// For each member, the number of processes of the members before it.
    before: Vec<u64>,
    processes: u64,
    store: StoreName,
    of: (JobNo, u64),
}

impl Roster {
    fn of(view: JobView<'_>, of: (JobNo, u64)) -> Self {
        let (mut before, mut processes) = (Vec::new(), 0);
        let member = |m: &RoundMember| {
            before.push(processes);
            processes += u64::from(m.decl.local_world_size);
            v1::RoundMember {
                name: m.decl.name.clone(),
                host: m.decl.host.clone(),
                addr: m.decl.addr.clone(),
                rank: m.rank,
                local_world_size: m.decl.local_world_size,
            }
        };
        let members = view.rendezvous().roster.iter().map(member).collect();
        Self { members, before, processes, store: view.round_store(), of }
    }
}

/// The rosters of recent rounds for which participants waited.
#[derive(Default)]
pub(super) struct Rosters(Mutex<BTreeMap<JobName, Arc<Roster>>>);

impl Rosters {
    /// The roster of the job's complete round.
    pub(super) fn of(&self, view: JobView<'_>) -> Arc<Roster> {
        let of = (view.number(), view.rendezvous().round);
        let mut kept = self.0.lock();
        if let Some(roster) = kept.get(view.name()).filter(|roster| roster.of == of) {
            return roster.clone();
        }
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        let roster = Arc::new(Roster::of(view, of));
        kept.insert(view.name().clone(), roster.clone());
        roster
    }
}
