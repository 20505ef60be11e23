//! What a leader reports about the members: that it leads and why, which processes started or stopped, and which members
//! are unreachable. The ledger turns the reports into events.
//!
//! *Invariant:* it proposes only what the ledger does not know yet, and at most [`CHANGES_MAX`] changes of one member in
//! [`WINDOW`]: a member that flaps fills neither the log nor the events. After the window it reports the latest
//! state of a member whose changes it left out.
//!
//! Absent: when a member counts as unreachable; `rollout-raft` decides it.

use super::LeaderState;
use crate::leader::ledger_read::ReadLedger;
use rollout_ledger::id::CoordEpoch;
use rollout_ledger::{
    LeaderCause, Ledger, MemberOp, MemberState, Members, OpKind, Reply, SCHEDULING_VERSION,
    SeenMember,
};
use rollout_raft::{Handover, LeaderLeft, MemberReachability, Node, Reachability};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often the leader checks the members.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Changes of one member that the leader proposes in [`WINDOW`].
const CHANGES_MAX: usize = 6;
/// See [`CHANGES_MAX`].
const WINDOW: Duration = Duration::from_secs(60);
/// How long a leader that stops waits until its stop is in the ledger.
const STOP_LIMIT: Duration = Duration::from_millis(500);

/// Why this member leads now, as far as it can know before it opens its epoch.
pub(super) fn cause(node: &Node) -> LeaderCause {
    let read = |l: &Ledger| (l.epoch().0, l.members().epoch.0, l.members().leader.clone());
    let (open, reported, former) = node.ledger(read);
    if former.is_empty() {
        return LeaderCause::First;
    }
    let left = match former == node.config().name {
        true => None,
        false => Some(node.leader_left(open, &former)),
    };
    // The last epoch's leader did not get to report itself, so it is unknown.
    match left {
        None if open == reported => LeaderCause::Again,
        None => cause_of(node.leader_left(open, "")),
        Some(left) => cause_of(left),
    }
}

fn cause_of(left: LeaderLeft) -> LeaderCause {
    match left {
        LeaderLeft::HandedOver(Handover::Requested) => LeaderCause::Requested,
        LeaderLeft::HandedOver(Handover::Stopping) => LeaderCause::Stopping,
        LeaderLeft::HandedOver(Handover::SlowDisk) => LeaderCause::SlowDisk,
        LeaderLeft::HandedOver(Handover::FullDisk) => LeaderCause::FullDisk,
        LeaderLeft::HandedOver(Handover::Removal) => LeaderCause::Removal,
        LeaderLeft::ConnectionsLost => LeaderCause::ConnectionsLost,
        LeaderLeft::Silent => LeaderCause::ElectionTimeout,
    }
}

/// Changes that the ledger does not know yet, by member. This member leads since `leads_since`.
fn changes(
    recorded: &Members,
    observed: &[MemberReachability],
    leads_since: Instant,
) -> Vec<(u64, MemberOp)> {
    let mut all: Vec<(u64, MemberOp)> = observed
        .iter()
        .filter_map(|at| Some((at.id, change(recorded.seen.get(&at.id), at, leads_since)?)))
        .collect();
    let gone = recorded.seen.keys().filter(|id| observed.iter().all(|at| at.id != **id));
    all.extend(gone.map(|id| (*id, MemberOp::Removed { id: *id })));
    all
}

fn change(
    recorded: Option<&SeenMember>,
    at: &MemberReachability,
    leads_since: Instant,
) -> Option<MemberOp> {
    let id = at.id;
    // It has answered this leader, as a process other than the last one known.
    if at.started_ms > 0 && recorded.is_none_or(|recorded| recorded.started_ms != at.started_ms) {
        // An earlier answer may be of a process that the last leader has seen end.
        return at.as_of.is_some_and(|as_of| as_of >= leads_since).then(|| MemberOp::Started {
            id,
            name: at.name.clone(),
            started_ms: at.started_ms,
        });
    }
    let recorded = recorded?;
    let started_ms = recorded.started_ms;
    match (at.reachability, recorded.state) {
        (Reachability::Stopped, MemberState::Running | MemberState::Unreachable) => {
            Some(MemberOp::Stopped { id, started_ms })
        }
        (Reachability::Unreachable, MemberState::Running) => {
            Some(MemberOp::Unreachable { id, started_ms })
        }
        (Reachability::Reachable, MemberState::Unreachable) => {
            Some(MemberOp::Reachable { id, started_ms })
        }
        _ => None,
    }
}

/// How many changes of each member may still be proposed.
#[derive(Default)]
struct Budget(BTreeMap<u64, VecDeque<Instant>>);

impl Budget {
    /// Whether another change of the member may be proposed now; counts it if so.
    fn take(&mut self, member: u64, now: Instant) -> bool {
        let spent = self.0.entry(member).or_default();
        while spent.front().is_some_and(|at| now.saturating_duration_since(*at) >= WINDOW) {
            spent.pop_front();
        }
        let may = spent.len() < CHANGES_MAX;
        if may {
            spent.push_back(now);
        }
        may
    }

    /// Forgets members that are not among these.
    fn keep(&mut self, ids: &[u64]) {
        self.0.retain(|id, _| ids.contains(id));
    }
}

