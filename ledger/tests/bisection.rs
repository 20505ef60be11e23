//! Bisection alone: groups of rows with poison among them, on fleets of one to three slots, with
//! leaders that change and members that are loaded from their images at any moment.
//!
//! Nobody is there to lift a cordon. However it goes: every poison row fails, every other row is done and has never had a strike, and
//! engines die at most `log2(rows) + 2` times for each poison row.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::view::{ItemPlace, RunState};
use rollout_ledger::{
    BlobRef, Body, Command, EngineSpec, EntryId, Evidence, FailureClass, GrantedRows, HeldRows,
    Ledger, OpKind, PartDecl, Registration, Reply, RunSpec, SegmentDecl, SlotOffer,
};
use std::collections::{BTreeMap, BTreeSet};

const RUN: RunNo = RunNo(1);

struct Fleet {
    ledger: Ledger,
    image: BTreeMap<Vec<u8>, Vec<u8>>,
    index: u64,
    term: u64,
    clock: u64,
    slots: Vec<(SlotRef, u64)>,
}

impl Fleet {
    fn new(rows: u32, slots: usize) -> Self {
        let (ledger, image) = (Ledger::new([3; 16]), BTreeMap::new());
        let mut fleet = Self { ledger, image, index: 0, term: 0, clock: 0, slots: Vec::new() };
        fleet.lead();
        let spec = RunSpec {
            engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
            weight: 1,
            attempts_max: 3,
            failures_max: 64,
            ..RunSpec::default()
        };
        let (namespace, name) = ("default".into(), "chat".into());
        let folder = format!("{name}/1");
        fleet.op(OpKind::CreateRun { namespace, name, spec: Box::new(spec), folder });
        let blob = BlobRef { digest: [1; 32], bytes: 1 };
        let segments = vec![SegmentDecl { number: SegmentNo(0), rows, blob }];
        fleet.op(OpKind::AddSegments { run: RUN, segments });
        let digest = *blake3::hash(&[1; 32]).as_bytes();
        fleet.op(OpKind::CloseInput { run: RUN, rows: rows.into(), digest });
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: "default".into(),
            name: "w".into(),
            slots: vec![offer; slots],
            ..Registration::default()
        };
        fleet.op(OpKind::Register(Box::new(registration)));
        let session = SessionId::at(fleet.index, 0);
        let slot = |n| (SlotRef { session, slot: SlotNo(n as u16) }, 0);
        fleet.slots = (0..slots).map(slot).collect();
        fleet
    }

    fn apply(&mut self, body: Body) -> Reply {
        self.index += 1;
        let entry = EntryId { index: self.index, term: self.term };
        let at = LedgerMs(self.clock);
        let command = Command { epoch: CoordEpoch(self.term), at, wall_ms: self.clock, body };
        let replies = self.ledger.apply(entry, &command.encode()).expect("known");
        self.ledger.check_invariants().expect("they hold");
        replies.into_iter().next().expect("one")
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        let reply = self.apply(Body::Ops(vec![kind.into()]));
        assert!(!matches!(reply, Reply::Rejected(_)), "{reply:?}");
        reply
    }

    /// A new leader, at a member that knows nothing but the image.
    fn lead(&mut self) {
        let delta = self.ledger.drain_dirty();
        self.image.extend(delta.puts);
        delta.deletes.iter().for_each(|key| {
            self.image.remove(key);
        });
        self.ledger = Ledger::load(self.image.clone()).expect("what was drained loads");
        self.term += 1;
        self.apply(Body::OpenEpoch);
    }

    fn pull(&mut self, at: usize, rows_max: u32) -> Vec<GrantedRows> {
        let (slot, last) = self.slots[at];
        match self.op(OpKind::Claim { slot, instance: 0, seq: last + 1, rows_max }) {
            Reply::Granted(grants) => {
                self.slots[at].1 += u64::from(!grants.is_empty());
                grants
            }
            other => panic!("{other:?}"),
        }
    }
}

/// One slot runs what it was given, `together` rows at a time. What waited when its engine died goes on in the next
/// one, if it `keeps` that, or comes back. Returns how often its engine died.
fn run(
    fleet: &mut Fleet,
    at: usize,
    mut held: HeldRows,
    poison: &BTreeSet<u64>,
    (together, keeps): (u32, bool),
    class: FailureClass,
) -> u32 {
    let slot = fleet.slots[at].0;
    let mut deaths = 0;
    while !held.rows.is_empty() {
        let rows = held.rows.take_first(together);
        let batch = HeldRows { rows, ..held };
        if batch.rows.iter().any(|row| poison.contains(&row)) {
            fleet.op(OpKind::EngineDied {
                slot,
                number: 0,
                started: vec![batch],
                class,
                code: "sigkill".into(),
                message: String::new(),
                evidence: Evidence::default(),
            });
            deaths += 1;
            if keeps {
                continue;
            }
            fleet.op(OpKind::Nack { slot, held: vec![held] });
            return deaths;
        }
        let digest = *blake3::hash(&fleet.index.to_be_bytes()).as_bytes();
        let part = PartDecl { blob: BlobRef { digest, bytes: 1 }, tokens_in: 0, tokens_out: 0 };
        fleet.op(OpKind::Complete { slot, run: RUN, part, sets: vec![batch] });
    }
    deaths
}

