//! A job and its training become one record when the cluster's version is raised to [`ONE_RECORD_VERSION`].
//!
//! *Invariant:* the state afterward depends on the state before alone, whether a member has it from the log or from an
//! image, and the image has the records of the ledger, byte for byte.

use super::bench::{Bench, job, participant};
use rollout_ledger::{
    Body, CheckpointOp, DatasetOp, DatasetSpec, ImageDelta, Ledger, LoadError, LossPolicy,
    ONE_RECORD_VERSION, OpKind, RankReport, Rejection, Reply, ShardOp, ShardRef, StoreName,
    TrainerDecl, TrainerOp, TrainerRef, digest_records, limits, op,
};
use std::collections::BTreeMap;

type Image = BTreeMap<Vec<u8>, Vec<u8>>;

fn write(image: &mut Image, delta: ImageDelta) {
    for prefix in delta.delete_prefixes {
        image.retain(|key, _| !key.starts_with(&prefix));
    }
    delta.deletes.iter().for_each(|key| drop(image.remove(key)));
    image.extend(delta.puts);
}

/// Checks that the image matches the ledger, and loads as an equal ledger.
fn check(image: &Image, ledger: &Ledger) {
    let mut all = Image::new();
    ledger.for_each_record(|key, value| drop(all.insert(key.to_vec(), value.to_vec())));
    let keys =
        |image: &Image| image.keys().map(|key| key.escape_ascii().to_string()).collect::<Vec<_>>();
    assert_eq!(keys(image), keys(&all));
    assert_eq!(*image, all);
    assert_eq!(digest_records(image), ledger.state_digest());
    let loaded = Ledger::load(image.clone()).expect("what was drained loads");
    loaded.check_invariants().expect("and holds");
    assert_eq!(loaded.state_digest(), ledger.state_digest());
}

/// The numbers in the keys of records with this tag, ascending, each once.
fn numbers(ledger: &Ledger, tag: u8) -> Vec<u32> {
    let mut numbers = Vec::new();
    ledger.for_each_record(|key, _| {
        if key[0] == tag {
            numbers.push(u32::from_be_bytes(key[1..5].try_into().expect("four bytes")));
        }
    });
    numbers.dedup();
    numbers
}

/// The names of all jobs, newest first.
fn listed(ledger: &Ledger) -> Vec<&str> {
    ledger.job_overviews().map(|job| job.name.job.as_str()).collect()
}

fn participate(name: &str) -> OpKind {
    OpKind::Participate(op::Participate { job: job(name), participant: participant("p").into() })
}

/// A participant comes and goes.
fn used(bench: &mut Bench, name: &str) {
    let Reply::Participant { incarnation, .. } = bench.granted(participate(name)) else {
        panic!("no participant")
    };
    bench.granted(OpKind::Leave(op::Leave { incarnation }));
}

fn join(name: &str) -> OpKind {
    let trainer = TrainerDecl { name: "t".into(), keep_alive_ms: 10_000, ..TrainerDecl::default() };
    let on_loss = LossPolicy::default();
    OpKind::Trainer(TrainerOp::Join { job: job(name), trainer, on_loss })
}

fn joined(bench: &mut Bench, name: &str) -> TrainerRef {
    match bench.granted(join(name)) {
        Reply::Joined { incarnation, .. } => {
            TrainerRef { job: job(name), trainer: "t".into(), incarnation }
        }
        reply => panic!("{reply:?}"),
    }
}

fn leave(by: TrainerRef) -> OpKind {
    OpKind::Trainer(TrainerOp::Leave(by))
}

fn delete(name: &str) -> OpKind {
    OpKind::Trainer(TrainerOp::DeleteJob(job(name)))
}

fn claim(by: &TrainerRef) -> OpKind {
    OpKind::Shard(ShardOp::Claim { by: by.clone(), dataset: "d".into(), epoch: 0 })
}

/// The trainer reads one shard in that step.
fn read(bench: &mut Bench, by: &TrainerRef, step: u64) {
    let Reply::Shard { number, token, .. } = bench.granted(claim(by)) else { panic!("no shard") };
    let shard = ShardRef { dataset: "d".into(), epoch: 0, number, token };
    bench.granted(OpKind::Shard(ShardOp::Finish { by: by.clone(), shard, step }));
}

/// The checkpoint of a step is complete.
fn checkpoint(bench: &mut Bench, by: &TrainerRef, step: u64) {
    let begin = CheckpointOp::Begin { by: by.clone(), step, label: String::new() };
    let Reply::Checkpoint { number, .. } = bench.granted(OpKind::Checkpoint(begin)) else {
        panic!("no checkpoint")
    };
    let (by, report, progress) = (by.clone(), Box::<RankReport>::default(), Vec::new());
    let report = CheckpointOp::Report { by, number, report, progress };
    bench.granted(OpKind::Checkpoint(report));
}

