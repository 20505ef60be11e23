//! Owns: whether a quorum still answers this leader, and what a leader does that none answers.
//!
//! Invariant: a leader that goes without a quorum gives leadership up, so that it does not keep others from being
//! elected: where its heartbeats arrive and their answers do not, or too late, followers hold on to it for ever.
//! Absent: refusing requests meanwhile. A leader without a lease does that at once; see `Node::lease_valid`.

use std::sync::Arc;
use std::time::Duration;

use openraft::Instant;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use rollout_ledger::seeded::{Bug, seeded};

use crate::running::Running;
use crate::types::{Types, Vote};

/// Leases beyond its own for which a leader's requests wait for a quorum. Then they are in doubt.
pub(crate) const LEASES_AWAITED: u32 = 2;
/// Leases beyond its own after which a leader that no quorum answers gives up: later than what waits at it is answered.
const LEASES_HELD: u32 = 3;
/// How often a leader's lease is looked at.
const LOOKS_PER_LEASE: u32 = 4;

/// Counts how long a leader has gone without a quorum. Time in which this process stood still counts once at most.
pub(crate) struct Missed {
    looks: u32,
    every: Duration,
}

impl Missed {
    pub(crate) fn new(running: &Running) -> Self {
        Self { looks: 0, every: running.config.lease() / LOOKS_PER_LEASE }
    }

    /// Looks once, after a while: true where it has been `leases` since the lease ran out. `lost` says whether it has.
    pub(crate) async fn for_leases(&mut self, leases: u32, lost: impl Fn() -> bool) -> bool {
        tokio::time::sleep(self.every).await;
        self.looks = if lost() { self.looks.saturating_add(1) } else { 0 };
        self.looks >= leases * LOOKS_PER_LEASE
    }
}

/// How long ago a quorum heard this leader. One that is a quorum by itself sends to nobody, so that nobody ever
/// acknowledges anything to it.
pub(crate) fn since_quorum(metrics: &openraft::RaftMetrics<Types>) -> Option<Duration> {
    let mut voters = metrics.membership_config.membership().voter_ids();
    match (voters.next(), voters.next()) {
        (Some(only), None) if only == metrics.id => Some(Duration::ZERO),
        _ => metrics.last_quorum_acked.map(|at| at.elapsed()),
    }
}

/// True while a quorum has acknowledged this leader within its lease.
pub(crate) fn lease_valid(running: &Running) -> bool {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    metrics.state.is_leader()
        && since_quorum(&metrics).is_some_and(|since| since < running.config.lease())
}

/// The term in which this member leads.
fn term_led(running: &Running) -> Option<u64> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    metrics.state.is_leader().then_some(metrics.current_term)
}

/// Gives leadership up wherever this member leads and no quorum answers.
pub(crate) async fn watch(running: Arc<Running>) {
    // These are bugs of a leader that holds on; one that gives up hides them.
    if seeded(Bug::StaleRead) || seeded(Bug::SuccessWithoutQuorum) {
        return;
    }
    let mut term = None;
    let mut missed = Missed::new(&running);
    loop {
        let gone =
            missed.for_leases(LEASES_HELD, || term.is_some() && !lease_valid(&running)).await;
        let led = term_led(&running);
        if led != term {
            // Another reign: it counts from its beginning.
            (term, missed) = (led, Missed::new(&running));
        } else if gone && let Some(term) = term {
            step_down(&running, term).await;
        }
    }
}

/// Gives up the leadership of `term`. openraft's leaders lead until they hear of a higher term, so this member goes to
/// the next one, in which it gives its vote to another member that has not asked for it: a vote binds only whoever
/// gives it. Refused where a quorum has answered meanwhile.
async fn step_down(running: &Running, term: u64) {
    let me = running.context.me;
    let other = {
        let metrics = running.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics.membership_config.voter_ids().find(|id| *id != me)
    };
    let Some(other) = other else { return };
    let last = match running.store.state() {
        Ok((_, last)) => last,
        Err(error) => {
            tracing::warn!(%error, "leadership is not given up: the log cannot be read");
            return;
        }
    };
    match running.raft.vote(VoteRequest::new(Vote::new(term + 1, other), last)).await {
        Ok(answer) if answer.vote_granted => {
            tracing::warn!(term, "no quorum answers: leadership is given up");
        }
        Ok(_) => tracing::debug!(term, "leadership is not given up: a quorum answers again"),
        Err(error) => tracing::debug!(%error, "leadership is not given up"),
    }
}