fn play(
    rows: u32,
    poison: &BTreeSet<u64>,
    slots: usize,
    together: (u32, bool),
    memory: bool,
    turns: &[(u8, bool)],
) -> TestCaseResult {
    let class = if memory { FailureClass::OutOfMemory } else { FailureClass::EngineDied };
    let strikes = if memory { 3 } else { 2 };
    let mut fleet = Fleet::new(rows, slots);
    let mut deaths = 0;
    let mut idle = 0;
    for turn in 0.. {
        let (choice, failover) = turns[turn % turns.len()];
        if failover {
            fleet.lead();
        }
        // Each slot asks in its turn, and another as it comes: of one that never asks a cordoned one would wait for ever.
        let at = match turn % 2 {
            0 => turn / 2 % slots,
            _ => usize::from(choice) % slots,
        };
        let mut grants = fleet.pull(at, 64);
        idle = if grants.is_empty() { idle + 1 } else { 0 };
        if let Some(granted) = grants.pop() {
            prop_assert!(grants.is_empty(), "one run, one grant");
            deaths += run(&mut fleet, at, granted.held, poison, together, class);
        }
        if fleet.ledger.run_view(RUN).expect("there").state == RunState::Finished {
            break;
        }
        // Whoever is to come before the slot that asks may never do so: then time decides.
        fleet.clock += if memory { 5000 } else { u64::from(idle > 0) * 1500 };
        fleet.apply(Body::Tick);
        prop_assert!(idle < 20, "there is work, and nobody gets it");
    }
    for row in 0..u64::from(rows) {
        let item = fleet.ledger.item(RUN, row).expect("there");
        match poison.contains(&row) {
            true => {
                prop_assert_eq!(item.place, ItemPlace::Failed);
                prop_assert_eq!(item.trouble.strikes.total(), strikes);
            }
            false => {
                prop_assert!(matches!(item.place, ItemPlace::Done(..)), "row {row}: {item:?}");
                prop_assert_eq!(item.trouble.strikes.total(), 0);
            }
        }
    }
    let halvings = rows.next_power_of_two().ilog2();
    let bound = poison.len() as u32 * (halvings + strikes);
    prop_assert!(deaths <= bound, "{deaths} deaths of {} poison rows, not {bound}", poison.len());
    Ok(())
}

proptest! {
    #[test]
    fn poison_is_isolated_and_the_innocent_are_done_without_a_strike(
        rows in 1..65u32,
        poison in prop::collection::btree_set(0..64u64, 0..7),
        slots in 1..4usize,
        together in prop_oneof![3 => Just(64u32), 2 => 1..65u32],
        keeps in prop::bool::ANY,
        memory in prop::bool::weighted(0.3),
        turns in prop::collection::vec((0..3u8, prop::bool::weighted(0.1)), 1..20),
    ) {
        let poison = poison.into_iter().filter(|row| *row < u64::from(rows)).collect();
        play(rows, &poison, slots, (together, keeps), memory, &turns)?;
    }
}

#[test]
fn a_batch_of_nothing_but_poison_is_isolated_too() {
    let poison = (0..64).collect();
    play(64, &poison, 1, (64, false), false, &[(0, false)]).expect("isolated");
}

#[test]
fn a_fleet_of_one_that_its_queue_cordons_isolates_them_all_the_same() {
    let poison = (0..64).step_by(4).collect();
    for memory in [false, true] {
        play(64, &poison, 1, (4, true), memory, &[(0, false)]).expect("isolated");
        play(64, &poison, 3, (4, true), memory, &[(0, false)]).expect("isolated");
    }
}

#[test]
fn a_slot_that_dies_of_every_row_makes_none_poison_where_there_is_another() {
    let mut fleet = Fleet::new(64, 2);
    let all = (0..64).collect();
    for turn in 0..400 {
        // The broken one is always there first: it asks twice as often.
        let at = usize::from(turn % 3 == 2);
        for granted in fleet.pull(at, 16) {
            let poison = if at == 0 { &all } else { &BTreeSet::new() };
            run(&mut fleet, at, granted.held, poison, (16, false), FailureClass::EngineDied);
        }
    }
    let run = fleet.ledger.run_view(RUN).expect("there");
    assert_eq!((run.state, run.counts.failed), (RunState::Finished, 0));
}
