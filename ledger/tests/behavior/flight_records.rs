//! The image's records of what workers hold of a run: one record per lease from version 3 on, one record for all of
//! them before.
//!
//! *Invariant:* an image that every delta was written to has the records of the ledger, byte for byte, in either
//! layout and across the command that changes the layout. A delta of the newer layout contains what changed and not
//! everything in flight.

use crate::bench::{self, Bench, claim, complete, register, registration, spec};
use rollout_ledger::id::{RunNo, SlotRef};
use rollout_ledger::{
    Body, HeldRows, ImageDelta, Ledger, OpKind, Registration, Reply, Rows, RunSpec,
    SCHEDULING_VERSION, digest_records, op,
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

fn tags(image: &Image, tag: u8) -> usize {
    image.keys().filter(|key| key[0] == tag).count()
}

fn last(bench: &mut Bench, slot: SlotRef, seq: u64, rows: u32) -> HeldRows {
    bench.pull(slot, seq, rows).remove(0)
}

/// A run with rows in all states: live, lapsed beside live, lapsed alone, returned in two chunks, run twice.
fn in_flight(bench: &mut Bench) -> RunNo {
    let run = bench.run("r", RunSpec { tail_duplicates: true, ..spec() }, 9000);
    let digest = *blake3::hash(&[[1; 32]; 3].concat()).as_bytes();
    bench.granted(OpKind::CloseInput(op::CloseInput { run, rows: 9000, digest }));
    let slots: Vec<SlotRef> =
        ["a", "b", "c", "d", "e"].iter().map(|name| bench.worker(name, 1)).collect();
    let first = last(bench, slots[0], 1, 4000);
    last(bench, slots[1], 1, 600);
    let third = last(bench, slots[2], 1, 3000);
    let fourth = last(bench, slots[3], 1, 1400);
    // The first worker started some of its rows and is silent; the third left.
    let started = vec![HeldRows { rows: Rows::range(0, 10), ..first }];
    let session = slots[0].session;
    bench.granted(OpKind::Suspect(op::Suspect { session, started, grace_ms: 60_000 }));
    bench.granted(OpKind::Deregister(op::Deregister { session: slots[2].session }));
    // Every other row of the fourth is done.
    let odd = fourth.rows.iter().step_by(2).map(|row| (row, 1));
    let odd = HeldRows { rows: Rows::from_ranges(odd).expect("ascending"), ..fourth };
    bench.granted(complete(slots[3], run, vec![odd]));
    // Almost all returned rows have a holder again; then the last slot runs a row that another slot runs.
    last(bench, slots[3], 2, 3990);
    last(bench, slots[1], 2, 2990);
    let fifth = last(bench, slots[4], 1, 10);
    bench.tick_to(2000);
    let speculative = OpKind::ClaimSpeculatively(op::ClaimSpeculatively {
        slot: slots[4],
        instance: 1,
        seq: 2,
        rows_max: 20,
    });
    assert!(matches!(bench.granted(speculative), Reply::Granted(granted) if !granted.is_empty()));
    bench.granted(OpKind::Nack(op::Nack { slot: slots[4], held: vec![fifth] }));
    let view = bench.ledger.flight_view(run).expect("a run");
    assert!(!view.live.is_empty() && !view.speculative.is_empty(), "{view:?}");
    let _ = third;
    run
}

#[test]
fn the_image_is_converted_with_the_delta_after_the_version_was_raised() {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(SCHEDULING_VERSION - 1));
    let run = in_flight(&mut bench);
    let mut image = Image::new();
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);
    assert_eq!((tags(&image, b'O'), tags(&image, b'V')), (0, 0), "as builds of before read it");

    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);
    assert!(tags(&image, b'O') > 3 && tags(&image, b'V') > 0, "{:?}", image.keys());

    // It continues from there, also after loading.
    let mut loaded = Ledger::load(image.clone()).expect("it loads");
    assert_eq!(loaded.drain_dirty(), ImageDelta::default(), "nothing has changed since");
    bench.tick_to(62_000);
    let slot = bench.worker("f", 1);
    bench.pull(slot, 1, 100);
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);

    // What ends leaves nothing behind.
    let action = rollout_ledger::RunAction::Cancel;
    bench.granted(OpKind::ControlRun(op::ControlRun { run, action, reason: String::new() }));
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);
    assert_eq!(tags(&image, b'O'), 0);
    bench.granted(OpKind::DeleteRun(op::DeleteRun { run }));
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);
    assert_eq!(tags(&image, b'V'), 0);
}

