//! Restarts followers within the lease of a leader that is cut off from them.
//!
//! *Invariant:* the fault counts only if every link from the leader to a member was shut, both followers were killed,
//! and both were back while the leader could still read under its lease. A follower that has lost its promise by then
//! helps to elect another leader while the old one still reads; clients that each read from one member observe that.
//! Absent: leases that are long enough for this; see [`LEASE_MS`].

use super::{Effect, Nemesis, Undo};
use crate::fleet::{LEASE_MS, MEMBERS};
use crate::observe::Observers;
use anyhow::Result;
use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Time from the cut within which both followers must be back: the leader reads for three tenths of a lease more.
const BACK_LIMIT: Duration = Duration::from_millis(LEASE_MS / 2);
/// How long to wait for another leader: followers keep their promises for one lease, and two that ask for votes at
/// the same moment ask again within another lease.
const ELECTED_LIMIT: Duration = Duration::from_millis(2 * LEASE_MS + 4000);
const POLL: Duration = Duration::from_millis(20);

/// The decisions of the seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Schedule {
    /// The followers, in the order in which they are started again.
    followers: [usize; 2],
    /// From the cut to the kills: time for the leader's last messages to arrive at both followers, so that either can
    /// be elected.
    settles: Duration,
    /// From one start to the other: two followers that ask for votes at the same moment elect no leader.
    apart: Duration,
}

impl Schedule {
    fn draw(leader: usize, rng: &mut StdRng) -> Self {
        let mut followers = [(leader + 1) % MEMBERS, (leader + 2) % MEMBERS];
        followers.shuffle(rng);
        let mut ms = |range: std::ops::Range<u64>| Duration::from_millis(rng.random_range(range));
        Self { followers, settles: ms(10..40), apart: ms(50..150) }
    }

    /// All links of the leader to members, both ways.
    fn directions(&self) -> impl Iterator<Item = (usize, usize)> {
        let leader = (0..MEMBERS).find(|at| !self.followers.contains(at)).unwrap_or_default();
        self.followers.into_iter().flat_map(move |at| [(leader, at), (at, leader)])
    }
}

impl Nemesis {
    /// Cuts a leader off from both followers, restarts these at once, and waits until one of them leads.
    pub(super) async fn restart_within_lease(
        &mut self,
        leader: usize,
        watch: &Observers,
    ) -> Result<Effect> {
        let schedule = Schedule::draw(leader, &mut self.rng);
        let [first, second] = schedule.followers;
        let links = self.directions(schedule.directions());
        let cut = Instant::now();
        self.close(&links);
        tokio::time::sleep(schedule.settles).await;
        let killed = self.kill(&schedule.followers).proven;
        self.fleet.start_member(first)?;
        tokio::time::sleep(schedule.apart).await;
        self.fleet.start_member(second)?;
        let mut proven = killed;
        for at in schedule.followers {
            proven &= self.answers_by(at, cut + BACK_LIMIT, watch).await;
        }
        // Probe now: the links stay shut, and probes take longer than a restart.
        proven &= self.are_closed(&links);
        self.until_another_leads(leader, watch).await;
        let on =
            format!("{} ({} restarted)", self.names(&[leader]), self.names(&schedule.followers));
        Ok(Effect { on, proven, undo: Undo::Open(links) })
    }

    /// Whether the present process of a member answers before `limit`.
    async fn answers_by(&self, at: usize, limit: Instant, watch: &Observers) -> bool {
        let life = self.fleet.members[at].lives.load(Ordering::Relaxed);
        while Instant::now() < limit {
            if watch.life(at) == Some(life) {
                return true;
            }
            tokio::time::sleep(POLL).await;
        }
        false
    }

    /// Keeps the links shut until clients can write again: a run must accept writes under its faults.
    async fn until_another_leads(&self, leader: usize, watch: &Observers) {
        let begun = Instant::now();
        while begun.elapsed() < ELECTED_LIMIT && watch.leader().is_none_or(|at| at == leader) {
            tokio::time::sleep(POLL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use std::collections::BTreeSet;

    fn schedules(leader: usize, seed: u64) -> Vec<Schedule> {
        let mut rng = StdRng::seed_from_u64(seed);
        (0..40).map(|_| Schedule::draw(leader, &mut rng)).collect()
    }

    #[test]
    fn the_seed_decides_the_restart_order_and_the_leader_never_restarts() {
        for leader in 0..MEMBERS {
            let drawn = schedules(leader, 7);
            assert_eq!(drawn, schedules(leader, 7));
            assert_ne!(drawn, schedules(leader, 8));
            let orders: BTreeSet<_> = drawn.iter().map(|one| one.followers).collect();
            assert_eq!(orders.len(), 2, "either follower is the first");
            assert!(orders.iter().all(|order| !order.contains(&leader)));
        }
    }

    #[test]
    fn all_links_of_the_leader_to_members_are_shut_and_its_followers_still_hear_each_other() {
        for leader in 0..MEMBERS {
            let others = (0..MEMBERS).filter(|at| *at != leader);
            let expected: BTreeSet<_> =
                others.flat_map(|at| [(leader, at), (at, leader)]).collect();
            for schedule in schedules(leader, 7) {
                let shut: BTreeSet<_> = schedule.directions().collect();
                assert_eq!(shut, expected);
            }
        }
    }

    #[test]
    fn a_proven_restart_leaves_a_leader_that_is_cut_off_more_than_a_second_of_its_lease() {
        for schedule in schedules(0, 7) {
            assert!(schedule.settles + schedule.apart < BACK_LIMIT);
        }
        let lease = Duration::from_millis(LEASE_MS);
        assert!(BACK_LIMIT + Duration::from_secs(1) < lease * 4 / 5);
        assert!(lease < ELECTED_LIMIT, "a follower that keeps its promise is elected after it");
    }
}
