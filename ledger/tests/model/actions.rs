//! Random commands: what honest workers and users do, and what they get wrong.
//!
//! An action names things by small numbers that are resolved against the model's past when it is
//! played, so that most of them hit something: an old grant, a session that has ended, a pull that
//! was answered.

use crate::job_acts::{JobAct, job_act};
use crate::naive::Model;
use crate::runs::Run;
use crate::tokens::{TokenAct, token_act};
use crate::trainings_acts::Train;
use proptest::prelude::*;
use rollout_ledger::id::{RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{
    BlobRef, EngineSpec, Evidence, FailureClass, HeldRows, Notice, Op, OpKind, PartDecl, Quota,
    Registration, RequestId, Rows, RunAction, RunSpec, SegmentDecl, SlotOffer, StoreName, StoreOp,
};

const RUNS: u8 = 4;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Ops(Vec<Act>),
    Tick(u64),
    OpenEpoch,
    Stale(Act),
    Reload,
    /// Digests are asked for; by a leader of the past, where that is so.
    Digest {
        stale: bool,
    },
    /// The least version that all members speak.
    Version(u32),
}

/// A grant of the past, counted from the latest, and which of its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    back: u8,
    mask: u16,
    /// Another run's number, or rows that were never granted.
    wrong: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Create { run: u8, other: bool },
    Segments { run: u8, rows: [u8; 2], from: i8 },
    Close { run: u8, wrong: bool },
    Control { run: u8, action: RunAction },
    Seal { run: u8, stale: bool },
    Swept { run: u8 },
    Delete { run: u8 },
    Forget { run: u8 },
    Namespace { cap: u8 },
    Quota { cap: u8, rows: Option<u8>, runs: Option<u8> },
    Noticed { run: u8, stale: bool, delivered: bool },
    Register { worker: u8, instance: u8, alive: bool, resume: bool, slots: u8, held: Vec<Pick> },
    Deregister { worker: u8 },
    Suspect { worker: u8, started: Vec<Pick>, unheard: Option<Vec<Pick>>, grace_ms: u64 },
    Unsuspect { worker: u8 },
    Drain { worker: u8, deadline_ms: u64 },
    Claim { worker: u8, slot: u8, seq: i8, max: u8 },
    Complete { picks: Vec<Pick>, by: Option<u8>, part: u8 },
    Fail { pick: Pick, by: Option<u8>, class: FailureClass },
    Nack { picks: Vec<Pick>, by: Option<u8> },
    Died { picks: Vec<Pick>, by: Option<u8>, memory: bool, told: i8 },
    Settle { worker: u8, slot: u8, how: Settled },
    Cordon { worker: u8, slot: Option<u8>, cordoned: bool },
    Retry { run: u8, mask: Option<u16> },
    Steal { picks: Vec<Pick>, by: Option<u8>, worker: u8, slot: u8, seq: i8, instance: bool },
    Duplicate { worker: u8, slot: u8, seq: i8, max: u8 },
    Carry { run: u8, segment: i8, mask: u16, part: u8, wrong: bool },
    Store { store: u8, ops: Vec<StoreOp> },
    DropStore { store: u8 },
    Job(JobAct),
    Train(Train),
    Token(TokenAct),
    Client,
    Request { client: u8, seq: u8, ack: u8, act: Box<Act> },
}

/// What becomes of all that a slot holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Settled {
    Done,
    Died,
    /// Its engine died when half of it was started.
    HalfDied,
}

/// Half of the stories have engines that die. Many begin at the tail of a run, and some with rows of
/// which engines have died.
pub(crate) fn story() -> impl Strategy<Value = Vec<Step>> {
    let story = prop_oneof![story_of(false), story_of(true)];
    let begin = prop_oneof![
        3 => Just(Vec::new()),
        3 => Just(tail()),
        1 => (1..3u8).prop_map(guilty),
        1 => (8..20u8).prop_map(shut_in),
    ];
    let story = (begin, story).prop_map(|(begin, story)| begin.into_iter().chain(story).collect());
    let story = prop_oneof![2 => story, 1 => training_story()];
    let tokens = prop_oneof![1 => Just(Vec::new()), 1 => token_story()];
    (story, tokens).prop_map(|(story, tokens)| story.into_iter().chain(tokens).collect())
}

