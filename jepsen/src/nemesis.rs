//! Injects faults, drawn from a seed, one or two at a time; one turn in four is quiet.
//!
//! *Invariant:* the seed decides kinds and durations; the current leader decides which member a fault hits. Each
//! fault is probed, and a fault that no probe saw counts for nothing. At the end everything is healed and every
//! member runs.

mod bitflip;
mod clock;
mod disk;
mod kind;
mod latency;
mod lease;
mod membership;
mod partition;
mod power;
mod processes;
mod rolling;
mod snapshot;
mod upgrade;

pub use crate::family::Family;
pub(crate) use kind::required;

use self::bitflip::Flip;
use self::kind::Kind;
use crate::events::{EventKind, PORT_TAKEN};
use crate::fleet::{Death, Fleet, MEMBERS};
use crate::observe::{self, Observers};
use crate::recorder::Recorder;
use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rollout_powerloss::DiskFault;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a fault waits for a leader, and how long if another fault may have removed it.
const LEADER_WAIT: Duration = Duration::from_secs(8);
const OTHER_WAIT: Duration = Duration::from_secs(2);

/// What must be undone.
enum Undo {
    Open(Vec<(String, String)>),
    /// Links with latency are fast again.
    Approach(Vec<(String, String)>),
    Start(Vec<usize>),
    Resume(Vec<usize>),
    SetClocks(Vec<String>),
    Repair(String),
    Mend(Flip),
    /// The three original members are the members again, behind open links.
    Restore(Vec<(String, String)>),
    /// The member comes back only when the log no longer has the entries that it lacks.
    Outdated {
        member: usize,
        /// It loses power while it catches up.
        interrupted: bool,
        undo: Box<Undo>,
    },
}

/// The effect of a fault.
struct Effect {
    on: String,
    /// A probe confirmed it.
    proven: bool,
    undo: Undo,
}

pub struct Nemesis {
    /// The fleet that it injects faults into.
    pub fleet: Fleet,
    clients: Vec<String>,
    rng: StdRng,
    families: Vec<Family>,
    /// Faults that every run must have; they come first.
    due: Vec<Kind>,
    /// Which of the next turns are quiet: one of four.
    turns: Vec<bool>,
    next_id: u64,
    /// Members that have lost their disks, and the ids that were lost with them.
    lost: BTreeMap<usize, u64>,
    /// The cluster's version may have been raised.
    raised: bool,
}

impl Nemesis {
    /// A nemesis for the members of `fleet` and the links of `clients`.
    pub fn new(fleet: Fleet, clients: &[&str], families: &[Family], seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut due: Vec<Kind> = families.iter().flat_map(|f| Kind::due(*f)).copied().collect();
        due.shuffle(&mut rng);
        // The last one comes first. There is no way back from a raise of the version.
        due.sort_by_key(|kind| *kind != Kind::UpgradeVersion);
        Self {
            fleet,
            clients: clients.iter().map(|&name| name.to_owned()).collect(),
            rng,
            families: families.to_vec(),
            due,
            turns: Vec::new(),
            next_id: 0,
            lost: BTreeMap::new(),
            raised: false,
        }
    }

