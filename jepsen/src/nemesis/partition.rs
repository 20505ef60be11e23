//! Shuts links, and probes each shut direction.

use super::{Effect, Nemesis, Undo};

impl Nemesis {
    /// Shuts these directions between members.
    pub(super) fn cut(&self, pairs: impl Iterator<Item = (usize, usize)>) -> Effect {
        self.shut(self.directions(pairs))
    }

    /// These directions between members, by the members' names.
    pub(super) fn directions(
        &self,
        pairs: impl Iterator<Item = (usize, usize)>,
    ) -> Vec<(String, String)> {
        let name = |at: usize| self.fleet.members[at].name.clone();
        pairs.map(|(from, to)| (name(from), name(to))).collect()
    }

    /// Shuts a member off from all clients, both ways.
    pub(super) fn cut_clients(&self, from: usize) -> Effect {
        let member = &self.fleet.members[from].name;
        let pairs = self.clients.iter().flat_map(|client| {
            [(client.clone(), member.clone()), (member.clone(), client.clone())]
        });
        self.shut(pairs.collect())
    }

    fn shut(&self, pairs: Vec<(String, String)>) -> Effect {
        self.close(&pairs);
        let proven = self.are_closed(&pairs);
        let on: Vec<String> = pairs.iter().map(|(from, to)| format!("{from}>{to}")).collect();
        Effect { on: on.join(","), proven, undo: Undo::Open(pairs) }
    }

    /// Shuts these directions at once; proving it takes longer.
    pub(super) fn close(&self, pairs: &[(String, String)]) {
        pairs.iter().for_each(|(from, to)| self.fleet.network.set(from, to, true));
    }

    /// Whether a round trip through each dialed link fails.
    pub(super) fn are_closed(&self, pairs: &[(String, String)]) -> bool {
        let network = &self.fleet.network;
        let probes: Vec<bool> = std::thread::scope(|scope| {
            let probe = |(from, to): &(String, String)| {
                let (from, to) = (from.clone(), to.clone());
                scope.spawn(move || network.probe_cut(&from, &to))
            };
            let started: Vec<_> = pairs.iter().map(probe).collect();
            started.into_iter().filter_map(|probe| probe.join().ok().flatten()).collect()
        });
        !probes.is_empty() && probes.iter().all(|cut| *cut)
    }

    pub(super) fn open(&self, pairs: &[(String, String)]) {
        pairs.iter().for_each(|(from, to)| self.fleet.network.set(from, to, false));
    }
}