/// Somebody is let in, in a cluster that others have used; now and then in one that has no tokens yet.
fn token_story() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop::collection::vec(token_act().prop_map(Act::Token), 1..3).prop_map(Step::Ops),
        2 => (1..9000u64).prop_map(Step::Tick),
        1 => token_act().prop_map(|act| Step::Stale(Act::Token(act))),
        1 => Just(Step::Reload),
        1 => Just(Step::OpenEpoch),
    ];
    let version = prop_oneof![4 => Just(2), 1 => Just(1)].prop_map(Step::Version);
    (version, prop::collection::vec(step, 1..16))
        .prop_map(|(version, story)| std::iter::once(version).chain(story).collect())
}

/// A job of two trainers that read, and all that may happen to it.
fn training_story() -> impl Strategy<Value = Vec<Step>> {
    let act = || crate::trainings_acts::train().prop_map(Act::Train);
    let step = prop_oneof![
        16 => prop::collection::vec(act(), 1..4).prop_map(Step::Ops),
        2 => prop_oneof![3 => 1..900u64, 1 => 900..5000u64].prop_map(Step::Tick),
        1 => plain(false).prop_map(|act| Step::Ops(vec![act])),
        1 => Just(Step::OpenEpoch),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
    ];
    prop::collection::vec(step, 1..120).prop_map(|story| {
        let begin = Train::beginning().into_iter().map(|train| Step::Ops(vec![Act::Train(train)]));
        begin.chain(story).collect()
    })
}

/// One slot's engine has died three times, each time of so many rows, and another's of some of them.
fn guilty(rows: u8) -> Vec<Step> {
    let died = |worker, max| {
        let claim = Act::Claim { worker, slot: 0, seq: 1, max };
        let died = Act::Settle { worker, slot: 0, how: Settled::Died };
        [Step::Ops(vec![claim]), Step::Ops(vec![died])]
    };
    let first = (0..3).flat_map(|_| died(0, rows));
    first.chain((0..3).flat_map(|_| died(1, 1))).collect()
}

/// One slot is all there is, and its queue kills one engine after another: what they died of is tried there all the same.
fn shut_in(rows: u8) -> Vec<Step> {
    let cordon = |worker, slot| Act::Cordon { worker, slot, cordoned: true };
    let claim = Act::Claim { worker: 0, slot: 0, seq: 1, max: rows };
    let settle = |how| Act::Settle { worker: 0, slot: 0, how };
    let mut acts = vec![cordon(0, Some(1)), cordon(1, None), cordon(2, None), claim.clone()];
    acts.extend((0..3).map(|_| settle(Settled::HalfDied)));
    acts.extend([settle(Settled::Done), claim, settle(Settled::Done)]);
    acts.into_iter().map(|act| Step::Ops(vec![act])).collect()
}

/// One worker holds all rows of a run for so long that the other runs some of them too.
fn tail() -> Vec<Step> {
    let claim = |slot| Act::Claim { worker: 0, slot, seq: 1, max: 59 };
    let close = |run| Act::Close { run, wrong: false };
    let duplicate = |slot| Act::Duplicate { worker: 1, slot, seq: 1, max: 9 };
    vec![
        Step::Ops(vec![close(0), close(1), claim(0), claim(1)]),
        Step::Tick(1200),
        Step::Ops(vec![duplicate(0), duplicate(1)]),
    ]
}

fn story_of(deadly: bool) -> impl Strategy<Value = Vec<Step>> {
    let act = move || act(deadly);
    let step = prop_oneof![
        12 => prop::collection::vec(act(), 1..4).prop_map(Step::Ops),
        3 => prop_oneof![1 => Just(0u64), 4 => 1..2500u64, 1 => 2500..9000u64].prop_map(Step::Tick),
        1 => Just(Step::OpenEpoch),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
        1 => any::<bool>().prop_map(|stale| Step::Digest { stale }),
        1 => (0..4u32).prop_map(Step::Version),
    ];
    prop::collection::vec(step, 1..120)
}

fn act(deadly: bool) -> impl Strategy<Value = Act> {
    let client = (0..3u8, 0..6u8, 0..4u8, plain(deadly));
    prop_oneof![
        30 => plain(deadly),
        1 => Just(Act::Client),
        2 => client.prop_map(|(client, seq, ack, act)| {
            Act::Request { client, seq, ack, act: Box::new(act) }
        }),
    ]
}

