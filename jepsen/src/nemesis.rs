//! What breaks things: faults drawn from a seed, one or two at a time, a quarter of the time none.
//!
//! *Invariant:* the seed decides kinds and durations; who leads by then decides on whom. Each fault
//! is probed, and whatever a probe did not see counts for nothing. At the end everything is healed
//! and every member runs.
//!
//! Absent: faults of clocks, disks and power.

use crate::events::What;
use crate::fleet::Fleet;
use crate::observe::Observers;
use crate::recorder::Recorder;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::time::{Duration, Instant};

/// How long a fault waits for a leader.
const LEADER_WAIT: Duration = Duration::from_secs(8);

/// A family of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Family {
    /// Links that pass nothing
    Partition,
    /// kill -9, and a start later
    Kill,
    /// SIGSTOP beyond election and lease time
    Pause,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    LeaderMinority,
    LeaderMajority,
    Bridge,
    OneWay,
    ClientsCut,
    KillLeader,
    KillMinority,
    KillAll,
    PauseLeader,
    PauseMinority,
}

impl Kind {
    fn of(family: Family) -> &'static [Kind] {
        match family {
            Family::Partition => &[
                Kind::LeaderMinority,
                Kind::LeaderMajority,
                Kind::Bridge,
                Kind::OneWay,
                Kind::ClientsCut,
            ],
            Family::Kill => &[Kind::KillLeader, Kind::KillMinority, Kind::KillAll],
            Family::Pause => &[Kind::PauseLeader, Kind::PauseMinority],
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::LeaderMinority => "partition-leader-minority",
            Kind::LeaderMajority => "partition-leader-majority",
            Kind::Bridge => "partition-bridge",
            Kind::OneWay => "partition-one-way",
            Kind::ClientsCut => "partition-clients",
            Kind::KillLeader => "kill-leader",
            Kind::KillMinority => "kill-minority",
            Kind::KillAll => "kill-all",
            Kind::PauseLeader => "pause-leader",
            Kind::PauseMinority => "pause-minority",
        }
    }
}

/// What has to be undone.
enum Undo {
    Open(Vec<(String, String)>),
    Start(Vec<usize>),
    Resume(Vec<usize>),
}

