//! The whole image of a cluster of version 3.
//!
//! *Invariant:* there is a record of each kind that a member of version 3 writes, including kinds that share a letter
//! with another kind. No command of the story is refused, so the chain in record `M` covers the intended replies.

use super::commands::{blob, command, fail, members, participant, registration, spec};
use super::{Records, hex, lock, played};
use rollout_ledger::id::{RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    Body, Command, EngineSpec, EntryId, Evidence, FailureClass, HeldRows, JobName, Ledger, Op,
    OpKind, PartDecl, Registration, RendezvousConfig, Reply, RequestId, RevocationAuthor,
    RevocationOp, Revoked, Rows, RunSpec, SCHEDULING_VERSION, SegmentDecl, SlotOffer, StoreAnswer,
    StoreName, StoreOp, op,
};

/// Only these workers serve it, so the rows that they claim belong to the new run.
const MODEL: &str = "hf://fresh";

struct Story {
    ledger: Ledger,
}

fn is_refusal(reply: &Reply) -> bool {
    match reply {
        Reply::Rejected(_) => true,
        Reply::Taken { refused } | Reply::Won { refused, .. } | Reply::Stolen { refused, .. } => {
            !refused.is_empty()
        }
        Reply::Store(answers) => {
            answers.iter().any(|answer| matches!(answer, StoreAnswer::Refused(_)))
        }
        _ => false,
    }
}

impl Story {
    /// Applies a command of which nothing may be refused. Answers its index and the replies.
    fn apply(&mut self, command: &Command) -> (u64, Vec<Reply>) {
        let entry = EntryId { index: self.ledger.applied().index + 1, term: 1 };
        let replies = self.ledger.apply(entry, &command.encode()).expect("known");
        self.ledger.check_invariants().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let refusal = replies.iter().find(|reply| is_refusal(reply));
        assert!(refusal.is_none(), "{command:?}: {refusal:?}");
        (entry.index, replies)
    }

    fn ops(&mut self, ops: Vec<OpKind>) -> (u64, Vec<Reply>) {
        self.apply(&command(Body::Ops(ops.into_iter().map(Into::into).collect())))
    }

    /// What a slot is given.
    fn claim(&mut self, slot: SlotRef, instance: u64) -> HeldRows {
        let (_, replies) =
            self.ops(vec![OpKind::Claim(op::Claim { slot, instance, seq: 1, rows_max: 64 })]);
        match replies.as_slice() {
            [Reply::Granted(grants)] if !grants.is_empty() => grants[0].held.clone(),
            _ => panic!("{slot:?} was given nothing: {replies:?}"),
        }
    }
}

fn revocations() -> Vec<OpKind> {
    let (reason, issued_before_s) = ("the host was stolen".to_owned(), Some(1_764_200_000));
    let by = RevocationAuthor { identity: "admin/ann".into(), not_before_s: 1_764_200_001 };
    let (whose, of_one) = (Revoked::Everyone, Revoked::Identity("worker/gpu-1".into()));
    let revocations = [
        RevocationOp::Revoke {
            whose: of_one,
            issued_before_s: None,
            reason: reason.clone(),
            by: None,
        },
        RevocationOp::Revoke { whose, issued_before_s, reason, by: Some(by) },
    ];
    revocations.map(OpKind::Revocation).into()
}

/// A run and two workers that serve it alone: the run is the first operation, the workers are the third and the fourth.
fn new_run() -> Vec<OpKind> {
    let engine = EngineSpec { model: MODEL.into(), ..spec().engine };
    let spec = RunSpec { engine, priority: 9, canary_rows: 0, canary_failures_max: 0, ..spec() };
    let create = OpKind::CreateRun(op::CreateRun {
        namespace: "team".into(),
        name: "fresh".into(),
        spec: Box::new(spec),
        folder: "fresh/0123456789abcdef-0000000000000003".into(),
    });
    let decl = |number: u32, rows| SegmentDecl {
        number: SegmentNo(number),
        rows,
        blob: blob(100 + number as u8),
    };
    // invariant: the story applies it as the next run.
    let segments = OpKind::AddSegments(op::AddSegments {
        run: FRESH,
        segments: vec![decl(0, 8), decl(1, 300)],
    });
    vec![create, segments, register("w3", 79), register("w4", 80)]
}

/// `played` makes two.
const FRESH: RunNo = RunNo(3);

fn register(name: &str, instance: u64) -> OpKind {
    let offer = |offer: SlotOffer| SlotOffer { models: vec![MODEL.into()], ..offer };
    let like = registration();
    OpKind::Register(Box::new(Registration {
        name: name.into(),
        instance,
        resume: None,
        holder_alive: false,
        slots: like.slots.into_iter().map(offer).collect(),
        held: Vec::new(),
        started: Vec::new(),
        ..registration()
    }))
}

/// Some of the rows of a grant, by their position in it.
fn some(held: &HeldRows, from: usize, count: usize) -> HeldRows {
    let rows: Vec<(u64, u32)> = held.rows.iter().skip(from).take(count).map(|r| (r, 1)).collect();
    assert_eq!(rows.len(), count, "the grant has fewer rows: {held:?}");
    HeldRows { rows: Rows::from_ranges(rows).expect("ascending"), ..held.clone() }
}