fn plain(deadly: bool) -> impl Strategy<Value = Act> {
    let (death, settled) = if deadly { (6, 14) } else { (1, 1) };
    let how = || prop_oneof![3 => Just(Settled::Done), 2 => Just(Settled::Died), 2 => Just(Settled::HalfDied)];
    let run = || 0..RUNS + 1;
    let worker = || prop_oneof![4 => 0..2u8, 1 => Just(2u8)];
    let action = prop_oneof![
        6 => Just(RunAction::Pause), 12 => Just(RunAction::Resume), 1 => Just(RunAction::Cancel)
    ];
    let by = || prop::option::weighted(0.15, 0..6u8);
    prop_oneof![
        2 => (run(), prop::bool::weighted(0.2)).prop_map(|(run, other)| Act::Create { run, other }),
        8 => (run(), [0..9u8, 0..90u8], -4..2i8)
            .prop_map(|(run, rows, from)| Act::Segments { run, rows, from }),
        2 => (run(), prop::bool::weighted(0.2)).prop_map(|(run, wrong)| Act::Close { run, wrong }),
        2 => (run(), action).prop_map(|(run, action)| Act::Control { run, action }),
        2 => (run(), prop::bool::weighted(0.2)).prop_map(|(run, stale)| Act::Seal { run, stale }),
        3 => run().prop_map(|run| Act::Swept { run }),
        3 => (run(), any::<bool>()).prop_map(|(run, forget)| match forget {
            true => Act::Forget { run },
            false => Act::Delete { run },
        }),
        1 => (0..30u8).prop_map(|cap| Act::Namespace { cap }),
        1 => (0..30u8, prop::option::of(0..250u8), prop::option::of(0..6u8))
            .prop_map(|(cap, rows, runs)| Act::Quota { cap, rows, runs }),
        1 => (run(), prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(run, stale, delivered)| Act::Noticed { run, stale, delivered }),
        4 => (worker(), 0..2u8, prop::bool::weighted(0.6), prop::bool::weighted(0.7), 1..3u8, picks(0..4))
            .prop_map(|(worker, instance, alive, resume, slots, held)| {
                Act::Register { worker, instance, alive, resume, slots, held }
            }),
        1 => worker().prop_map(|worker| Act::Deregister { worker }),
        3 => (worker(), picks(0..4), prop::option::weighted(0.7, picks(0..6)), 1..8000u64).prop_map(
            |(worker, started, unheard, grace_ms)| Act::Suspect { worker, started, unheard, grace_ms }
        ),
        5 => (worker(), prop::option::weighted(0.1, prop_oneof![2 => Just(0), 1 => 1..20_000u64])).prop_map(
            |(worker, drain)| match drain {
                Some(deadline_ms) => Act::Drain { worker, deadline_ms },
                None => Act::Unsuspect { worker },
            }
        ),
        30 => (worker(), 0..2u8, prop_oneof![6 => Just(1i8), 1 => Just(0), 1 => -2..4i8], 0..60u8)
            .prop_map(|(worker, slot, seq, max)| Act::Claim { worker, slot, seq, max }),
        18 => (picks(1..4), by(), 0..12u8)
            .prop_map(|(picks, by, part)| Act::Complete { picks, by, part }),
        14 => (pick(), by(), class()).prop_map(|(pick, by, class)| Act::Fail { pick, by, class }),
        4 => (picks(1..3), by()).prop_map(|(picks, by)| Act::Nack { picks, by }),
        death => (picks(1..3), by(), prop::bool::weighted(0.2), -1..3i8)
            .prop_map(|(picks, by, memory, told)| Act::Died { picks, by, memory, told }),
        settled => (worker(), 0..2u8, how())
            .prop_map(|(worker, slot, how)| Act::Settle { worker, slot, how }),
        death => (worker(), prop::option::weighted(0.3, 0..3u8), prop::bool::weighted(0.06))
            .prop_map(|(worker, slot, cordoned)| Act::Cordon { worker, slot, cordoned }),
        2 => (run(), prop::option::of(any::<u16>())).prop_map(|(run, mask)| Act::Retry { run, mask }),
        3 => (picks(1..4), by(), worker(), 0..2u8, prop_oneof![5 => Just(1i8), 1 => -1..3i8], prop::bool::weighted(0.1)).prop_map(
            |(picks, by, worker, slot, seq, instance)| {
                Act::Steal { picks, by, worker, slot, seq, instance }
            }
        ),
        8 => (worker(), 0..2u8, prop_oneof![8 => Just(1i8), 1 => -1..3i8], 0..30u8)
            .prop_map(|(worker, slot, seq, max)| Act::Duplicate { worker, slot, seq, max }),
        3 => (run(), -3..1i8, any::<u16>(), 0..9u8, prop::bool::weighted(0.1)).prop_map(
            |(run, segment, mask, part, wrong)| Act::Carry { run, segment, mask, part, wrong }
        ),
        6 => (0..4u8, prop::collection::vec(store_op(), 0..5))
            .prop_map(|(store, ops)| Act::Store { store, ops }),
        1 => (0..4u8).prop_map(|store| Act::DropStore { store }),
        24 => job_act().prop_map(Act::Job),
        4 => crate::trainings_acts::train().prop_map(Act::Train),
    ]
}

