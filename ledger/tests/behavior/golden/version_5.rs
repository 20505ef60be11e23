//! Records that a member writes from cluster version 5 on, and not before.

use super::unapplied::api_keys;
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
