//! Random stories: which commands occur, how often, and the beginnings that many stories share.

use crate::actions::{Act, Pick, Settled, Step};
use crate::api_keys::key_act;
use crate::batches::batch_act;
use crate::files::{FileAct, file_act};
use crate::job_acts::job_act;
use crate::members::member_act;
use crate::revocations::revocation_act;
use crate::tokens::token_act;
use crate::trainings_acts::{Train, train};
use proptest::prelude::*;
use rollout_ledger::{FailureClass, RunAction, StoreOp};

const RUNS: u8 = 4;

/// Half of the stories have engines that die. Many begin at the tail of a run, and some with rows that have killed
/// engines.
pub(crate) fn story() -> impl Strategy<Value = Vec<Step>> {
    let story = prop_oneof![story_of(false), story_of(true)];
    let begin = prop_oneof![
        3 => Just(Vec::new()),
        3 => Just(tail()),
        1 => (1..3u8).prop_map(guilty),
        1 => (8..20u8).prop_map(shut_in),
        1 => (1..4u8, 2..4usize).prop_map(|(rows, slots)| failed_at_several(rows, slots)),
    ];
    let story = (begin, story).prop_map(|(begin, story)| begin.into_iter().chain(story).collect());
    let story = prop_oneof![2 => story, 1 => training_story()];
    let tokens = prop_oneof![2 => Just(Vec::new()), 2 => token_story(), 1 => revocation_story()];
    let openai = prop_oneof![5 => Just(Vec::new()), 1 => file_story(), 2 => batch_story()];
    // In half of them shares are fair from the beginning; in others they may become so on the way.
    let version = prop_oneof![
        2 => Just(Vec::new()),
        1 => Just(vec![Step::Version(3)]),
        1 => Just(vec![Step::Version(4)]),
    ];
    let members = prop_oneof![4 => Just(Vec::new()), 1 => member_story()];
    let keys = prop_oneof![4 => Just(Vec::new()), 1 => key_story()];
    let first = (version, story).prop_map(|(version, story)| version.into_iter().chain(story));
    let rest = (tokens, members, keys, openai);
    (first, rest).prop_map(|(first, (tokens, members, keys, openai))| {
        first.chain(tokens).chain(members).chain(keys).chain(openai).collect()
    })
}

/// A client enrolls, in a cluster that others have used; now and then in one that has no tokens yet.
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

/// API keys come and go; now and then in a cluster of too low a version.
fn key_story() -> impl Strategy<Value = Vec<Step>> {
    let act = || key_act().prop_map(Act::Key);
    let step = prop_oneof![
        8 => prop::collection::vec(act(), 1..3).prop_map(Step::Ops),
        3 => (1..9000u64).prop_map(Step::Tick),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
        1 => Just(Step::OpenEpoch),
    ];
    let version = prop_oneof![4 => Just(5), 1 => Just(4)].prop_map(Step::Version);
    (version, prop::collection::vec(step, 1..16))
        .prop_map(|(version, story)| std::iter::once(version).chain(story).collect())
}

/// Files and uploads come and go; now and then in a cluster of too low a version.
fn file_story() -> impl Strategy<Value = Vec<Step>> {
    let act = || file_act().prop_map(Act::File);
    let step = prop_oneof![
        12 => prop::collection::vec(act(), 1..4).prop_map(Step::Ops),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
        1 => Just(Step::OpenEpoch),
    ];
    let version = prop_oneof![4 => Just(5), 1 => Just(4)].prop_map(Step::Version);
    (version, prop::collection::vec(step, 1..24))
        .prop_map(|(version, story)| std::iter::once(version).chain(story).collect())
}

/// Batches are validated, run and ended; now and then in a cluster of too low a version.
fn batch_story() -> impl Strategy<Value = Vec<Step>> {
    let act = || batch_act().prop_map(Act::Batch);
    let claim = |worker| Act::Claim { worker, slot: 0, seq: 1, max: 8 };
    let done = |worker| Act::Settle { worker, slot: 0, how: Settled::Done };
    let step = prop_oneof![
        24 => prop::collection::vec(act(), 1..4).prop_map(Step::Ops),
        8 => (0..2u8).prop_map(move |worker| Step::Ops(vec![claim(worker)])),
        8 => (0..2u8).prop_map(move |worker| Step::Ops(vec![done(worker)])),
        4 => (1..9000u64).prop_map(Step::Tick),
        2 => file_act().prop_map(|act| Step::Ops(vec![Act::File(act)])),
        2 => (0..4u8).prop_map(|run| Step::Ops(vec![Act::Delete { run }])),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
        1 => Just(Step::OpenEpoch),
    ];
    let version = prop_oneof![9 => Just(5), 1 => Just(4)].prop_map(Step::Version);
    let file = |file| FileAct::Create { file, byte: 0, request: None, namespace: 0 };
    let files = (0..2).map(|n| Step::Ops(vec![Act::File(file(n))])).collect::<Vec<_>>();
    (version, prop::collection::vec(step, 16..64)).prop_map(move |(version, story)| {
        std::iter::once(version).chain(files.clone()).chain(story).collect()
    })
}