/// One job's stores of two rounds, another job's, and one in a namespace that may not be there.
fn store_name(store: u8) -> StoreName {
    let namespace = if store == 3 { "team" } else { "default" };
    let job = if store == 2 { "other" } else { "job" };
    StoreName { namespace: namespace.into(), job: job.into(), round: u64::from(store % 2) }
}

/// Few keys and few values, most of them numbers, so that much meets.
fn store_op() -> impl Strategy<Value = StoreOp> {
    let bytes = |texts: &'static [&'static str]| {
        prop::sample::select(texts).prop_map(|text| text.as_bytes().to_vec())
    };
    let key = move || bytes(&["a", "b", "q", ""]);
    let value = move || bytes(&["", "0", "1", "7", "-3", "x", "9223372036854775807"]);
    let pairs = prop::collection::vec((key(), value()), 0..3);
    prop_oneof![
        3 => pairs.prop_map(|pairs| StoreOp::Set { pairs }),
        3 => (key(), -2..9i64).prop_map(|(key, delta)| StoreOp::Add { key, delta }),
        3 => (key(), value(), value()).prop_map(|(key, expected, desired)| {
            StoreOp::CompareSet { key, expected, desired }
        }),
        1 => (key(), value()).prop_map(|(key, value)| StoreOp::Append { key, value }),
        2 => key().prop_map(|key| StoreOp::Delete { key }),
        2 => (key(), value()).prop_map(|(queue, value)| StoreOp::Push { queue, value }),
        2 => key().prop_map(|queue| StoreOp::Pop { queue }),
    ]
}

fn pick() -> impl Strategy<Value = Pick> {
    let back = prop_oneof![3 => 0..3u8, 3 => 0..12u8];
    let mask = prop_oneof![2 => Just(u16::MAX), 2 => any::<u16>(), 2 => (0..16u16).prop_map(|bit| 1 << bit)];
    (back, mask, prop::bool::weighted(0.1)).prop_map(|(back, mask, wrong)| Pick {
        back,
        mask,
        wrong,
    })
}

fn picks(count: std::ops::Range<usize>) -> impl Strategy<Value = Vec<Pick>> {
    prop::collection::vec(pick(), count)
}

fn class() -> impl Strategy<Value = FailureClass> {
    prop_oneof![
        2 => Just(FailureClass::InvalidRow),
        12 => Just(FailureClass::Transient),
        1 => Just(FailureClass::OutOfMemory),
        1 => Just(FailureClass::EngineDied),
        1 => Just(FailureClass::InputUnreadable),
        1 => Just(FailureClass::StoreRefused),
    ]
}

fn blob(text: String) -> BlobRef {
    BlobRef { digest: *blake3::hash(text.as_bytes()).as_bytes(), bytes: 9 }
}

/// Runs of two priorities, weights, models, caps and time limits; one in another namespace.
fn spec(run: u8, other: bool) -> RunSpec {
    let model = if run == 3 { "n" } else { "m" };
    RunSpec {
        engine: EngineSpec { model: model.into(), ..EngineSpec::default() },
        priority: [5, 5, 8, 5, 5][usize::from(run)],
        weight: [1, 3, 1, 2, 1][usize::from(run)],
        running_rows_max: [0, 0, 7, 0, 3][usize::from(run)],
        attempt_timeout_ms: [0, 5000, 0, 3000, 0][usize::from(run)],
        attempts_max: [2, 3, 4, 3, 1][usize::from(run)],
        failures_max: [100, 2, 0, 5, 100][usize::from(run)] + u64::from(other),
        canary_rows: [0, 4, 0, 5, 0][usize::from(run)],
        canary_failures_max: [0, 0, 0, 1, 0][usize::from(run)],
        tail_duplicates: run < 2,
        deadline_ms: [0, 0, 40_000, 0, 0][usize::from(run)],
        notify_url: ["", "https://hooks/1", "https://hooks/2", "", ""][usize::from(run)].into(),
        ..RunSpec::default()
    }
}

