//! Fuzzes backups, which are snapshot files: reading, verifying and printing them, and the state that a restore makes
//! of them. The first byte selects whether the bytes are the file itself, or records from which a file is made.

use std::collections::BTreeMap;

use rollout_ledger::Ledger;
use rollout_storage::{SnapshotFileReader, SnapshotFileWriter, SnapshotHeader, SnapshotMember};

use super::{commands, file_of, images, of, push_sized, take_sized};

pub(crate) fn run(bytes: &[u8]) {
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 2 {
        0 => raw(rest),
        _ => written(rest),
    }
}

/// Verification accepts what a restore accepts.
fn raw(bytes: &[u8]) {
    let path = file_of("snapshot", bytes);
    if let Ok(mut reader) = SnapshotFileReader::open(&path) {
        while let Some(Ok(_)) = reader.next() {}
    }
    // A restore checks all of it before it makes a member.
    let restored = rollout_raft::fuzzing::backup(&path).is_ok();
    let verified = rollout_ctl::fuzzing::snapshot(&path).is_some();
    assert!(verified || !restored, "a restore accepts a file that is not complete");
}

/// Written records are readable and are verified, and a restore accepts or refuses them.
fn written(mut bytes: &[u8]) {
    let mut sized = || take_sized(&mut bytes);
    let index = sized().and_then(|index| index.first()).copied().unwrap_or_default();
    let records = std::iter::from_fn(|| Some((sized()?.to_vec(), sized()?.to_vec())));
    let records: BTreeMap<Vec<u8>, Vec<u8>> = records.collect();
    let path = file_of("snapshot", &file(u64::from(index), &records));
    let reader = SnapshotFileReader::open(&path).expect("what was written opens");
    let read = reader.collect::<Result<BTreeMap<_, _>, _>>().expect("what was written is read");
    assert_eq!(read, records);
    let (table, _) = rollout_ctl::fuzzing::snapshot(&path).expect("what was written is verified");
    assert!(table.contains("Members  c1\n"), "{table}");
    let _ = rollout_raft::fuzzing::backup(&path);
}

fn file(index: u64, records: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<u8> {
    let member = SnapshotMember {
        name: "c1".into(),
        peer_addr: "c1:7421".into(),
        client_addr: "c1:7420".into(),
        zone: "a".into(),
    };
    let header = SnapshotHeader {
        cluster_id: "09".repeat(16),
        member: "c1".into(),
        index,
        term: 2,
        taken_unix_ms: 1,
        cluster_version: 3,
        program: "0.1.0".into(),
        salvaged: false,
        members: vec![member],
    };
    let mut writer = SnapshotFileWriter::new(Vec::new(), &header).expect("a header");
    for (key, value) in records {
        writer.record(key, value).expect("a record");
    }
    writer.finish().expect("an end").0
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let few = [(b"M".to_vec(), b"meta".to_vec()), (b"Rx".to_vec(), Vec::new())];
    let mut ledger = Ledger::new([9; 16]);
    for (index, command) in (1..).zip(commands::seeds().into_iter().take(5)) {
        let entry = rollout_ledger::EntryId { index, term: 1 };
        ledger.apply(entry, &command).expect("a command of this version");
    }
    let mut state = BTreeMap::new();
    ledger.for_each_record(|key, value| drop(state.insert(key.to_vec(), value.to_vec())));
    let index = ledger.applied().index;
    let mut small = vec![1];
    push_sized(&mut small, &[index as u8]);
    for (key, value) in &state {
        push_sized(&mut small, key);
        push_sized(&mut small, value);
    }
    let mut large = vec![1];
    push_sized(&mut large, &[commands::seeds().len() as u8]);
    large.extend(images::seeds().pop().unwrap_or_default());
    vec![of(0, &file(7, &BTreeMap::from(few))), of(0, &file(index, &state)), small, large]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_ledger_is_verified_and_restored() {
        let seeds = seeds();
        let path = file_of("snapshot", &seeds[1][1..]);
        let index = rollout_raft::fuzzing::backup(&path).expect("it is restored");
        let (_, json) = rollout_ctl::fuzzing::snapshot(&path).expect("it is verified");
        assert!(json.contains(&format!(r#""index":"{index}""#)), "{json}");
    }
}
