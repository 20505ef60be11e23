//! Owns: checking whether a quorum acknowledges this leader, and stepping down when none does.
//!
//! Invariant: a leader without a quorum gives leadership up, so that it does not keep others from being elected: if
//! its heartbeats arrive but their answers do not, or arrive too late, followers would follow it forever.
//! Absent: refusing requests meanwhile. A leader without a lease does that at once; see `Node::lease_valid`.

use std::sync::Arc;
use std::time::Duration;

use openraft::Instant;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::VoteRequest;
use rollout_ledger::seeded::{Bug, seeded};

use crate::consensus::running::Running;
use crate::types::{Types, Vote};

/// Leases beyond its own for which a leader's requests wait for a quorum. Then they are in doubt.
pub(crate) const LEASES_AWAITED: u32 = 2;
/// Leases beyond its own after which a leader without answers from a quorum steps down: later than its waiting
/// requests are answered.
const LEASES_HELD: u32 = 3;
/// How often a leader's lease is checked.
const CHECKS_PER_LEASE: u32 = 4;
/// How much one check that finds a valid lease reduces the count. If it cleared the count, a leader kept alive by one
/// heartbeat in many would never step down: it refuses most requests, and its followers elect no other leader.
const CHECKS_FORGIVEN: u32 = 2;

/// Counts how long a leader has gone without a quorum, less the time with one. Time in which this process stood still
/// counts once at most.
pub(crate) struct QuorumLoss {
    missed_checks: u32,
    every: Duration,
}

impl QuorumLoss {
    pub(crate) fn new(running: &Running) -> Self {
        Self { missed_checks: 0, every: running.config.lease() / CHECKS_PER_LEASE }
    }

    /// Checks once, after a pause: true if the lease has been lost for `leases`. `lost` says whether it is lost now.
    pub(crate) async fn for_leases(&mut self, leases: u32, lost: impl Fn() -> bool) -> bool {
        tokio::time::sleep(self.every).await;
        self.count(leases, lost())
    }

    fn count(&mut self, leases: u32, lost: bool) -> bool {
        let enough = leases * CHECKS_PER_LEASE;
        // Cap the count, so that a quorum that is back clears it within a bounded time.
        self.missed_checks = match lost {
            true => (self.missed_checks + 1).min(enough),
            false => self.missed_checks.saturating_sub(CHECKS_FORGIVEN),
        };
        self.missed_checks >= enough
    }
}

/// How long ago a quorum heard this leader. A leader that is a quorum by itself sends to no member, so no member ever
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
fn led_term(running: &Running) -> Option<u64> {
    let metrics = running.raft.metrics();
    let metrics = metrics.borrow_watched();
    metrics.state.is_leader().then_some(metrics.current_term)
}

/// Gives leadership up wherever this member leads and no quorum answers.
pub(crate) async fn watch(running: Arc<Running>) {
    // These seeded bugs need a leader that does not step down; stepping down would hide them.
    if seeded(Bug::StaleRead) || seeded(Bug::SuccessWithoutQuorum) {
        return;
    }
    let mut term = None;
    let mut loss = QuorumLoss::new(&running);
    loop {
        let gone = loss.for_leases(LEASES_HELD, || term.is_some() && !lease_valid(&running)).await;
        let led = led_term(&running);
        if led != term {
            // Another reign: it counts from its beginning.
            (term, loss) = (led, QuorumLoss::new(&running));
        } else if gone && let Some(term) = term {
            step_down(&running, term).await;
        }
    }
}

/// Steps down from the leadership of `term`. openraft's leaders lead until they hear of a higher term, so this member
/// moves to the next term and gives its vote there to another member that has not asked for it: a vote binds only its
/// voter. It does nothing if a quorum has answered meanwhile.
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
            tracing::warn!(%error, "cannot step down: reading the last log id failed");
            return;
        }
    };
    match running.raft.vote(VoteRequest::new(Vote::new(term + 1, other), last)).await {
        Ok(answer) if answer.vote_granted => {
            tracing::warn!(
                term,
                "stepping down: no quorum has acknowledged this leader for too long"
            );
        }
        Ok(_) => {
            tracing::debug!(term, "not stepping down: a quorum acknowledges this leader again")
        }
        Err(error) => tracing::debug!(%error, "cannot step down"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many checks a leader steps down if this pattern of checks repeats.
    fn steps_down_after(lost: &[bool]) -> Option<usize> {
        let mut loss = QuorumLoss { missed_checks: 0, every: Duration::ZERO };
        let checks = lost.iter().cycle().take(1000);
        checks.enumerate().find_map(|(at, lost)| loss.count(LEASES_HELD, *lost).then_some(at + 1))
    }

    #[test]
    fn a_leader_that_has_its_lease_for_a_quarter_of_the_time_steps_down_and_one_that_rarely_loses_it_stays()
     {
        let enough = (LEASES_HELD * CHECKS_PER_LEASE) as usize;
        assert_eq!(steps_down_after(&[true]), Some(enough));
        let quarter = steps_down_after(&[true, true, true, false]).expect("it steps down");
        assert!(quarter < 4 * enough, "{quarter}");
        assert_eq!(steps_down_after(&[true, true, false]), None, "it works a third of the time");
        assert_eq!(steps_down_after(&[true, false]), None);
        assert_eq!(steps_down_after(&[false]), None);
    }

    #[test]
    fn a_quorum_that_is_back_clears_the_count_however_long_it_was_away() {
        let mut loss = QuorumLoss { missed_checks: 0, every: Duration::ZERO };
        for _ in 0..1000 {
            loss.count(LEASES_HELD, true);
        }
        for _ in 0..LEASES_HELD * CHECKS_PER_LEASE / CHECKS_FORGIVEN {
            loss.count(LEASES_HELD, false);
        }
        assert_eq!(loss.missed_checks, 0);
    }
}