impl Act {
    /// Something to begin with: two runs with rows and two workers.
    pub(crate) fn beginning() -> Vec<Act> {
        let register = |worker| Act::Register {
            worker,
            instance: 0,
            alive: false,
            resume: false,
            slots: 2,
            held: Vec::new(),
        };
        vec![
            Act::Namespace { cap: 0 },
            Act::Create { run: 0, other: false },
            Act::Create { run: 1, other: false },
            Act::Segments { run: 0, rows: [8, 24], from: -1 },
            Act::Segments { run: 1, rows: [30, 5], from: -1 },
            register(0),
            register(1),
            register(2),
            Act::Client,
        ]
    }

    pub(crate) fn op(&self, model: &Model) -> Op {
        let Act::Request { client, seq, ack, act } = self else { return self.kind(model).into() };
        let session = *model.clients.keys().nth(usize::from(*client)).unwrap_or(&SessionId(3));
        let (seq, ack_upto) = (u64::from(*seq), u64::from(*ack));
        Op { request: Some(RequestId { session, seq, ack_upto }), kind: act.kind(model) }
    }

    fn kind(&self, model: &Model) -> OpKind {
        match self.clone() {
            Act::Create { run, other } => OpKind::CreateRun {
                namespace: if run == 4 { "team".into() } else { "default".into() },
                name: format!("run{run}"),
                spec: Box::new(spec(run, other)),
                folder: format!("run{run}/{}", model.runs.len()),
            },
            Act::Segments { run, rows, from } => segments(model, run, rows, from),
            Act::Close { run, wrong } => close(model, run, wrong),
            Act::Control { run, action } => {
                OpKind::ControlRun { run: run_no(model, run), action, reason: "so".into() }
            }
            Act::Seal { run, stale } => {
                let run = run_no(model, run);
                let sealed = (run.0 as usize).checked_sub(1).and_then(|at| model.runs.get(at));
                let ended_index = sealed.filter(|_| !stale).map_or(1, |run| run.ended_index);
                OpKind::Seal { run, manifest: blob("manifest".into()), ended_index }
            }
            Act::Swept { run } => {
                // One that is sealed, where there is one: few are.
                let sealed = |r: &&Run| r.gone.is_some_and(|gone| gone.sealed) && !r.forgotten;
                let at = model.runs.iter().position(|r| sealed(&r));
                let run = at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1));
                OpKind::Swept { run }
            }
            Act::Forget { run } => {
                // One that can be forgotten, where there is one: few are.
                let at =
                    model.runs.iter().position(|r| r.state == RunState::Deleting && !r.forgotten);
                OpKind::ForgetRun {
                    run: at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1)),
                }
            }
            Act::Delete { run } if run % 2 == 1 => {
                let at = model.runs.iter().position(|r| r.ended() && !r.forgotten);
                OpKind::DeleteRun {
                    run: at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1)),
                }
            }
            Act::Delete { run } => OpKind::DeleteRun { run: run_no(model, run) },
            Act::Namespace { cap } => OpKind::SetNamespace {
                name: if cap % 2 == 0 { "team".into() } else { "default".into() },
                running_rows_max: u64::from(cap / 2 * 3),
            },
            Act::Quota { cap, rows, runs } => OpKind::SetQuota(Quota {
                namespace: if cap % 2 == 0 { "team".into() } else { "default".into() },
                create: cap % 3 > 0,
                // Most bounds are lifted soon: a story in which nothing may be done is none.
                pending_rows_max: rows.map(|rows| if rows % 4 > 0 { 0 } else { rows.into() }),
                running_rows_max: (cap % 5 == 0).then_some(u64::from(cap / 2 * 3)),
                runs_max: runs.map(|runs| if runs % 2 > 0 { 0 } else { runs.into() }),
            }),
            Act::Noticed { run, stale, delivered } => {
                // One that is due, where there is one.
                let due = |r: &&Run| matches!(r.notice, Notice::Due { .. }) && !r.forgotten;
                let at = model.runs.iter().position(|r| due(&r));
                let run = at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1));
                let of = at.and_then(|at| model.runs.get(at)).map(|r| r.notice);
                let index = match of {
                    Some(Notice::Due { index }) if !stale => index,
                    _ => 1,
                };
                OpKind::Noticed { run, index, delivered }
            }
            Act::Register { worker, instance, alive, resume, slots, held } => {
                register(model, (worker, instance, alive, resume, slots), &held)
            }
            Act::Deregister { worker } => OpKind::Deregister { session: session(model, worker) },
            Act::Suspect { worker, started, unheard, grace_ms } => {
                let named = |picks: &[Pick]| {
                    picks.iter().filter_map(|p| held(model, *p)).map(|h| h.1).collect::<Vec<_>>()
                };
                let (session, started) = (session(model, worker), named(&started));
                match unheard.map(|unheard| named(&unheard)) {
                    None => OpKind::Suspect { session, started, grace_ms },
                    Some(mut unheard) => {
                        // As a leader names them: of what the worker holds.
                        let slots = model.workers.get(&session).map_or(0, |w| w.slots.len());
                        let slots = (0..slots).map(|n| SlotRef { session, slot: SlotNo(n as u16) });
                        unheard.extend(slots.flat_map(|slot| model.sets_at(slot)));
                        OpKind::SuspectUnheard { session, started, unheard, grace_ms }
                    }
                }
            }
            Act::Unsuspect { worker } => OpKind::Unsuspect { session: session(model, worker) },
            Act::Drain { worker, deadline_ms } => {
                OpKind::Drain { session: session(model, worker), deadline_ms }
            }
            Act::Claim { worker, slot, seq, max } => {
                let slot = SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
                let seq = next_pull(model, slot, seq);
                let instance = instance(model, slot.session);
                OpKind::Claim { slot, instance, seq, rows_max: max.into() }
            }
            Act::Complete { picks, by, part } => complete(model, &picks, by, part),
            Act::Fail { pick, by, class } => {
                let Some((slot, held)) = held(model, pick) else { return nothing(model) };
                let slot = who(model, slot, by);
                let (code, message) = ("code".into(), "why".into());
                OpKind::Fail { slot, held, class, code, message, evidence: Evidence::default() }
            }
            Act::Nack { picks, by } => {
                let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
                let Some((slot, _)) = sets.first() else { return nothing(model) };
                let slot = who(model, *slot, by);
                OpKind::Nack { slot, held: sets.into_iter().map(|s| s.1).collect() }
            }
            Act::Died { picks, by, memory, told } => {
                let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
                let Some((slot, _)) = sets.first() else { return nothing(model) };
                let slot = who(model, *slot, by);
                OpKind::EngineDied {
                    slot,
                    number: last_death(model, slot).saturating_add_signed(told.into()),
                    started: sets.into_iter().map(|s| s.1).collect(),
                    class: if memory {
                        FailureClass::OutOfMemory
                    } else {
                        FailureClass::EngineDied
                    },
                    code: "code".into(),
                    message: "why".into(),
                    evidence: Evidence::default(),
                }
            }
            Act::Settle { worker, slot, how } => settle(model, worker, slot, how),
            Act::Cordon { worker, slot, cordoned } => OpKind::Cordon {
                session: session(model, worker),
                slot: slot.map(|slot| SlotNo(slot.into())),
                cordoned,
                reason: "so".into(),
            },
            Act::Retry { run, mask } => {
                let rows = |mask: u16| (0..16).filter(move |bit| mask >> bit & 1 == 1);
                let rows = mask.and_then(|mask| Rows::from_ranges(rows(mask).map(|r| (r, 1))));
                OpKind::RetryRows { run: run_no(model, run), rows }
            }
            Act::Steal { picks, by, worker, slot, seq, instance: other } => {
                let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
                let Some((victim, _)) = sets.first() else { return nothing(model) };
                let victim = who(model, *victim, by);
                let thief = SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
                let instance = instance(model, thief.session) + u64::from(other);
                let seq = next_pull(model, thief, seq);
                // Half of them speak of what the victim holds now, the others of what it once held.
                let held = match picks.len() {
                    1 | 2 => model.sets_at(victim),
                    _ => sets.into_iter().map(|s| s.1).collect(),
                };
                OpKind::Steal { victim, held, thief, instance, seq }
            }
            Act::Duplicate { worker, slot, seq, max } => {
                let slot = SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
                let (seq, instance) = (next_pull(model, slot, seq), instance(model, slot.session));
                OpKind::Duplicate { slot, instance, seq, rows_max: max.into() }
            }
            Act::Carry { run, segment, mask, part, wrong } => {
                carry(model, run, segment, (mask, wrong), part)
            }
            Act::Train(train) => train.kind(model),
            Act::Token(act) => act.kind(),
            Act::Store { store, ops } => OpKind::Store { store: store_name(store), ops },
            Act::Job(act) => act.kind(model),
            Act::DropStore { store } => OpKind::DropStore { store: store_name(store) },
            Act::Client => OpKind::OpenClient { name: "c".into(), holder: "client/c".into() },
            Act::Request { act, .. } => act.kind(model),
        }
    }
}