/// Certificates are revoked and accepted again; now and then in a cluster of too low a version.
fn revocation_story() -> impl Strategy<Value = Vec<Step>> {
    let act = || revocation_act().prop_map(Act::Revocation);
    let step = prop_oneof![
        8 => prop::collection::vec(act(), 1..3).prop_map(Step::Ops),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
        1 => Just(Step::OpenEpoch),
    ];
    let version = prop_oneof![4 => Just(3), 1 => Just(2)].prop_map(Step::Version);
    (version, prop::collection::vec(step, 1..16))
        .prop_map(|(version, story)| std::iter::once(version).chain(story).collect())
}

/// Members start, end and lead; now and then in a cluster of too low a version.
fn member_story() -> impl Strategy<Value = Vec<Step>> {
    let act = || member_act().prop_map(Act::Member);
    let step = prop_oneof![
        8 => prop::collection::vec(act(), 1..4).prop_map(Step::Ops),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
        2 => Just(Step::OpenEpoch),
    ];
    let version = prop_oneof![4 => Just(3), 1 => Just(2)].prop_map(Step::Version);
    (version, prop::collection::vec(step, 1..24))
        .prop_map(|(version, story)| std::iter::once(version).chain(story).collect())
}

/// A job of two trainers that read, and all that may happen to it. In some stories it becomes one record with the job of
/// participants of its name on the way.
fn training_story() -> impl Strategy<Value = Vec<Step>> {
    let act = || train().prop_map(Act::Train);
    let step = prop_oneof![
        16 => prop::collection::vec(act(), 1..4).prop_map(Step::Ops),
        2 => prop_oneof![3 => 1..900u64, 1 => 900..5000u64].prop_map(Step::Tick),
        1 => plain(false).prop_map(|act| Step::Ops(vec![act])),
        1 => job_act().prop_map(|act| Step::Ops(vec![Act::Job(act)])),
        1 => Just(Step::OpenEpoch),
        1 => act().prop_map(Step::Stale),
        1 => Just(Step::Reload),
    ];
    let raise = prop::option::of(0..120usize);
    (prop::collection::vec(step, 1..120), raise).prop_map(|(mut story, raise)| {
        if let Some(at) = raise {
            story.insert(at.min(story.len()), Step::Version(4));
        }
        let begin = Train::beginning().into_iter().map(|train| Step::Ops(vec![Act::Train(train)]));
        begin.chain(story).collect()
    })
}

/// One slot's engine has died three times, each time of this many rows, and another slot's engine of some of them.
fn guilty(rows: u8) -> Vec<Step> {
    let died = |worker, max| {
        let claim = Act::Claim { worker, slot: 0, seq: 1, max };
        let died = Act::Settle { worker, slot: 0, how: Settled::Died };
        [Step::Ops(vec![claim]), Step::Ops(vec![died])]
    };
    let first = (0..3).flat_map(|_| died(0, rows));
    first.chain((0..3).flat_map(|_| died(1, 1))).collect()
}

/// So many rows have each killed the engines of several slots, which ask again while another one is free.
fn failed_at_several(rows: u8, slots: usize) -> Vec<Step> {
    let slots = &[(0, 0), (1, 0), (0, 1)][..slots];
    let claim = |&(worker, slot)| Act::Claim { worker, slot, seq: 1, max: 1 };
    let died = |&(worker, slot)| Act::Settle { worker, slot, how: Settled::Died };
    let dies = |at| (0..rows).flat_map(move |_| [claim(at), died(at)]);
    let acts = slots.iter().flat_map(dies).chain(slots.iter().map(claim));
    let steps = acts.map(|act| Step::Ops(vec![act]));
    std::iter::once(Step::Version(4)).chain(steps).collect()
}

/// Each rule for rows that several slots failed decides about a row, one after the other: while one worker is cordoned,
/// both slots of the other one fail the row, and then a slot of the first one does. The 25th command is a tick, because
/// the caller of an operation there would have access to another namespace only.
pub(crate) fn set_rules() -> Vec<Step> {
    let step = |act| Step::Ops(vec![act]);
    let claim = |worker, slot| step(Act::Claim { worker, slot, seq: 1, max: 1 });
    let cordon = |cordoned| step(Act::Cordon { worker: 1, slot: None, cordoned });
    let pick = Pick { back: 0, mask: u16::MAX, wrong: false };
    // Failures of three classes: the row does not fail for good.
    let fail = |class| step(Act::Fail { pick, by: None, class });
    vec![
        Step::Version(4),
        step(Act::Control { run: 1, action: RunAction::Pause }),
        cordon(true),
        claim(0, 0),
        fail(FailureClass::InputUnreadable),
        Step::Tick(1000),
        claim(0, 1),
        fail(FailureClass::Transient),
        Step::Tick(1000),
        claim(0, 1),
        cordon(false),
        claim(0, 0),
        claim(1, 0),
        fail(FailureClass::OutOfMemory),
        Step::Tick(1000),
        claim(1, 0),
    ]
}

