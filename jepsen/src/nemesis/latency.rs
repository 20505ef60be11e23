//! Members at a distance: links between them that pass everything, later.
//!
//! *Invariant:* a distance counts only once a round trip through each link was seen to take as long.

use super::{Effect, Nemesis, Undo};
use crate::delay::OneWay;
use rand::Rng;
use rollout_proto::Profile;
use std::time::Duration;

/// What members of these runs are configured for.
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

    /// One link between two members longer than their profile allows.
    pub(super) fn long_link(&mut self, a: usize, b: usize) -> Effect {
        let rtt = self.beyond();
        self.spread(vec![(a, b), (b, a)], OneWay::of_rtt(rtt))
    }

    /// Distances between all members that change from one moment to the next, within the limit and beyond.
    pub(super) fn swinging(&self) -> Effect {
        let one_way = OneWay { least: Duration::from_millis(2), most: 3 * PROFILE.rtt_max() };
        self.spread(all_pairs(), one_way)
    }

    fn beyond(&mut self) -> Duration {
        PROFILE.rtt_max() * self.rng.random_range(7..15)
    }

    fn spread(&self, pairs: Vec<(usize, usize)>, one_way: OneWay) -> Effect {
        let name = |at: usize| self.fleet.places[at].name.clone();
        let pairs: Vec<_> = pairs.into_iter().map(|(from, to)| (name(from), name(to))).collect();
        let network = &self.fleet.network;
        pairs.iter().for_each(|(from, to)| network.set_distance(from, to, one_way));
        let probes: Vec<Duration> = std::thread::scope(|scope| {
            let probe = |(from, to): &(String, String)| {
                let (from, to) = (from.clone(), to.clone());
                scope.spawn(move || network.probe_rtt(&from, &to))
            };
            let started: Vec<_> = pairs.iter().map(probe).collect();
            started.into_iter().filter_map(|probe| probe.join().ok().flatten()).collect()
        });
        let proven = !probes.is_empty() && probes.iter().all(|rtt| *rtt >= 2 * one_way.least);
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

fn all_pairs() -> Vec<(usize, usize)> {
    let pairs = (0..3).flat_map(|from| (0..3).map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).collect()
}
