//! Adds latency between members: links pass every byte, later.
//!
//! *Invariant:* a latency fault counts only once a round trip through each affected link took that long.

use super::{Effect, Nemesis, Undo};
use crate::delay::OneWay;
use crate::network::Probed;
use rand::Rng;
use rollout_config::coordinator::Profile;
use std::time::Duration;

/// The profile that members of these runs use.
const PROFILE: Profile = Profile::Near;

impl Nemesis {
    /// All members as far from each other as their profile allows, with jitter.
    pub(super) fn far(&self) -> Effect {
        self.spread(all_pairs(), OneWay::of_rtt_with_jitter(PROFILE.rtt_max()))
    }

    /// All members further from each other than their profile allows.
    pub(super) fn too_far(&mut self) -> Effect {
        let rtt = self.beyond();
        self.spread(all_pairs(), OneWay::of_rtt(rtt))
    }

    /// One link between two members with more latency than their profile allows.
    pub(super) fn long_link(&mut self, a: usize, b: usize) -> Effect {
        let rtt = self.beyond();
        self.spread(vec![(a, b), (b, a)], OneWay::of_rtt(rtt))
    }

    /// Latencies between all members that change from one moment to the next, within the limit and beyond.
    pub(super) fn swinging(&self) -> Effect {
        let one_way = OneWay { least: Duration::from_millis(2), most: 3 * PROFILE.rtt_max() };
        self.spread(all_pairs(), one_way)
    }

    fn beyond(&mut self) -> Duration {
        PROFILE.rtt_max() * self.rng.random_range(7..15)
    }

    fn spread(&self, pairs: Vec<(usize, usize)>, one_way: OneWay) -> Effect {
        let name = |at: usize| self.fleet.members[at].name.clone();
        let pairs: Vec<_> = pairs.into_iter().map(|(from, to)| (name(from), name(to))).collect();
        let network = &self.fleet.network;
        pairs.iter().for_each(|(from, to)| network.set_distance(from, to, one_way));
        let probes: Vec<Probed> = std::thread::scope(|scope| {
            let probe = |(from, to): &(String, String)| {
                let (from, to) = (from.clone(), to.clone());
                scope.spawn(move || network.probe_rtt(&from, &to))
            };
            let started: Vec<_> = pairs.iter().map(probe).collect();
            let ended = started.into_iter().map(|probe| probe.join());
            ended.filter_map(|found| found.unwrap_or(Some(Probed::NoAnswer))).collect()
        });
        let proven = proven(&probes, one_way);
        let links: Vec<String> = pairs.iter().map(|(from, to)| format!("{from}>{to}")).collect();
        let (least, most) = (2 * one_way.least.as_millis(), 2 * one_way.most.as_millis());
        let on = format!("{} ({least} to {most} ms)", links.join(","));
        Effect { on, proven, undo: Undo::Approach(pairs) }
    }

    pub(super) fn approach(&self, pairs: &[(String, String)]) {
        let network = &self.fleet.network;
        pairs.iter().for_each(|(from, to)| network.set_distance(from, to, OneWay::default()));
    }
}

/// Whether each dialed link took this long. A link that never answered does not count.
fn proven(probes: &[Probed], one_way: OneWay) -> bool {
    let long = |found: &Probed| match found {
        Probed::Took(rtt) => *rtt >= 2 * one_way.least,
        Probed::NoAnswer => false,
    };
    !probes.is_empty() && probes.iter().all(long)
}

fn all_pairs() -> Vec<(usize, usize)> {
    let pairs = (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distance_is_proven_by_every_link_and_one_that_never_answered_proves_nothing() {
        let ms = Duration::from_millis;
        let (far, took) = (OneWay::of_rtt(ms(40)), |rtt| Probed::Took(ms(rtt)));
        assert!(proven(&[took(40), took(47)], far));
        assert!(!proven(&[took(40), took(39)], far));
        assert!(!proven(&[took(40), Probed::NoAnswer], far));
        assert!(!proven(&[], far));
    }
}
