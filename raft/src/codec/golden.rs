//! Owns: golden tests that fix the bytes this version writes.
//!
//! Invariant: a change here is a new format version, and the old one stays readable.
//! Absent: anything else.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, TransferLeaderError, TransferLeaderRequest,
    VoteRequest, VoteResponse,
};

use super::*;
use crate::member::{Joins, MemberRecord};
use crate::types::{Command, Entry, Membership, SnapshotMeta, StoredMembership, Vote, log_id};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn member(id: u64, name: &str) -> MemberRecord {
    MemberRecord {
        id,
        name: name.into(),
        peer_addr: "p:1".into(),
        client_addr: "c:2".into(),
        zone: "z".into(),
        version_min: 1,
        version_max: 2,
        joins: match id {
            9 => Joins::Voter { replaces: Some(7) },
            10 => Joins::Learner,
            _ => Joins::default(),
        },
        adopted: false,
    }
}

fn membership() -> Membership {
    let voters = vec![BTreeSet::from([1]), BTreeSet::from([1, 9])];
    let nodes = BTreeMap::from([(1, member(1, "a")), (9, member(9, "b")), (10, member(10, "l"))]);
    Membership::new(voters, nodes).expect("valid")
}

fn entry(payload: EntryPayload<Command, u64, MemberRecord>) -> Entry {
    Entry { log_id: log_id(3, 258), payload }
}

fn command(bytes: &'static [u8]) -> Entry {
    entry(EntryPayload::Normal(Command(Bytes::from_static(bytes))))
}

const ID: &str = "03000000000000000201000000000000";

const MEMBERSHIP: &str = "02000000\
    010000000100000000000000\
    0200000001000000000000000900000000000000\
    03000000\
    010000000000000001000000000000000100000061\
    03000000703a3103000000633a32010000007a010000000200000001\
    090000000000000009000000000000000100000062\
    03000000703a3103000000633a32010000007a0100000002000000020700000000000000\
    0a000000000000000a00000000000000010000006c\
    03000000703a3103000000633a32010000007a010000000200000000";

const ADOPTED_MEMBERSHIP: &str = "02000000\
    010000000100000000000000\
    0200000001000000000000000900000000000000\
    03000000\
    010000000000000001000000000000000100000061\
    03000000703a3103000000633a32010000007a010000000200000004\
    090000000000000009000000000000000100000062\
    03000000703a3103000000633a32010000007a0100000002000000050700000000000000\
    0a000000000000000a00000000000000010000006c\
    03000000703a3103000000633a32010000007a010000000200000003";

#[test]
fn entries_have_fixed_bytes_and_survive_them() {
    let cases = [
        (entry(EntryPayload::Blank), format!("0100{ID}")),
        (command(b"abc"), format!("0101{ID}616263")),
        (command(b""), format!("0101{ID}")),
        (entry(EntryPayload::Membership(membership())), format!("0102{ID}{MEMBERSHIP}")),
    ];
    for (entry, golden) in cases {
        let bytes = encode_entry(&entry);
        assert_eq!(hex(&bytes), golden);
        assert_eq!(entry_log_id(&bytes), Ok(entry.log_id));
        assert_eq!(decode_entry(bytes.into()), Ok(entry));
    }
}

#[test]
fn votes_and_log_ids_have_fixed_bytes_and_survive_them() {
    let vote = Vote::new_committed(5, 2);
    let bytes = encode_vote(&vote);
    assert_eq!(hex(&bytes), "010500000000000000020000000000000001");
    assert_eq!(decode_vote(bytes.into()), Ok(vote));
    let bytes = encode_log_id(&log_id(3, 258));
    assert_eq!(hex(&bytes), format!("01{ID}"));
    assert_eq!(decode_log_id(bytes.into()), Ok(log_id(3, 258)));
}

#[test]
fn an_adopted_member_has_a_tag_of_its_own() {
    let adopted = |id, name| MemberRecord { adopted: true, ..member(id, name) };
    let nodes = [(1, adopted(1, "a")), (9, adopted(9, "b")), (10, adopted(10, "l"))];
    let voters = vec![BTreeSet::from([1]), BTreeSet::from([1, 9])];
    let adopted = Membership::new(voters, BTreeMap::from(nodes)).expect("valid");
    let stored = StoredMembership::new(Some(log_id(3, 258)), adopted);
    let bytes = encode_stored_membership(&stored);
    assert_eq!(hex(&bytes), format!("0101{ID}{ADOPTED_MEMBERSHIP}"));
    assert_eq!(decode_stored_membership(bytes.into()), Ok(stored));
}

#[test]
fn memberships_have_fixed_bytes_and_survive_them() {
    let stored = StoredMembership::new(Some(log_id(3, 258)), membership());
    let bytes = encode_stored_membership(&stored);
    assert_eq!(hex(&bytes), format!("0101{ID}{MEMBERSHIP}"));
    assert_eq!(decode_stored_membership(bytes.into()), Ok(stored));
    let none = StoredMembership::default();
    let bytes = encode_stored_membership(&none);
    assert_eq!(hex(&bytes), "01000000000000000000");
    assert_eq!(decode_stored_membership(bytes.into()), Ok(none));
}