fn settle(model: &Model, worker: u8, slot: u8, how: Settled) -> OpKind {
    let slot = SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
    let mut sets = model.sets_at(slot);
    if sets.is_empty() && !matches!(how, Settled::HalfDied) {
        return nothing(model); // An engine may die of nothing, too.
    }
    match how {
        Settled::Done => {
            let run = sets[0].run;
            let blob = blob(format!("part {}", sets[0].attempt));
            sets.retain(|h| h.run == run);
            OpKind::Complete {
                slot,
                run,
                part: PartDecl { blob, tokens_in: 1, tokens_out: 2 },
                sets,
            }
        }
        Settled::Died | Settled::HalfDied => {
            for set in sets.iter_mut().filter(|_| matches!(how, Settled::HalfDied)) {
                set.rows = set.rows.take_first(set.rows.len().div_ceil(2) as u32);
            }
            OpKind::EngineDied {
                slot,
                number: last_death(model, slot) + 1,
                started: sets,
                class: FailureClass::EngineDied,
                code: "code".into(),
                message: String::new(),
                evidence: Evidence::default(),
            }
        }
    }
}

/// The process that registered last, or one that never did.
fn instance(model: &Model, session: SessionId) -> u64 {
    model.workers.get(&session).map_or(0, |w| w.instance)
}