/// One slot completes two rows, fails one, loses its engine with two, and is refused by the store.
fn at_workers(story: &mut Story) {
    let (index, replies) = story.ops(new_run());
    assert!(matches!(replies[0], Reply::Run { run: FRESH, created: true, .. }), "{replies:?}");
    let slot = |op| SlotRef { session: SessionId::at(index, op), slot: SlotNo(0) };
    let (first, second) = (slot(2), slot(3));
    let held = story.claim(first, 79);
    let part = PartDecl { blob: blob(210), tokens_in: 1234, tokens_out: 56_789 };
    let sets = vec![some(&held, 0, 2)];
    story.ops(vec![OpKind::Complete(op::Complete { slot: first, run: FRESH, part, sets })]);
    story.ops(vec![failed(first, some(&held, 2, 1), FailureClass::Transient)]);
    let (class, code, message) = (FailureClass::EngineDied, "SIGKILL".into(), "why".into());
    let evidence = Evidence { signal: Some(9), ..Evidence::default() };
    let started = vec![some(&held, 3, 2)];
    let number = 1;
    story.ops(vec![OpKind::EngineDied(op::EngineDied {
        slot: first,
        number,
        started,
        class,
        code,
        message,
        evidence,
    })]);
    story.ops(vec![failed(first, some(&held, 5, 1), FailureClass::StoreRefused)]);
    let (session, reason) = (first.session, "a fan is broken".to_owned());
    let slot = Some(SlotNo(0));
    story.ops(vec![OpKind::Cordon(op::Cordon { session, slot, cordoned: true, reason })]);
    story.claim(second, 80);
}

/// Like the failures of `commands`, with another slot and other rows.
fn failed(at: SlotRef, of: HeldRows, is: FailureClass) -> OpKind {
    match fail(is, 0) {
        OpKind::Fail(op::Fail { class, code, message, evidence, .. }) => {
            OpKind::Fail(op::Fail { slot: at, held: of, class, code, message, evidence })
        }
        other => panic!("{other:?}"),
    }
}

/// A client's session makes a round complete, and its member uses the round's store.
fn in_a_round(story: &mut Story) {
    let (name, holder) = ("trainer".to_owned(), "client/alice".to_owned());
    let (opened, _) = story.ops(vec![OpKind::OpenClient(op::OpenClient { name, holder })]);
    let request = RequestId { session: SessionId::at(opened, 0), seq: 1, ack_upto: 0 };
    let job = JobName { namespace: "default".into(), job: "round".into() };
    let config =
        RendezvousConfig { min: 1, max: 1, join_timeout_ms: 600_000, last_call_ms: 30_000 };
    let kind = OpKind::Join(op::Join { job, participant: participant("n0"), config });
    let (joined, _) = story.apply(&command(Body::Ops(vec![Op { request: Some(request), kind }])));
    let store = StoreName { namespace: "default".into(), job: "round".into(), round: 1 };
    let ops = vec![
        StoreOp::Set { pairs: vec![(b"k".to_vec(), b"v".to_vec())] },
        StoreOp::Push { queue: b"q".to_vec(), value: b"x".to_vec() },
    ];
    let request = RequestId { seq: 2, ..request };
    let kind =
        OpKind::RoundStore(op::UseRoundStore { store, incarnation: SessionId::at(joined, 0), ops });
    story.apply(&command(Body::Ops(vec![Op { request: Some(request), kind }])));
}

fn told() -> Ledger {
    let mut story = Story { ledger: played().0 };
    story.apply(&command(Body::SetVersion(SCHEDULING_VERSION)));
    story.apply(&members());
    story.ops(revocations());
    at_workers(&mut story);
    in_a_round(&mut story);
    story.ledger
}

/// How often a record contains a text.
fn count(record: &[u8], text: &[u8]) -> usize {
    record.windows(text.len()).filter(|bytes| *bytes == text).count()
}

fn has(records: &[(Vec<u8>, Vec<u8>)], what: &str, is: impl Fn(&[u8], &[u8]) -> bool) {
    assert!(records.iter().any(|(key, value)| is(key, value)), "no record of {what}");
}

/// Some kinds of records share their letter with another; the key or the length distinguishes them.
fn check_kinds(all: &[(Vec<u8>, Vec<u8>)]) {
    for tag in b'A'..=b'Z' {
        has(all, &format!("kind {}", char::from(tag)), |key, _| key[0] == tag);
    }
    has(all, "the cluster", |key, _| key == b"M");
    has(all, "the members", |key, _| key == b"Mm");
    has(all, "a job", |key, _| key[0] == b'G' && key.len() == 5);
    has(all, "who may use a round's store", |key, _| key[0] == b'G' && key.ends_with(b"a"));
    has(all, "a join token", |key, _| key[0] == b'E' && key[1] != 0);
    has(all, "the revocation of everyone", |key, _| key == b"E\0");
    has(all, "the revocation of one", |key, _| key.starts_with(b"E\0w"));
    // A run's head names a worker only where the store refused one.
    has(all, "a run with a refused worker", |key, value| key[0] == b'R' && count(value, b"w3") > 0);
    // Each failure names the worker, and an incident names it again.
    has(all, "a row with an incident", |key, value| key[0] == b'T' && count(value, b"w3") > 1);
}

#[test]
fn the_bytes_of_an_image_of_version_3_are_locked() {
    let ledger = told();
    let mut records = Records::new();
    ledger.for_each_record(|key, value| records.push((key.to_vec(), value.to_vec())));
    check_kinds(&records);
    let lines: Vec<String> = records
        .iter()
        .map(|(key, value)| format!("{} {} {}", char::from(key[0]), hex(key), hex(value)))
        .chain([format!("digest {}", hex(&ledger.state_digest()))])
        .collect();
    lock("image_3.txt", &lines);
    let loaded = Ledger::load(records).expect("whole");
    loaded.check_invariants().expect("holds");
    assert_eq!(loaded.state_digest(), ledger.state_digest());
}