    /// Injects faults until `until`, and heals everything.
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
            if self.turns.is_empty() {
                self.turns.extend([true, false, false, false]);
                self.turns.shuffle(&mut self.rng);
            }
            if self.turns.pop() == Some(true) {
                tokio::time::sleep(hold.min(until.saturating_duration_since(Instant::now()))).await;
                continue;
            }
            self.record_deaths(recorder);
            let mut undo = Vec::new();
            for kind in self.draw() {
                let wait = if undo.is_empty() { LEADER_WAIT } else { OTHER_WAIT };
                let leader = self.leader(watch, wait).await;
                undo.push(self.begin(kind, leader, watch, recorder).await?);
            }
            tokio::time::sleep(hold).await;
            // Restore the membership last, when no other fault holds a member.
            undo.sort_by_key(|(_, undo)| !matches!(undo, Undo::Restore(_)));
            for (id, undo) in undo.into_iter().rev() {
                self.end(id, undo, watch, recorder).await?;
                recorder.event(EventKind::Healed { id });
            }
            self.revive(recorder)?;
            // Required faults follow each other more closely, so that they fit into one run.
            let gap = if self.due.is_empty() { 800..2000 } else { 300..800 };
            let gap = Duration::from_millis(self.rng.random_range(gap));
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
        // Only the bit-flip fault itself restarts a damaged member.
        if let Some(&flip) = drawn.iter().find(|kind| Kind::of(Family::Bitflip).contains(kind)) {
            return vec![flip];
        }
        drawn
    }

    /// Waits for a member that leads and confirms it when asked now: most faults hit either the leader or the other
    /// members.
    async fn leader(&self, watch: &Observers, limit: Duration) -> Option<usize> {
        let begun = Instant::now();
        loop {
            if let Some(at) = watch.leader()
                && observe::leads(&self.fleet, at).await
            {
                return Some(at);
            }
            if begun.elapsed() > limit {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Injects a fault. Returns its number, and how to end it.
    async fn begin(
        &mut self,
        kind: Kind,
        leader: Option<usize>,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<(u64, Undo)> {
        let effect = self.inject(kind, leader, watch, recorder).await?;
        // An effect on the leader is proven only if there was a leader.
        let proven = effect.proven && (leader.is_some() || !kind.name().contains("leader"));
        self.next_id += 1;
        let (id, on, name) = (self.next_id, effect.on, kind.name());
        println!("{:>6.1} s  {name} on {on}", recorder.now_ns() as f64 / 1e9);
        recorder.event(EventKind::Fault { id, kind: name.into(), on, proven });
        Ok((id, effect.undo))
    }

    /// Without a leader, a random member takes its part.
    async fn inject(
        &mut self,
        kind: Kind,
        leader: Option<usize>,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<Effect> {
        let others = |this: usize| (0..3).filter(move |at| *at != this);
        let anybody = self.rng.random_range(0..3);
        let one = leader.unwrap_or(anybody);
        let follower = others(one).nth(self.rng.random_range(0..2)).unwrap_or(one);
        let coin = self.rng.random_bool(0.5);
        let either = if coin { one } else { follower };
        let both_ways = |this: usize| others(this).flat_map(move |o| [(this, o), (o, this)]);
        Ok(match kind {
            Kind::KillLeader => self.kill(&[one]),
            Kind::KillMinority => self.kill(&[follower]),
            Kind::KillAll => self.kill(&[0, 1, 2]),
            Kind::PauseLeader => self.pause(one)?,
            Kind::PauseMinority => self.pause(follower)?,
            Kind::LeaderMinority => self.cut(both_ways(one)),
            Kind::LeaderMajority => self.cut(both_ways(follower)),
            Kind::Bridge => {
                let ends: Vec<usize> = others(either).collect();
                self.cut([(ends[0], ends[1]), (ends[1], ends[0])].into_iter())
            }
            Kind::OneWay => self.cut(others(one).map(|o| if coin { (one, o) } else { (o, one) })),
            Kind::ClientsCut => self.cut_clients(one),
            Kind::PowerLeader => self.cut_power(&[one], recorder)?,
            Kind::PowerMinority => self.cut_power(&[follower], recorder)?,
            Kind::PowerAll => self.cut_power(&[0, 1, 2], recorder)?,
            Kind::ClockLeader => self.jump(&[one]).await?,
            Kind::ClockMinority => self.jump(&[follower]).await?,
            Kind::ClockAll => self.jump(&[0, 1, 2]).await?,
            Kind::DiskSlow => {
                let ms = self.rng.random_range(200..2000);
                self.spoil(either, DiskFault::SlowSync(ms)).await?
            }
            Kind::DiskSyncFails => self.spoil(either, DiskFault::SyncFails).await?,
            Kind::DiskWriteFails => self.spoil(either, DiskFault::WriteFails).await?,
            Kind::DiskFull => self.spoil(either, DiskFault::Full).await?,
            Kind::BitflipLeader => self.flip(one)?,
            Kind::BitflipMinority => self.flip(follower)?,
            Kind::SnapshotCut | Kind::SnapshotInterrupted => {
                let away = self.cut(both_ways(follower));
                self.until_purged(follower, away, matches!(kind, Kind::SnapshotInterrupted))
            }
            Kind::SnapshotKilled => {
                let away = self.kill(&[follower]);
                self.until_purged(follower, away, false)
            }
            Kind::SnapshotLeaderCut => {
                let away = self.cut(both_ways(one));
                self.until_purged(one, away, false)
            }
            Kind::LatencyLimit => self.far(),
            Kind::LatencyBeyond => self.too_far(),
            Kind::LatencyLink => self.long_link(one, follower),
            Kind::LatencySwings => self.swinging(),
            Kind::RollingRestart => self.roll(watch, recorder).await?,
            Kind::MembershipFive => self.grow(watch).await?,
            Kind::MembershipReplace => self.replace(follower, watch).await?,
            Kind::MembershipLeader => self.remove_leader(one, watch).await?,
            Kind::MembershipCut => self.change_while_cut(follower, watch).await?,
            Kind::LeaseLeaderCut => self.restart_within_lease(one, watch).await?,
            Kind::UpgradeMembers => self.upgrade_members(watch, recorder).await?,
            Kind::UpgradeVersion => self.upgrade_version(watch, recorder).await?,
        })
    }

    fn names(&self, of: &[usize]) -> String {
        of.iter().map(|at| self.fleet.members[*at].name.as_str()).collect::<Vec<_>>().join(",")
    }

    fn undo(&mut self, undo: Undo, watch: &Observers, recorder: &Recorder) -> Result<()> {
        match undo {
            Undo::Open(pairs) => self.open(&pairs),
            Undo::Approach(pairs) => self.approach(&pairs),
            Undo::Resume(of) => self.resume(&of)?,
            Undo::Start(of) => self.start(&of)?,
            Undo::SetClocks(of) => self.set_clocks(&of)?,
            Undo::Repair(name) => self.repair(&name)?,
            Undo::Mend(flip) => self.mend(&flip, watch, recorder)?,
            Undo::Outdated { undo, .. } => self.undo(*undo, watch, recorder)?,
            Undo::Restore(pairs) => self.open(&pairs),
        }
        Ok(())
    }

    async fn end(
        &mut self,
        id: u64,
        undo: Undo,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<()> {
        if let Undo::Restore(pairs) = undo {
            self.open(&pairs);
            return self.restore(watch, recorder).await;
        }
        let Undo::Outdated { member, interrupted, undo } = undo else {
            return self.undo(undo, watch, recorder);
        };
        if self.outdated(member, watch).await {
            recorder.event(EventKind::Proven { id });
        }
        self.undo(*undo, watch, recorder)?;
        if interrupted {
            self.interrupt(member, recorder).await?;
        }
        Ok(())
    }

    /// Starts members that exited by themselves, and records them.
    fn revive(&mut self, recorder: &Recorder) -> Result<()> {
        self.record_deaths(recorder);
        for at in (0..MEMBERS).filter(|at| !self.fleet.runs(*at)).collect::<Vec<_>>() {
            self.fleet.start_member(at)?;
        }
        Ok(())
    }

    /// Records members that exited by themselves, each once.
    pub fn record_deaths(&mut self, recorder: &Recorder) {
        for death in self.fleet.deaths() {
            self.record_death(&death, recorder);
        }
    }

    fn record_death(&self, death: &Death, recorder: &Recorder) {
        let member = self.fleet.members[death.at].name.clone();
        let panicked = death.panicked;
        let status = match death.port_taken {
            true => format!("{}, {PORT_TAKEN}", death.status),
            false => death.status.to_string(),
        };
        recorder.event_since(death.seen, EventKind::Died { member, status, panicked });
    }
}
