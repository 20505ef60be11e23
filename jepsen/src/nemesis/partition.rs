//! Links that pass nothing, each shut direction probed.

use super::{Effect, Nemesis, Undo};

impl Nemesis {
    /// Shuts these directions between members.
    pub(super) fn cut(&self, pairs: impl Iterator<Item = (usize, usize)>) -> Effect {
        let name = |at: usize| self.fleet.places[at].name.clone();
        self.shut(pairs.map(|(from, to)| (name(from), name(to))).collect())
    }

    /// Shuts a member off from all clients, both ways.
    pub(super) fn cut_clients(&self, from: usize) -> Effect {
        let member = &self.fleet.places[from].name;
        let pairs = self.clients.iter().flat_map(|client| {
            [(client.clone(), member.clone()), (member.clone(), client.clone())]
        });
        self.shut(pairs.collect())
    }

    fn shut(&self, pairs: Vec<(String, String)>) -> Effect {
        let network = &self.fleet.network;
        pairs.iter().for_each(|(from, to)| network.set(from, to, true));
        let probes: Vec<bool> = std::thread::scope(|scope| {
            let probe = |(from, to): &(String, String)| {
                let (from, to) = (from.clone(), to.clone());
                scope.spawn(move || network.probe_cut(&from, &to))
            };
            let started: Vec<_> = pairs.iter().map(probe).collect();
            started.into_iter().filter_map(|probe| probe.join().ok().flatten()).collect()
        });
        let proven = !probes.is_empty() && probes.iter().all(|cut| *cut);
        let on: Vec<String> = pairs.iter().map(|(from, to)| format!("{from}>{to}")).collect();
        Effect { on: on.join(","), proven, undo: Undo::Open(pairs) }
    }

    pub(super) fn open(&self, pairs: &[(String, String)]) {
        pairs.iter().for_each(|(from, to)| self.fleet.network.set(from, to, false));
    }
}