fn raise(bench: &mut Bench) {
    bench.command(Body::SetVersion(ONE_RECORD_VERSION));
}

/// Participants have used jobs `b` and `a`; job `c`, and then `a`, have a training. That of `a` reads a dataset and has
/// a checkpoint.
struct Before {
    bench: Bench,
    a: TrainerRef,
    c: TrainerRef,
}

impl Before {
    fn new() -> Self {
        let mut bench = Bench::new();
        bench.command(Body::SetVersion(ONE_RECORD_VERSION - 1));
        used(&mut bench, "b");
        used(&mut bench, "a");
        let spec = DatasetSpec {
            uri: "u".into(),
            samples: 30,
            shard_samples: 10,
            ..DatasetSpec::default()
        };
        let (namespace, name, spec) = ("default".into(), "d".into(), Box::new(spec));
        bench.granted(OpKind::Dataset(DatasetOp::Create { namespace, name, spec }));
        let c = joined(&mut bench, "c");
        let a = joined(&mut bench, "a");
        read(&mut bench, &a, 1);
        checkpoint(&mut bench, &a, 1);
        Self { bench, a, c }
    }
}

#[test]
fn a_training_gets_the_number_of_the_job_of_its_name_or_else_the_next_one() {
    let Before { mut bench, .. } = Before::new();
    assert_eq!(numbers(&bench.ledger, b'L'), [1, 2]);
    assert_eq!(listed(&bench.ledger), ["a", "c", "b"], "those with a training come first");
    raise(&mut bench);
    let ledger = &bench.ledger;
    assert_eq!(numbers(ledger, b'G'), [1, 2, 3]);
    assert_eq!(numbers(ledger, b'L'), [2, 3]);
    assert_eq!(numbers(ledger, b'I'), [2, 3]);
    assert_eq!(numbers(ledger, b'H'), [2], "only this training reads a dataset");
    assert_eq!(numbers(ledger, b'U'), [2]);
    assert_eq!(listed(ledger), ["c", "a", "b"]);
    let parts = |name: &str| {
        let found = ledger.job_overview(&job(name)).expect("a job");
        (found.participants.is_some(), found.training.is_some())
    };
    assert_eq!([parts("a"), parts("b"), parts("c")], [(true, true), (true, false), (false, true)]);
    assert!(ledger.job(&job("c")).is_none(), "no participant has used it");
}

#[test]
fn a_member_that_loads_an_earlier_image_computes_the_same_record() {
    let Before { bench: mut direct, a, c } = Before::new();
    let mut loaded = direct.reloaded();
    assert_eq!(numbers(&loaded.ledger, b'L'), [1, 2], "the image has the former numbers");
    let go_on = |bench: &mut Bench| {
        raise(bench);
        let mut replies: Vec<Reply> = Vec::new();
        for kind in [claim(&a), participate("c"), join("b"), join("new"), leave(c.clone())] {
            replies.push(bench.granted(kind));
        }
        replies
    };
    assert_eq!(go_on(&mut direct), go_on(&mut loaded));
    assert_eq!(direct.ledger.state_digest(), loaded.ledger.state_digest());
    let mut image = Image::new();
    loaded.ledger.for_each_record(|key, value| drop(image.insert(key.to_vec(), value.to_vec())));
    check(&image, &direct.ledger);
}

#[test]
fn the_image_has_the_new_numbers_only_whatever_it_lacked_at_the_change() {
    let Before { mut bench, a, c } = Before::new();
    let gone = joined(&mut bench, "gone");
    let mut image = Image::new();
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);
    // The image still has a training that is removed, and lacks one that came, and what this one read.
    bench.granted(leave(gone));
    bench.granted(delete("gone"));
    bench.granted(join("new"));
    read(&mut bench, &a, 2);
    raise(&mut bench);
    checkpoint(&mut bench, &a, 2);
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);
    bench.granted(leave(c));
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);

    let key = [b"L".as_slice(), &1u32.to_be_bytes()].concat();
    let head = image.get([b"L".as_slice(), &2u32.to_be_bytes()].concat().as_slice());
    let foreign = Image::from([(key, head.expect("of job a").clone())]);
    let wrong = image.iter().chain(&foreign).map(|(key, value)| (key.clone(), value.clone()));
    assert!(Ledger::load(wrong).is_err(), "a training under the number of another job loaded");
}

