//! Bytes that must stay readable forever: a command, a reply and a record of each kind.
//!
//! These lines never change; new ones are added. A difference here means that members of two versions would disagree,
//! or that a log on disk is no longer readable. `ROLLOUT_REWRITE=1` rewrites the files; use it only if no cluster has
//! seen the old bytes.

mod commands;
mod kinds;
mod replies;
mod training;
mod unapplied;
mod version_3;
mod version_4;
mod version_5;

use rollout_ledger::{Body, Command, EntryId, Ledger, SCHEDULING_VERSION, UnknownCommand};
use std::fmt::Write;
use std::path::Path;

type Records = Vec<(Vec<u8>, Vec<u8>)>;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut out, byte| {
        let _ = write!(out, "{byte:02x}");
        out
    })
}

/// Compares lines with those of a file, or writes them there.
fn lock(file: &str, lines: &[String]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata/golden");
    rollout_recorded::check(folder.join(file), &(lines.join("\n") + "\n"));
}

/// The ledger after all commands, and the records that it drained on the way.
fn played() -> (Ledger, Records) {
    let mut ledger = Ledger::new([9; 16]);
    let mut image = std::collections::BTreeMap::new();
    for (index, (name, command)) in (1..).zip(commands::all()) {
        let entry = EntryId { index, term: 1 };
        ledger.apply(entry, &command.encode()).expect("known");
        ledger.check_invariants().unwrap_or_else(|e| panic!("{name}: {e}"));
        let delta = ledger.drain_dirty();
        image.extend(delta.puts);
        delta.deletes.iter().for_each(|key| {
            image.remove(key);
        });
    }
    (ledger, image.into_iter().collect())
}

#[test]
fn the_bytes_of_commands_are_locked() {
    let all = commands::all();
    let lines: Vec<String> =
        all.iter().map(|(name, c)| format!("{name} {}", hex(&c.encode()))).collect();
    lock("commands.txt", &lines);
    for (name, command) in all {
        assert_eq!(Command::decode(&command.encode()), Some(command), "{name}");
    }
}

#[test]
fn the_bytes_of_more_commands_are_locked() {
    let all = unapplied::all();
    let lines: Vec<String> =
        all.iter().map(|(name, c)| format!("{name} {}", hex(&c.encode()))).collect();
    lock("commands_more.txt", &lines);
    for (name, command) in all {
        assert_eq!(Command::decode(&command.encode()), Some(command), "{name}");
    }
}

#[test]
fn the_bytes_of_a_members_use_of_its_rounds_store_are_locked() {
    let command = commands::round_store();
    let locked = "0101ac02fbd095ffbc310101002c0764656661756c7405747261696e020700";
    assert_eq!(hex(&command.encode()), locked);
    assert_eq!(Command::decode(&command.encode()), Some(command));
}

#[test]
fn the_bytes_of_a_setting_are_locked() {
    let command = commands::setting();
    let locked = "0101ac02fbd095ffbc310101002d0005";
    assert_eq!(hex(&command.encode()), locked);
    assert_eq!(Command::decode(&command.encode()), Some(command.clone()));
    let (mut ledger, _) = played();
    for body in [Body::SetVersion(SCHEDULING_VERSION), command.body] {
        let entry = EntryId { index: ledger.applied().index + 1, term: 1 };
        ledger.apply(entry, &commands::command(body).encode()).expect("known");
    }
    let mut record = None;
    ledger.for_each_record(|key, value| {
        if key == b"Ms" {
            record = Some(hex(value));
        }
    });
    assert_eq!(record.as_deref(), Some("0105"));
}

#[test]
fn the_bytes_of_records_are_locked() {
    let (ledger, records) = played();
    let tags: String = records.iter().map(|r| char::from(r.0[0])).collect();
    for tag in "ABCDEFGHIJKLMNPQRSTUWX".chars() {
        assert!(tags.contains(tag), "no record of kind {tag}");
    }
    let lines: Vec<String> = records
        .iter()
        .map(|(key, value)| format!("{} {} {}", char::from(key[0]), hex(key), hex(value)))
        .chain([format!("digest {}", hex(&ledger.state_digest()))])
        .collect();
    lock("records.txt", &lines);
}