/// The death that a slot told of last.
fn last_death(model: &Model, slot: SlotRef) -> u64 {
    let worker = model.workers.get(&slot.session);
    worker.and_then(|w| w.slots.get(usize::from(slot.slot.0))).map_or(0, |s| s.last_death)
}

/// A pull of a slot, counted from its last one that was answered.
fn next_pull(model: &Model, slot: SlotRef, by: i8) -> u64 {
    let worker = model.workers.get(&slot.session);
    let pulls = worker.and_then(|w| w.slots.get(usize::from(slot.slot.0)).map(|s| s.last_pull));
    pulls.unwrap_or(0).saturating_add_signed(by.into())
}

/// For an action that found nothing to speak of: a pull, so that the next one does.
fn nothing(model: &Model) -> OpKind {
    let slot = SlotRef { session: session(model, (model.index % 3) as u8), slot: SlotNo(0) };
    let worker = model.workers.get(&slot.session);
    let seq = worker.map_or(0, |w| w.slots[0].last_pull) + 1;
    OpKind::Claim { slot, instance: instance(model, slot.session), seq, rows_max: 20 }
}

fn run_no(model: &Model, run: u8) -> RunNo {
    let name = format!("run{run}");
    let at = model.runs.iter().position(|r| r.name == name && !r.forgotten);
    RunNo(at.map_or(99, |at| at as u32 + 1))
}

fn segments(model: &Model, run: u8, rows: [u8; 2], from: i8) -> OpKind {
    let no = run_no(model, run);
    let have = model.runs.get(no.0 as usize - 1).map_or(0, |r| r.segments.len() as u32);
    // Most go on where the input ends; the others repeat, conflict, or leave a gap.
    let from = if from < 0 { have } else { have.saturating_add_signed(i32::from(from) * 3 - 2) };
    let decl = |(i, rows): (u32, u8)| {
        let rows = u32::from(rows).max(1);
        SegmentDecl { number: SegmentNo(from + i), rows, blob: blob(format!("{rows}")) }
    };
    OpKind::AddSegments { run: no, segments: (0..).zip(rows).map(decl).collect() }
}

