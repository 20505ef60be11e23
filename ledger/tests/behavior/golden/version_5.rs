//! Records that a member writes from cluster version 5 on, and not before.

use super::unapplied::{api_keys, batches, files, uploads};
use super::{Records, hex, lock};
use rollout_ledger::{Body, Command, EntryId, Ledger, OPENAI_API_VERSION, Reply};

fn apply(ledger: &mut Ledger, command: Command) -> Vec<Reply> {
    let entry = EntryId { index: ledger.applied().index + 1, term: 1 };
    ledger.apply(entry, &command.encode()).expect("it is known")
}

#[test]
fn the_bytes_of_api_keys_are_locked() {
    let mut ledger = Ledger::new([9; 16]);
    for body in [Body::OpenEpoch, Body::SetVersion(OPENAI_API_VERSION)] {
        apply(&mut ledger, super::commands::command(body));
    }
    assert_eq!(apply(&mut ledger, api_keys()), [Reply::Ok, Reply::Ok, Reply::Ok]);
    let mut records = Records::new();
    ledger.for_each_record(|key, value| {
        if key.starts_with(b"E\x01") {
            records.push((key.to_vec(), value.to_vec()));
        }
    });
    let lines: Vec<String> =
        records.iter().map(|(key, value)| format!("E1 {} {}", hex(key), hex(value))).collect();
    assert_eq!(lines.len(), 3);
    lock("records_5.txt", &lines);
}

#[test]
fn the_bytes_of_files_are_locked() {
    let mut ledger = Ledger::new([9; 16]);
    for body in [Body::OpenEpoch, Body::SetVersion(OPENAI_API_VERSION)] {
        apply(&mut ledger, super::commands::command(body));
    }
    for command in [files(), uploads()] {
        let replies = apply(&mut ledger, command);
        assert!(replies.iter().all(|reply| *reply == Reply::Ok), "{replies:?}");
    }
    let mut records = Records::new();
    ledger.for_each_record(|key, value| {
        if matches!(key, [b'E', 2..=4, ..]) {
            records.push((key.to_vec(), value.to_vec()));
        }
    });
    let line =
        |(key, value): &(Vec<u8>, Vec<u8>)| format!("E{} {} {}", key[1], hex(key), hex(value));
    let lines: Vec<String> = records.iter().map(line).collect();
    assert_eq!(lines.len(), 3 + 2 + 1, "{lines:#?}");
    lock("records_5_files.txt", &lines);
}

#[test]
fn the_bytes_of_batches_are_locked() {
    let mut ledger = Ledger::new([9; 16]);
    for body in [Body::OpenEpoch, Body::SetVersion(OPENAI_API_VERSION)] {
        apply(&mut ledger, super::commands::command(body));
    }
    for command in [files(), batches()] {
        let replies = apply(&mut ledger, command);
        let refused = replies.iter().find(|reply| matches!(reply, Reply::Rejected(_)));
        assert_eq!(refused, None);
    }
    ledger.check_invariants().expect("they hold");
    let mut lines = Vec::new();
    let mut all = Records::new();
    ledger.for_each_record(|key, value| {
        if matches!(key, [b'E', 5..=6, ..]) {
            lines.push(format!("E{} {} {}", key[1], hex(key), hex(value)));
        }
        all.push((key.to_vec(), value.to_vec()));
    });
    assert_eq!(lines.len(), 5 + 1, "{lines:#?}");
    lock("records_5_batches.txt", &lines);
    let loaded = Ledger::load(all.clone()).expect("whole");
    assert_eq!(loaded.state_digest(), ledger.state_digest());
    // A batch without its segments, and segments without their batch.
    for tag in [5, 6] {
        let less = all.iter().filter(|(key, _)| !matches!(key[..], [b'E', of, ..] if of == tag));
        assert!(Ledger::load(less.cloned()).is_err(), "loaded without records {tag}");
    }
}