/// The records of rows in flight, which have another layout from version 3 on, and those of members and of the first session
/// of version 3, which came with it.
#[test]
fn the_bytes_of_records_of_version_3_are_locked() {
    let (mut ledger, _) = played();
    let entry = EntryId { index: ledger.applied().index + 1, term: 1 };
    let raise = commands::command(Body::SetVersion(SCHEDULING_VERSION));
    ledger.apply(entry, &raise.encode()).expect("known");
    let entry = EntryId { index: entry.index + 1, term: 1 };
    ledger.apply(entry, &commands::members().encode()).expect("known");
    let mut lines = Vec::new();
    ledger.for_each_record(|key, value| {
        if b"FOV".contains(&key[0]) || [&b"Mh"[..], b"Mm"].contains(&key) {
            lines.push(format!("{} {} {}", char::from(key[0]), hex(key), hex(value)));
        }
    });
    for tag in ["F", "M", "O", "V"] {
        assert!(lines.iter().any(|line| line.starts_with(tag)), "no record of kind {tag}");
    }
    lock("records_3.txt", &lines);
}

#[test]
fn an_image_of_before_arrivals_had_tickets_is_read() {
    let (ledger, records) = played();
    let older: Records = records.iter().filter(|r| r.0[0] != b'A').cloned().collect();
    assert!(older.len() < records.len());
    let loaded = Ledger::load(older).expect("whole");
    loaded.check_invariants().expect("holds");
    assert_ne!(loaded.state_digest(), ledger.state_digest());
    // Tickets of a missing barrier must be refused.
    let alone = records.iter().filter(|r| r.0[0] != b'B').cloned();
    assert!(Ledger::load(alone).is_err());
}

#[test]
fn bytes_of_another_version_stop_the_member() {
    let good = commands::all().remove(0).1.encode();
    let mut ledger = Ledger::new([9; 16]);
    let mut newer = good.clone();
    newer[0] += 1;
    let mut unknown = good.clone();
    *unknown.last_mut().unwrap() = 99; // The kind of body comes last where it has no fields.
    let longer = [&good[..], &[0]].concat();
    for bad in [&newer[..], &unknown, &longer, &good[..good.len() - 1], &[]] {
        let entry = EntryId { index: 5, term: 1 };
        assert_eq!(ledger.apply(entry, bad), Err(UnknownCommand { index: 5 }));
    }
    assert_eq!(ledger.applied(), EntryId::default(), "nothing was applied");
}

#[test]
fn an_image_that_is_no_state_is_refused() {
    let (ledger, records) = played();
    let loaded = Ledger::load(records.clone()).expect("whole");
    assert_eq!(loaded.state_digest(), ledger.state_digest());
    loaded.check_invariants().expect("holds");
    // Without its position, a run without its head, segments with a gap.
    let without = |tag: u8, nth: usize| {
        let at = records.iter().enumerate().filter(|(_, r)| r.0[0] == tag).nth(nth).unwrap().0;
        let mut less = records.clone();
        less.remove(at);
        Ledger::load(less)
    };
    for (tag, nth) in [(b'M', 0), (b'R', 0), (b'S', 0), (b'S', 1)] {
        assert!(without(tag, nth).is_err(), "loaded without {} {nth}", char::from(tag));
    }
    for at in 0..records.len() {
        let mut bad = records.clone();
        bad[at].1.push(0);
        assert!(Ledger::load(bad).is_err(), "a longer record loaded");
        let mut bad = records.clone();
        bad[at].1[0] = 77;
        assert!(Ledger::load(bad).is_err(), "a record of another version loaded");
    }
    let mut foreign = records.clone();
    foreign.push((b"Z".to_vec(), vec![1]));
    assert!(Ledger::load(foreign).is_err(), "a record of no kind loaded");
}