/// Some rows of one of the last segments; a wrong one names another digest, or rows outside of it.
fn carry(model: &Model, run: u8, back: i8, (mask, wrong): (u16, bool), part: u8) -> OpKind {
    let no = run_no(model, run);
    let of = model.runs.get(no.0 as usize - 1);
    let segments = of.map_or(&[][..], |r| &r.segments);
    let number = segments.len().saturating_add_signed(back.into());
    let first: u64 = segments.iter().take(number).map(|s| u64::from(s.rows)).sum();
    let (rows, digest) = segments.get(number).map_or((1, [0; 32]), |s| (s.rows, s.blob.digest));
    let rows = rows + u32::from(wrong && mask % 2 == 0);
    let chosen = (first..first + u64::from(rows)).filter(|r| mask >> (r % 16) & 1 == 1);
    let blob = blob(format!("carried {no} {number} {}", part % 3));
    OpKind::Carry {
        run: no,
        segment: SegmentNo(number as u32),
        segment_digest: if wrong && mask % 2 == 1 { [0; 32] } else { digest },
        part: PartDecl { blob, tokens_in: part.into(), tokens_out: 2 * u64::from(part) },
        rows: Rows::from_ranges(chosen.map(|r| (r, 1))).unwrap_or_default(),
    }
}

fn close(model: &Model, run: u8, wrong: bool) -> OpKind {
    let no = run_no(model, run);
    let run = model.runs.get(no.0 as usize - 1);
    let digest = run.map_or([0; 32], |r| r.digest());
    let rows = run.map_or(0, |r| r.len()) + u64::from(wrong);
    OpKind::CloseInput { run: no, rows, digest }
}

fn session(model: &Model, worker: u8) -> SessionId {
    let name = format!("w{worker}");
    let latest = model.sessions.iter().rev().find(|s| s.1 == name);
    latest.map_or(SessionId(1), |s| s.0)
}

fn register(model: &Model, what: (u8, u8, bool, bool, u8), picks: &[Pick]) -> OpKind {
    let (worker, instance, holder_alive, resume, slots) = what;
    let models = if worker == 1 { vec!["m".into(), "n".into()] } else { vec!["m".into()] };
    let offer = SlotOffer { models, ..SlotOffer::default() };
    OpKind::Register(Box::new(Registration {
        namespace: if worker == 2 { "team".into() } else { "default".into() },
        name: format!("w{worker}"),
        instance: instance.into(),
        address: format!("w{worker}:{instance}"),
        resume: resume.then(|| session(model, worker)),
        holder_alive,
        slots: vec![offer; usize::from(slots)],
        held: picks.iter().filter_map(|p| held(model, *p)).map(|h| h.1).collect(),
        // Much of the rest was started.
        started: picks
            .iter()
            .filter_map(|p| held(model, Pick { mask: !p.mask | 1, ..*p }))
            .map(|h| h.1)
            .collect(),
        ..Registration::default()
    }))
}

fn complete(model: &Model, picks: &[Pick], by: Option<u8>, part: u8) -> OpKind {
    let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
    let Some((slot, first)) = sets.first().cloned() else { return nothing(model) };
    // A few blobs, so that one is repeated now and then; tokens tell whether it counted.
    let blob = blob(format!("part {} {}", first.attempt, part % 3));
    let part = PartDecl { blob, tokens_in: part.into(), tokens_out: 2 * u64::from(part) };
    let sets = sets.into_iter().map(|s| s.1).filter(|h| h.run == first.run).collect();
    OpKind::Complete { slot: who(model, slot, by), run: first.run, part, sets }
}

fn who(model: &Model, slot: SlotRef, by: Option<u8>) -> SlotRef {
    let Some(back) = by else { return slot };
    let other = model.sessions.iter().rev().nth(usize::from(back));
    SlotRef { session: other.map_or(SessionId(1), |s| s.0), slot: SlotNo(u16::from(back % 2)) }
}

/// Rows of a grant of the past, or `None` when there is no such grant, or it has no such rows.
fn held(model: &Model, pick: Pick) -> Option<(SlotRef, HeldRows)> {
    let (slot, held) = model.grants.iter().rev().nth(usize::from(pick.back))?;
    let chosen = held.rows.iter().filter(|r| pick.mask >> (r % 16) & 1 == 1);
    let mut rows: Vec<(u64, u32)> = chosen.map(|r| (r, 1)).collect();
    let mut run = held.run;
    if pick.wrong {
        match pick.mask % 2 {
            0 => run = RunNo(run.0 % (model.runs.len() as u32 + 1) + 1),
            _ => rows.push((held.rows.end() + 1, 3)),
        }
    }
    let rows = Rows::from_ranges(rows).filter(|r| !r.is_empty())?;
    Some((*slot, HeldRows { run, attempt: held.attempt, rows }))
}