impl LeaderState {
    /// Reports for as long as this epoch lasts, and first of all that this member leads.
    pub(super) async fn report_members(self: Arc<Self>, cause: LeaderCause) {
        let mut interval = tokio::time::interval(LOOK_EVERY);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut budget, leads_since) = (Budget::default(), Instant::now());
        loop {
            interval.tick().await;
            if !self.node.lease_valid() {
                continue;
            }
            let (version, recorded) = self.node.ledger(|l| (l.version(), l.members().clone()));
            // Outside the ledger's lock, because it reads what consensus publishes.
            let observed = self.node.reachability();
            let Some(own) = observed.first().filter(|_| version >= SCHEDULING_VERSION) else {
                continue;
            };
            let mut due = Vec::new();
            if recorded.epoch != CoordEpoch(self.epoch) {
                due.push((own.id, MemberOp::Leads { name: own.name.clone(), cause }));
            }
            due.extend(changes(&recorded, &observed, leads_since));
            let ids: Vec<u64> =
                observed.iter().map(|at| at.id).chain(recorded.seen.into_keys()).collect();
            budget.keep(&ids);
            let now = Instant::now();
            for (id, op) in due {
                if budget.take(id, now) {
                    self.report(op).await;
                }
            }
        }
    }

    async fn report(&self, op: MemberOp) {
        match self.proposer.op(OpKind::Member(op.clone())).await {
            Ok(Reply::Rejected(why)) => {
                tracing::warn!(?op, %why, "a report of a member was refused")
            }
            Ok(_) => {}
            Err(error) => tracing::debug!(?op, %error, "a report of a member was not applied"),
        }
    }

    /// Records in the ledger that this member, which still leads, stops. Does nothing without a majority, or if the
    /// cluster's version has no such reports.
    pub(crate) async fn report_own_stop(&self) {
        let version = self.node.ledger(Ledger::version);
        let Some(own) = self.node.reachability().into_iter().next() else { return };
        if version >= SCHEDULING_VERSION {
            let op = MemberOp::Stopped { id: own.id, started_ms: own.started_ms };
            drop(tokio::time::timeout(STOP_LIMIT, self.report(op)).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A member that was observed in the present epoch.
    fn at(id: u64, started_ms: u64, reachability: Reachability) -> MemberReachability {
        MemberReachability {
            id,
            name: format!("c{id}"),
            started_ms,
            as_of: Some(Instant::now()),
            reachability,
        }
    }

    fn seen(id: u64, started_ms: u64, state: MemberState) -> (u64, SeenMember) {
        (id, SeenMember { name: format!("c{id}"), started_ms, state })
    }

    fn due(known: &[(u64, SeenMember)], observed: &[MemberReachability]) -> Vec<MemberOp> {
        let known = Members { seen: known.iter().cloned().collect(), ..Members::default() };
        let leads_since = Instant::now() - Duration::from_secs(60);
        changes(&known, observed, leads_since).into_iter().map(|(_, op)| op).collect()
    }

    #[test]
    fn a_leader_reports_what_the_ledger_does_not_know_and_nothing_else() {
        use MemberState as Is;
        use Reachability::{Reachable, Stopped, Unclear, Unreachable};
        let started_ms = 100;
        let started = |id| MemberOp::Started { id, name: format!("c{id}"), started_ms };
        assert_eq!(due(&[], &[at(1, 100, Reachable), at(2, 0, Unclear)]), [started(1)]);
        let running = [seen(1, 100, Is::Running)];
        for same in [Reachable, Unclear] {
            assert_eq!(due(&running, &[at(1, 100, same)]), []);
        }
        let unreachable = MemberOp::Unreachable { id: 1, started_ms };
        assert_eq!(due(&running, &[at(1, 100, Unreachable)]), std::slice::from_ref(&unreachable));
        // Only the previous leader ever heard it.
        assert_eq!(due(&running, &[at(1, 0, Unreachable)]), [unreachable]);
        assert_eq!(
            due(&running, &[at(1, 100, Stopped)]),
            [MemberOp::Stopped { id: 1, started_ms }]
        );
        let lost = [seen(1, 100, Is::Unreachable)];
        assert_eq!(due(&lost, &[at(1, 100, Unclear)]), []);
        assert_eq!(
            due(&lost, &[at(1, 100, Reachable)]),
            [MemberOp::Reachable { id: 1, started_ms }]
        );
        let stopped = [seen(1, 50, Is::Stopped)];
        for known in [Unreachable, Stopped, Reachable] {
            assert_eq!(due(&stopped, &[at(1, 50, known)]), []);
        }
        assert_eq!(due(&stopped, &[at(1, 100, Unclear)]), [started(1)]);
        assert_eq!(due(&lost, &[at(2, 0, Unclear)]), [MemberOp::Removed { id: 1 }]);
    }

    /// The last leader has reported the present process, which this one has not asked yet.
    #[test]
    fn an_answer_from_before_the_epoch_is_not_reported_as_another_start() {
        let earlier = Instant::now() - Duration::from_secs(120);
        let running = [seen(1, 100, MemberState::Running)];
        for reachability in [Reachability::Unclear, Reachability::Reachable, Reachability::Stopped]
        {
            let former = MemberReachability { as_of: Some(earlier), ..at(1, 50, reachability) };
            assert_eq!(due(&running, &[former]), []);
        }
        let former =
            MemberReachability { as_of: Some(earlier), ..at(1, 100, Reachability::Stopped) };
        let stopped = MemberOp::Stopped { id: 1, started_ms: 100 };
        assert_eq!(due(&running, &[former]), [stopped], "it is the present process that stops");
    }

    #[test]
    fn a_member_that_flaps_has_six_changes_a_minute_and_the_others_theirs() {
        let (mut budget, now) = (Budget::default(), Instant::now());
        let mut in_an_hour = 0;
        for second in 0..3600 {
            let now = now + Duration::from_secs(second);
            in_an_hour += usize::from(budget.take(1, now));
        }
        assert_eq!(in_an_hour, CHANGES_MAX * 60);
        assert!(budget.take(2, now), "another member has a budget of its own");
        assert!(budget.0.values().all(|spent| spent.len() <= CHANGES_MAX));
        budget.keep(&[2]);
        assert_eq!(budget.0.len(), 1);
    }
}