/// Most faults are on the leader or on the others: waits until there is one, but not for ever.
async fn await_leader(watch: &Observers) {
    let begun = Instant::now();
    while watch.leader().is_none() && begun.elapsed() < LEADER_WAIT {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// See the module.
pub struct Nemesis {
    /// Whom it torments.
    pub fleet: Fleet,
    clients: Vec<String>,
    rng: StdRng,
    families: Vec<Family>,
    /// Faults that every run has, first.
    due: Vec<Kind>,
    next_id: u64,
}

impl Nemesis {
    /// Over the members of `fleet` and the links of `clients`.
    pub fn new(fleet: Fleet, clients: &[&str], families: &[Family], seed: u64) -> Self {
        let mut due = Vec::new();
        // Taken from the end.
        if families.contains(&Family::Pause) {
            due.push(Kind::PauseLeader);
        }
        if families.contains(&Family::Kill) {
            due.push(Kind::KillLeader);
        }
        if families.contains(&Family::Partition) {
            due.extend([Kind::LeaderMajority, Kind::LeaderMinority]);
        }
        Self {
            fleet,
            clients: clients.iter().map(|&name| name.to_owned()).collect(),
            rng: StdRng::seed_from_u64(seed),
            families: families.to_vec(),
            due,
            next_id: 0,
        }
    }

    /// Torments until `until`, and heals everything.
    ///
    /// # Errors
    /// When a member cannot be started again.
    pub async fn run(
        &mut self,
        watch: &Observers,
        recorder: &Recorder,
        until: Instant,
    ) -> Result<()> {
        while Instant::now() < until && !self.families.is_empty() {
            let hold = Duration::from_millis(self.rng.random_range(2500..5000));
            if self.due.is_empty() && self.rng.random_ratio(1, 4) {
                tokio::time::sleep(hold.min(until.saturating_duration_since(Instant::now()))).await;
                continue;
            }
            await_leader(watch).await;
            let mut undo = Vec::new();
            for kind in self.draw() {
                undo.push(self.begin(kind, watch, recorder).await?);
            }
            tokio::time::sleep(hold).await;
            for (id, undo) in undo.into_iter().rev() {
                self.undo(undo)?;
                recorder.event(What::Healed { id });
            }
            self.revive(recorder)?;
            let gap = Duration::from_millis(self.rng.random_range(800..2000));
            tokio::time::sleep(gap).await;
        }
        self.revive(recorder)
    }

    fn draw(&mut self) -> Vec<Kind> {
        if let Some(kind) = self.due.pop() {
            return vec![kind];
        }
        let mut families = self.families.clone();
        let mut drawn = Vec::new();
        let count = if self.rng.random_ratio(1, 3) { 2 } else { 1 };
        while drawn.len() < count && !families.is_empty() {
            let at = self.rng.random_range(0..families.len());
            drawn.extend(Kind::of(families.remove(at)).choose(&mut self.rng));
        }
        drawn
    }

    async fn begin(
        &mut self,
        kind: Kind,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<(u64, Undo)> {
        let others = |this: usize| (0..3).filter(move |at| *at != this);
        let leader = watch.leader();
        let anybody = self.rng.random_range(0..3);
        let one = leader.unwrap_or(anybody);
        let follower = others(one).nth(self.rng.random_range(0..2)).unwrap_or(one);
        let coin = self.rng.random_bool(0.5);
        let (on, proven, undo) = match kind {
            Kind::KillLeader => self.kill(&[one]),
            Kind::KillMinority => self.kill(&[follower]),
            Kind::KillAll => self.kill(&[0, 1, 2]),
            Kind::PauseLeader => self.pause(one)?,
            Kind::PauseMinority => self.pause(follower)?,
            Kind::LeaderMinority => self.cut(others(one).flat_map(|o| [(one, o), (o, one)])),
            Kind::LeaderMajority => {
                self.cut(others(follower).flat_map(|o| [(follower, o), (o, follower)]))
            }
            Kind::Bridge => {
                let ends: Vec<usize> = others(if coin { one } else { follower }).collect();
                self.cut([(ends[0], ends[1]), (ends[1], ends[0])].into_iter())
            }
            Kind::OneWay => self.cut(others(one).map(|o| if coin { (one, o) } else { (o, one) })),
            Kind::ClientsCut => self.cut_clients(one),
        };
        // Which side the leader is on is proven only if there was one.
        let proven = proven && (leader.is_some() || !kind.name().contains("leader"));
        self.next_id += 1;
        let id = self.next_id;
        println!("{:>6.1} s  {} on {on}", recorder.now_ns() as f64 / 1e9, kind.name());
        recorder.event(What::Fault { id, kind: kind.name().into(), on, proven });
        Ok((id, undo))
    }

    fn names(&self, of: &[usize]) -> String {
        of.iter().map(|at| self.fleet.places[*at].name.as_str()).collect::<Vec<_>>().join(",")
    }

    fn kill(&mut self, of: &[usize]) -> (String, bool, Undo) {
        // A member that the other fault of the pair holds already is killed all the same.
        let killed = of.iter().filter(|at| self.fleet.kill(**at)).count();
        (self.names(of), killed == of.len(), Undo::Start(of.to_vec()))
    }

    fn pause(&mut self, of: usize) -> Result<(String, bool, Undo)> {
        let stopped = self.fleet.runs(of) && self.fleet.process(of)?.pause().unwrap_or(false);
        Ok((self.names(&[of]), stopped, Undo::Resume(vec![of])))
    }

    fn cut(&self, pairs: impl Iterator<Item = (usize, usize)>) -> (String, bool, Undo) {
        let name = |at: usize| self.fleet.places[at].name.clone();
        self.shut(pairs.map(|(from, to)| (name(from), name(to))).collect())
    }

    fn cut_clients(&self, from: usize) -> (String, bool, Undo) {
        let member = &self.fleet.places[from].name;
        let pairs = self.clients.iter().flat_map(|client| {
            [(client.clone(), member.clone()), (member.clone(), client.clone())]
        });
        self.shut(pairs.collect())
    }

    fn shut(&self, pairs: Vec<(String, String)>) -> (String, bool, Undo) {
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
        (on.join(","), proven, Undo::Open(pairs))
    }

    fn undo(&mut self, undo: Undo) -> Result<()> {
        match undo {
            Undo::Open(pairs) => {
                pairs.iter().for_each(|(from, to)| self.fleet.network.set(from, to, false));
            }
            Undo::Resume(of) => {
                for at in of {
                    if self.fleet.runs(at) {
                        self.fleet.process(at)?.resume()?;
                    }
                }
            }
            Undo::Start(of) => {
                for at in of {
                    if !self.fleet.runs(at) {
                        self.fleet.start_member(at)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Starts members that ended by themselves, and tells of them.
    fn revive(&mut self, recorder: &Recorder) -> Result<()> {
        for at in 0..self.fleet.places.len() {
            if let Some((status, panicked)) = self.fleet.died(at) {
                let member = self.fleet.places[at].name.clone();
                recorder.event(What::Died { member, status: status.to_string(), panicked });
            }
            if !self.fleet.runs(at) {
                self.fleet.start_member(at)?;
            }
        }
        Ok(())
    }
}