#[test]
fn every_delta_of_either_version_brings_the_image_up_to_date() {
    for version in [SCHEDULING_VERSION - 1, SCHEDULING_VERSION] {
        let mut bench = Bench::new();
        bench.command(Body::SetVersion(version));
        let mut image = Image::new();
        write(&mut image, bench.ledger.drain_dirty());
        in_flight(&mut bench);
        write(&mut image, bench.ledger.drain_dirty());
        check(&image, &bench.ledger);
        // The silent worker is back, in a new process, with its rows.
        let next = Registration { instance: 2, ..registration("a", 1) };
        bench.granted(register(next));
        write(&mut image, bench.ledger.drain_dirty());
        check(&image, &bench.ledger);
        bench.tick_to(70_000);
        write(&mut image, bench.ledger.drain_dirty());
        check(&image, &bench.ledger);
    }
}

#[test]
fn a_delta_takes_no_more_bytes_for_what_others_hold() {
    let bytes_of = |others: u32| {
        let mut bench = Bench::new();
        bench.command(Body::SetVersion(SCHEDULING_VERSION));
        bench.run("r", spec(), 100_000);
        for number in 0..others {
            let slot = bench.worker(&format!("w{number}"), 1);
            // Every third slot's rows come back in pieces, next to those of the others.
            let held = last(&mut bench, slot, 1, 10);
            if number.is_multiple_of(3) {
                bench.granted(OpKind::Nack(op::Nack { slot, held: vec![held] }));
            }
        }
        let slot = bench.worker("own", 1);
        bench.ledger.drain_dirty();
        bench.granted(claim(slot, 1, 10));
        let delta = bench.ledger.drain_dirty();
        delta.puts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
    };
    let (few, many) = (bytes_of(30), bytes_of(3000));
    assert!(many < few + few / 4, "{few} bytes beside few others, {many} beside many");
}

#[test]
fn a_grant_writes_the_record_of_its_slot_and_of_no_other_of_its_worker() {
    let bytes_of = |slots: u16| {
        let mut bench = Bench::new();
        bench.command(Body::SetVersion(SCHEDULING_VERSION));
        bench.run("r", spec(), 100_000);
        let first = bench.worker("w", usize::from(slots));
        let at = |slot: u16| SlotRef { slot: rollout_ledger::id::SlotNo(slot), ..first };
        (1..slots).for_each(|slot| drop(last(&mut bench, at(slot), 1, 10)));
        bench.ledger.drain_dirty();
        bench.granted(claim(first, 1, 10));
        let delta = bench.ledger.drain_dirty();
        delta.puts.iter().map(|(key, value)| key.len() + value.len()).sum::<usize>()
    };
    let (one, many) = (bytes_of(1), bytes_of(64));
    assert!(many < one + one / 4, "{one} bytes alone, {many} beside 63 other slots");
}

#[test]
fn a_row_that_is_decided_writes_its_block_unless_its_segment_is_older() {
    let mut bench = Bench::new();
    let run = bench.run("r", spec(), 12_000);
    let slot = bench.worker("w", 1);
    let mut image = Image::new();
    let mut seq = 0;
    let mut step = |bench: &mut Bench, rows: u32, done: bool| {
        seq += 1;
        let held = last(bench, slot, seq, rows);
        write(&mut image, bench.ledger.drain_dirty());
        if done {
            bench.granted(complete(slot, run, vec![held]));
        } else {
            bench::fail(bench, slot, held, rollout_ledger::FailureClass::InvalidRow);
        }
        let delta = bench.ledger.drain_dirty();
        let outcomes = delta.puts.iter().filter(|(key, _)| matches!(key[0], b'S' | b'Y'));
        let bytes = outcomes.map(|(key, value)| key.len() + value.len()).sum::<usize>();
        write(&mut image, delta);
        check(&image, &bench.ledger);
        (bytes, tags(&image, b'Y'))
    };
    assert!(step(&mut bench, 10, true).0 > 4096, "the whole segment");
    bench.command(Body::SetVersion(SCHEDULING_VERSION));
    let (bytes, blocks) = step(&mut bench, 10, true);
    assert!(bytes > 4096 && blocks == 0, "it was begun before");
    step(&mut bench, 4076, true);
    let (bytes, blocks) = step(&mut bench, 10, true);
    assert!(bytes < 1000 && blocks == 1, "{bytes} bytes in {blocks} blocks");
    // A row that ends one block, and one that begins another.
    assert_eq!(step(&mut bench, 256, true).1, 2);
    step(&mut bench, 4096 - 266, true);
    let (_, blocks) = step(&mut bench, 1, false);
    assert_eq!(blocks, 17);
    // What is undone leaves no record behind.
    assert_eq!(
        bench.granted(OpKind::RetryRows(op::RetryRows { run, rows: None })),
        Reply::Retried { rows: 1 }
    );
    write(&mut image, bench.ledger.drain_dirty());
    check(&image, &bench.ledger);
    assert_eq!(tags(&image, b'Y'), 16);
}