#[test]
fn an_image_of_the_version_from_before_the_one_record_is_refused_by_name() {
    let Before { mut bench, .. } = Before::new();
    let records = |ledger: &Ledger| {
        let mut image = Image::new();
        ledger.for_each_record(|key, value| drop(image.insert(key.to_vec(), value.to_vec())));
        image
    };
    let mut earlier = records(&bench.ledger);
    raise(&mut bench);
    // Such a build had the version, and the former numbers.
    let meta = records(&bench.ledger).remove(b"M".as_slice()).expect("it has one");
    earlier.insert(b"M".to_vec(), meta);
    let why = Ledger::load(earlier).expect_err("its trainings have no place");
    assert_eq!(why, LoadError::Unreleased { version: ONE_RECORD_VERSION });
    let text = why.to_string();
    assert!(text.contains("an unreleased build of cluster version 4"), "{text}");
}

#[test]
fn deleting_a_job_leaves_what_its_participants_use_and_nothing_else() {
    let Before { mut bench, a, c } = Before::new();
    raise(&mut bench);
    bench.granted(leave(c));
    bench.granted(delete("c"));
    assert!(bench.ledger.job_overview(&job("c")).is_none(), "no participant ever used it");
    bench.granted(leave(a));
    bench.granted(delete("a"));
    assert!(bench.ledger.training(&job("a")).is_some_and(|training| training.is_deleting()));
    bench.granted(OpKind::Checkpoint(CheckpointOp::Forget { job: job("a"), number: 1 }));
    assert!(bench.ledger.training(&job("a")).is_none());
    assert!(bench.ledger.job(&job("a")).is_some());
    assert_eq!(bench.granted(delete("a")), Reply::Ok, "there is nothing left to delete");
}

#[test]
fn a_job_is_not_forgotten_while_it_has_a_training() {
    let Before { mut bench, a, .. } = Before::new();
    raise(&mut bench);
    bench.tick_to(limits::JOB_TTL_MS + 1);
    assert_eq!(listed(&bench.ledger), ["c", "a"], "job b had neither participants nor a training");
    bench.granted(leave(a));
    bench.granted(delete("a"));
    bench.granted(OpKind::Checkpoint(CheckpointOp::Forget { job: job("a"), number: 1 }));
    assert!(bench.ledger.job(&job("a")).is_some());
    bench.tick_to(limits::JOB_TTL_MS + 2);
    assert_eq!(listed(&bench.ledger), ["c"], "its time was over before");
}

#[test]
fn a_job_with_a_store_of_a_round_makes_room_only_if_no_other_can() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(ONE_RECORD_VERSION));
    let close = |name: &str| OpKind::CloseRendezvous(op::CloseRendezvous { job: job(name) });
    let store = |name: &str| StoreName { namespace: "default".into(), job: name.into(), round: 1 };
    let there = |bench: &Bench, name: &str| {
        let store = bench.ledger.store(&store(name)).is_some();
        (bench.ledger.job(&job(name)).is_some(), store)
    };
    for name in ["first", "second"] {
        bench.granted(close(name));
        let open = op::UseStore { store: store(name), ops: Vec::new() };
        bench.granted(OpKind::Store(open));
        bench.tick_to(bench.now() + 1);
    }
    bench.granted(close("without"));
    bench.all_granted((3..limits::JOBS_MAX).map(|n| participate(&format!("p{n}"))));
    bench.granted(join("third"));
    assert!(!there(&bench, "without").0, "no process uses anything of it");
    assert_eq!([there(&bench, "first"), there(&bench, "second")], [(true, true); 2]);
    bench.granted(join("fourth"));
    assert_eq!(there(&bench, "first"), (false, false), "unused for longest");
    assert_eq!(there(&bench, "second"), (true, true));
}

#[test]
fn a_namespace_over_its_limit_makes_no_job_before_it_is_below_it_again() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(ONE_RECORD_VERSION - 1));
    let close =
        |n: usize| OpKind::CloseRendezvous(op::CloseRendezvous { job: job(&format!("p{n}")) });
    bench.all_granted((0..limits::JOBS_MAX).map(close));
    let first = joined(&mut bench, "t0");
    bench.all_granted((1..limits::TRAININGS_MAX).map(|n| join(&format!("t{n}"))));
    raise(&mut bench);
    assert_eq!(bench.ledger.job_overviews().count(), limits::JOBS_MAX + limits::TRAININGS_MAX);
    let most = limits::JOBS_MAX as u64;
    bench.over(most, participate("more"));
    bench.over(most, join("more"));
    bench.granted(join("p0"));
    bench.granted(leave(first));
    bench.granted(delete("t0"));
    // 1,023 unused jobs are not enough: 1,024 have to go.
    bench.over(most, join("more"));
    let t1 = joined(&mut bench, "t1");
    bench.granted(leave(t1));
    bench.granted(delete("t1"));
    bench.granted(join("more"));
    assert_eq!(bench.ledger.job_overviews().count(), limits::JOBS_MAX, "all unused jobs made room");
    assert!(bench.ledger.training(&job("p0")).is_some());
    let why = bench.refused(participate("still-more"));
    assert!(matches!(why, Rejection::Limit { max, .. } if max == most), "{why:?}");
}
