use super::*;
use crate::kernel::id::CoordEpoch;
use crate::machine::command::{Body, Command, OpKind};
use crate::machine::ledger::EntryId;
use crate::training::dataset::{DatasetOp, DatasetSpec};
use crate::training::shard::ShardOp;
use crate::training::shard_ring::{LOOK_UPS, POINTS};

fn job() -> JobName {
    JobName { namespace: "default".into(), job: "j".into() }
}

struct Cluster {
    ledger: Ledger,
    index: u64,
}

impl Cluster {
    /// A cluster with a dataset of this many shards.
    fn new(shards: u32) -> Self {
        let mut cluster = Self { ledger: Ledger::new([1; 16]), index: 0 };
        cluster.command(0, Body::OpenEpoch);
        let (samples, uri) = (shards.into(), "u".into());
        let spec = DatasetSpec { uri, samples, shard_samples: 1, ..DatasetSpec::default() };
        let (namespace, name) = ("default".into(), "d".into());
        let create = DatasetOp::Create { namespace, name, spec: Box::new(spec) };
        cluster.ops(vec![OpKind::Dataset(create)]);
        cluster
    }

    /// The replies, and how often an owner was asked for.
    fn command(&mut self, at: u64, body: Body) -> (Vec<Reply>, u64) {
        self.index += 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(at), wall_ms: at, body };
        let entry = EntryId { index: self.index, term: 1 };
        let before = LOOK_UPS.get();
        let replies = self.ledger.apply(entry, &command.encode()).expect("a known command");
        let refused = replies.iter().find(|reply| matches!(reply, Reply::Rejected(_)));
        assert!(refused.is_none(), "{refused:?}");
        (replies, LOOK_UPS.get() - before)
    }

    fn ops(&mut self, kinds: Vec<OpKind>) -> (Vec<Reply>, u64) {
        self.command(0, Body::Ops(kinds.into_iter().map(Into::into).collect()))
    }

    /// They join in one command.
    fn join(&mut self, numbers: std::ops::Range<usize>) -> (Vec<TrainerRef>, u64) {
        let name = |n: usize| format!("t{n}");
        let join = |n| {
            let (name, keep_alive_ms) = (name(n), 10_000);
            let trainer = TrainerDecl { name, keep_alive_ms, ..TrainerDecl::default() };
            let on_loss = LossPolicy::Continue;
            OpKind::Trainer(TrainerOp::Join { job: job(), trainer, on_loss })
        };
        let (replies, look_ups) = self.ops(numbers.clone().map(join).collect());
        let by = |(n, reply)| match reply {
            Reply::Joined { incarnation, .. } => {
                TrainerRef { job: job(), trainer: name(n), incarnation }
            }
            reply => panic!("{reply:?}"),
        };
        (numbers.zip(replies).map(by).collect(), look_ups)
    }

    fn leave(&mut self, all: &[TrainerRef]) -> u64 {
        let leave = |by: &TrainerRef| OpKind::Trainer(TrainerOp::Leave(by.clone()));
        self.ops(all.iter().map(leave).collect()).1
    }

    fn claim(&mut self, by: &TrainerRef) {
        let (by, dataset) = (by.clone(), "d".to_owned());
        self.ops(vec![OpKind::Shard(ShardOp::Claim { by, dataset, epoch: 0 })]);
    }
}

#[test]
fn jobs_are_listed_newest_first_whatever_their_names() {
    let mut cluster = Cluster::new(1);
    let join = |name: &str| {
        let job = JobName { job: name.into(), ..job() };
        let (name, keep_alive_ms) = ("t".into(), 10_000);
        let trainer = TrainerDecl { name, keep_alive_ms, ..TrainerDecl::default() };
        OpKind::Trainer(TrainerOp::Join { job, trainer, on_loss: LossPolicy::Continue })
    };
    cluster.ops(["b", "c", "a"].map(join).into());
    let listed: Vec<_> = cluster
        .ledger
        .trainings_newest_first()
        .map(|training| training.name().job.clone())
        .collect();
    assert_eq!(listed, ["a", "c", "b"]);
}

#[test]
fn a_trainer_costs_its_own_shards_and_all_that_end_at_once_cost_one_pass() {
    let (shards, most) = (limits::SHARDS_MAX, limits::TRAINERS_MAX);
    let mut cluster = Cluster::new(shards);
    let (first, _) = cluster.join(0..most - 24);
    cluster.claim(&first[0]);
    let (late, look_ups) = cluster.join(most - 24..most);
    assert!(look_ups <= 24 * u64::from(POINTS), "{look_ups} look-ups for 24 that come");
    let look_ups = cluster.leave(&late);
    assert!(look_ups < shards.into(), "{look_ups} look-ups for 24 that go");
    cluster.ledger.check_invariants().unwrap();
    let (_, look_ups) = cluster.command(10_000, Body::Tick);
    assert!(look_ups <= u64::from(shards) + 1, "{look_ups} look-ups for all that end");
    assert_eq!(cluster.ledger.training(&job()).unwrap().trainers().count(), 0);
    cluster.ledger.check_invariants().unwrap();
}

#[test]
fn preferences_match_a_recomputation_after_any_trainer_comes_or_goes() {
    let mut cluster = Cluster::new(500);
    let (first, _) = cluster.join(0..1);
    cluster.claim(&first[0]);
    for many in [1, 2, 7] {
        for _ in 0..3 {
            let (others, _) = cluster.join(1..1 + many);
            cluster.ledger.check_invariants().unwrap();
            cluster.claim(&others[0]);
            for one in &others {
                cluster.leave(std::slice::from_ref(one));
                cluster.ledger.check_invariants().unwrap();
            }
            // A trainer that left with a shard was lost: the job continues from its last known position.
            assert_eq!(cluster.ledger.training(&job()).unwrap().trainers().count(), 1);
        }
    }
}
