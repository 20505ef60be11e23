//! Bisection alone: groups of rows with poison rows among them, on fleets of one to three slots, with changing
//! leaders and members that are loaded from their images at any moment. Time hardly advances; `blame.rs` covers that.
//!
//! No operator lifts a cordon. In every case each poison row fails, every other row is done and has never had a
//! strike, and engines die at most `log2(rows) + 2` times for each poison row.

use crate::fleet::Fleet;
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::id::RunNo;
use rollout_ledger::view::{ItemPlace, RunState};
use rollout_ledger::{FailureClass, HeldRows, OpKind, op};
use std::collections::BTreeSet;

const RUN: RunNo = RunNo(1);

/// A run of this many rows in a cluster of this version, and one worker with this many slots.
fn fleet(rows: u32, (slots, version): (usize, u32)) -> Fleet {
    let mut fleet = Fleet::new(version);
    fleet.run("default", "chat", rows);
    fleet.worker("default", "w", slots);
    fleet
}

/// One slot runs its rows, `together` rows at a time. Rows that waited when its engine died continue in the next
/// engine if the slot `keeps` them, or come back. Returns how often its engine died.
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
            fleet.died(at, vec![batch], class);
            deaths += 1;
            if keeps {
                continue;
            }
            fleet.op(OpKind::Nack(op::Nack { slot, held: vec![held] }));
            return deaths;
        }
        fleet.done(at, batch);
    }
    deaths
}

fn play(
    rows: u32,
    poison: &BTreeSet<u64>,
    (slots, version): (usize, u32),
    together: (u32, bool),
    memory: bool,
    turns: &[(u8, bool)],
) -> TestCaseResult {
    let class = if memory { FailureClass::OutOfMemory } else { FailureClass::EngineDied };
    let strikes = if memory { 3 } else { 2 };
    let mut fleet = fleet(rows, (slots, version));
    let mut deaths = 0;
    let mut idle = 0;
    for turn in 0.. {
        let (choice, failover) = turns[turn % turns.len()];
        if failover {
            fleet.lead();
        }
        // Each slot asks in turn, and a random one in between: a cordoned slot would wait forever for a slot that
        // never asks.
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
        // The slots that come first may never ask: then time decides.
        fleet.tick(if memory { 5000 } else { u64::from(idle > 0) * 1500 });
        prop_assert!(idle < 20, "there is work, and nobody gets it");
    }
    for row in 0..u64::from(rows) {
        let item = fleet.ledger.item(RUN, row).expect("there");
        match poison.contains(&row) {
            true => {
                prop_assert_eq!(item.place, ItemPlace::Failed);
                let total = item.failure_record.strikes.total();
                // A slot that had it before may not decide where another one takes work again.
                prop_assert!(
                    total == strikes || version >= 3 && total > strikes,
                    "{total} strikes"
                );
            }
            false => {
                prop_assert!(matches!(item.place, ItemPlace::Done(..)), "row {row}: {item:?}");
                prop_assert_eq!(item.failure_record.strikes.total(), 0);
            }
        }
    }
    let halvings = rows.next_power_of_two().ilog2();
    let again = u32::from(version >= 3);
    let bound = poison.len() as u32 * (halvings + strikes + again);
    prop_assert!(deaths <= bound, "{deaths} deaths of {} poison rows, not {bound}", poison.len());
    Ok(())
}

proptest! {
    #[test]
    fn poison_is_isolated_and_the_innocent_are_done_without_a_strike(
        rows in 1..65u32,
        poison in prop::collection::btree_set(0..64u64, 0..7),
        slots in (1..4usize, prop_oneof![Just(2u32), Just(3u32)]),
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
    for version in [2, 3] {
        play(64, &poison, (1, version), (64, false), false, &[(0, false)]).expect("isolated");
    }
}

#[test]
fn a_single_slot_cordoned_by_its_queue_still_isolates_the_rows() {
    let poison = (0..64).step_by(4).collect();
    for (memory, version) in [(false, 2), (true, 2), (false, 3), (true, 3)] {
        play(64, &poison, (1, version), (4, true), memory, &[(0, false)]).expect("isolated");
        play(64, &poison, (3, version), (4, true), memory, &[(0, false)]).expect("isolated");
    }
}

#[test]
fn a_slot_that_dies_of_every_row_makes_none_poison_where_there_is_another() {
    let mut fleet = fleet(64, (2, 2));
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
    assert!(fleet.cordon(1).is_none(), "the other one did nothing wrong");
}