#[test]
fn an_append_has_fixed_bytes_and_survives_them() {
    let request = AppendEntriesRequest {
        vote: Vote::new_committed(5, 2),
        prev_log_id: None,
        entries: vec![command(b"abc"), entry(EntryPayload::Blank)],
        leader_commit: Some(log_id(3, 258)),
    };
    let bytes = encode_append(&request);
    let golden = format!(
        "010500000000000000020000000000000001\
         0001{ID}02000000\
         150000000101{ID}616263120000000100{ID}"
    );
    assert_eq!(hex(&bytes), golden);
    let back = decode_append(bytes.into()).expect("decodes");
    assert_eq!(
        (back.vote, back.prev_log_id, back.leader_commit),
        (request.vote, request.prev_log_id, request.leader_commit)
    );
    assert_eq!(back.entries, request.entries);
}

#[test]
fn answers_to_appends_have_fixed_bytes_and_survive_them() {
    let cases = [
        (Ok(None), "010000".to_owned()),
        (Ok(Some(log_id(3, 258))), format!("010001{ID}")),
        (Err(StreamAppendError::Conflict(log_id(3, 258))), format!("0101{ID}")),
        (
            Err(StreamAppendError::HigherVote(Vote::new(5, 2))),
            "01020500000000000000020000000000000000".to_owned(),
        ),
    ];
    for (result, golden) in cases {
        let bytes = encode_append_result(&result);
        assert_eq!(hex(&bytes), golden);
        assert_eq!(decode_append_result(bytes.into()), Ok(result));
    }
}

#[test]
fn votes_and_transfers_between_members_have_fixed_bytes_and_survive_them() {
    let mut request = VoteRequest::new(Vote::new(5, 2), Some(log_id(3, 258)));
    request.leadership_transfer = true;
    let bytes = encode_vote_request(&request);
    assert_eq!(hex(&bytes), format!("01050000000000000002000000000000000001{ID}01"));
    assert_eq!(decode_vote_request(bytes.into()), Ok(request));

    let response = VoteResponse::new(Vote::new(5, 2), None, true);
    let bytes = encode_vote_response(&response);
    assert_eq!(hex(&bytes), "0105000000000000000200000000000000000100");
    assert_eq!(decode_vote_response(bytes.into()), Ok(response));

    let request = TransferLeaderRequest::new(Vote::new_committed(5, 2), 9, Some(log_id(3, 258)));
    let bytes = encode_transfer(&request);
    assert_eq!(hex(&bytes), format!("010500000000000000020000000000000001090000000000000001{ID}"));
    assert_eq!(decode_transfer(bytes.into()), Ok(request));

    let changed =
        TransferLeaderError::VoteChanged { expected: Vote::new(5, 2), actual: Vote::new(6, 1) };
    let behind =
        TransferLeaderError::LogNotFlushed { expected: Some(log_id(3, 258)), actual: None };
    for (reply, golden) in [
        (Ok(()), "0100".to_owned()),
        (
            Err(changed),
            "010105000000000000000200000000000000000600000000000000010000000000000000".to_owned(),
        ),
        (Err(behind), format!("010201{ID}00")),
    ] {
        let bytes = encode_transfer_reply(&reply);
        assert_eq!(hex(&bytes), golden);
        assert_eq!(decode_transfer_reply(bytes.into()), Ok(reply));
    }
}

#[test]
fn a_snapshot_header_has_fixed_bytes_and_survives_them() {
    let header = SnapshotHeader {
        vote: Vote::new_committed(5, 2),
        meta: SnapshotMeta {
            last_log_id: Some(log_id(3, 258)),
            last_membership: StoredMembership::new(Some(log_id(3, 258)), membership()),
        },
        files: vec![SnapshotPart { name: "f".into(), bytes: 3, digest: [0xaa; 32] }],
    };
    let bytes = encode_snapshot_header(&header);
    let golden = format!(
        "01050000000000000002000000000000000101{ID}01{ID}{MEMBERSHIP}\
         0100000001000000660300000000000000{}",
        "aa".repeat(32)
    );
    assert_eq!(hex(&bytes), golden);
    assert_eq!(decode_snapshot_header(bytes.into()), Ok(header));
}

#[test]
fn damaged_values_are_refused_and_never_panic() {
    let good = encode_entry(&entry(EntryPayload::Membership(membership())));
    for len in 0..good.len() {
        assert!(decode_entry(Bytes::copy_from_slice(&good[..len])).is_err(), "cut at {len}");
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0xff;
        drop(decode_entry(bad.into()));
    }
    assert_eq!(decode_vote(Bytes::from_static(&[2])), Err(CodecError::Version(2)));
    let mut long = encode_vote(&Vote::new(1, 1));
    long.push(0);
    assert_eq!(decode_vote(long.into()), Err(CodecError::Trailing(1)));
}