/// There is only one slot, and its queue kills one engine after another: the trials run there anyway.
fn shut_in(rows: u8) -> Vec<Step> {
    let cordon = |worker, slot| Act::Cordon { worker, slot, cordoned: true };
    let claim = Act::Claim { worker: 0, slot: 0, seq: 1, max: rows };
    let settle = |how| Act::Settle { worker: 0, slot: 0, how };
    let mut acts = vec![cordon(0, Some(1)), cordon(1, None), cordon(2, None), claim.clone()];
    acts.extend((0..3).map(|_| settle(Settled::HalfDied)));
    acts.extend([settle(Settled::Done), claim, settle(Settled::Done)]);
    acts.into_iter().map(|act| Step::Ops(vec![act])).collect()
}

/// One worker holds all rows of a run so long that the other runs some of them too.
fn tail() -> Vec<Step> {
    let claim = |slot| Act::Claim { worker: 0, slot, seq: 1, max: 59 };
    let close = |run| Act::Close { run, wrong: false };
    let speculate = |slot| Act::ClaimSpeculatively { worker: 1, slot, seq: 1, max: 9 };
    vec![
        Step::Ops(vec![close(0), close(1), claim(0), claim(1)]),
        Step::Tick(1200),
        Step::Ops(vec![speculate(0), speculate(1)]),
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
        1 => (0..5u32).prop_map(Step::Version),
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
    let deadline = prop_oneof![2 => Just(0), 1 => 1..20_000u64, 2 => 20_000..90_000u64];
    let weight = prop_oneof![8 => 1..5u32, 1 => 5..101u32, 1 => Just(0), 1 => Just(101)];
    prop_oneof![
        2 => (run(), prop::bool::weighted(0.2)).prop_map(|(run, other)| Act::Create { run, other }),
        8 => (run(), [0..9u8, 0..90u8], -4..2i8)
            .prop_map(|(run, rows, from)| Act::Segments { run, rows, from }),
        2 => (run(), prop::bool::weighted(0.2)).prop_map(|(run, wrong)| Act::Close { run, wrong }),
        2 => (run(), action).prop_map(|(run, action)| Act::Control { run, action }),
        1 => (run(), deadline).prop_map(|(run, deadline_ms)| Act::SetDeadline { run, deadline_ms }),
        1 => (run(), weight).prop_map(|(run, weight)| Act::SetWeight { run, weight }),
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
            .prop_map(|(run, stale, delivered)| Act::SettleWebhook { run, stale, delivered }),
        4 => (worker(), 0..2u8, prop::bool::weighted(0.6), prop::bool::weighted(0.7), 1..3u8, picks(0..4))
            .prop_map(|(worker, instance, alive, resume, slots, held)| {
                Act::Register { worker, instance, alive, resume, slots, held }
            }),
        1 => worker().prop_map(|worker| Act::Deregister { worker }),
        3 => (worker(), picks(0..4), prop::option::weighted(0.7, picks(0..6)), 1..8000u64).prop_map(
            |(worker, started, unreported_starts, grace_ms)| {
                Act::Suspect { worker, started, unreported_starts, grace_ms }
            }
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
            .prop_map(|(worker, slot, seq, max)| Act::ClaimSpeculatively { worker, slot, seq, max }),
        3 => (run(), -3..1i8, any::<u16>(), 0..9u8, prop::bool::weighted(0.1)).prop_map(
            |(run, segment, mask, part, wrong)| Act::ReuseResults { run, segment, mask, part, wrong }
        ),
        6 => (0..4u8, prop::collection::vec(store_op(), 0..5))
            .prop_map(|(store, ops)| Act::Store { store, ops }),
        1 => (0..4u8).prop_map(|store| Act::DropStore { store }),
        2 => (any::<bool>(), 0..4u8, prop::collection::vec(store_op(), 0..3))
            .prop_map(|(other, nth, ops)| Act::RoundStore { other, nth, ops }),
        24 => job_act().prop_map(Act::Job),
        4 => train().prop_map(Act::Train),
        1 => prop::sample::select(vec![0u32, 1, 2, 3, 3, 4, 20, 21]).prop_map(Act::CordonAfter),
    ]
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
