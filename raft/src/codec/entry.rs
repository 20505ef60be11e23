//! Owns: the encoding of log entries, log ids, votes and memberships.
//!
//! Invariant: an entry is `version, kind, term, index, payload`. The payload of a command is the command itself, to
//! the last byte, so that decoding shares the buffer and copies nothing.
//! Absent: the record format of the log, which wraps these bytes with a checksum.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;

use super::VERSION;
use super::wire::{CodecError, In, Out};
use crate::member::{Joins, MemberRecord};
use crate::types::{Command, Entry, LogId, Membership, StoredMembership, Vote, log_id, term_of};

const KIND_BLANK: u8 = 0;
const KIND_COMMAND: u8 = 1;
const KIND_MEMBERSHIP: u8 = 2;

const JOINS_LEARNER: u8 = 0;
const JOINS_VOTER: u8 = 1;
const JOINS_IN_PLACE_OF: u8 = 2;
/// Added to the tag of an adopted member. Builds that know cluster versions below 3 only refuse such a tag.
const ADOPTED: u8 = 3;

/// Bytes of an entry before its payload.
const HEAD_BYTES: usize = 1 + 1 + 8 + 8;

pub(crate) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let mut out = Out(Vec::with_capacity(encoded_entry_len(entry)));
    put_entry(&mut out, entry);
    out.0
}

/// The encoded length of a command or a blank entry by [`encode_entry`]; an estimate for a membership.
pub(crate) fn encoded_entry_len(entry: &Entry) -> usize {
    HEAD_BYTES
        + match &entry.payload {
            EntryPayload::Blank => 0,
            EntryPayload::Normal(command) => command.0.len(),
            EntryPayload::Membership(_) => 512,
        }
}

pub(super) fn put_entry(out: &mut Out, entry: &Entry) {
    let id = entry.log_id();
    let kind = match &entry.payload {
        EntryPayload::Blank => KIND_BLANK,
        EntryPayload::Normal(_) => KIND_COMMAND,
        EntryPayload::Membership(_) => KIND_MEMBERSHIP,
    };
    out.u8(VERSION);
    out.u8(kind);
    put_log_id(out, &id);
    match &entry.payload {
        EntryPayload::Blank => {}
        EntryPayload::Normal(command) => out.raw(&command.0),
        EntryPayload::Membership(membership) => put_membership(out, membership),
    }
}

pub(crate) fn decode_entry(bytes: Bytes) -> Result<Entry, CodecError> {
    let mut input = In::versioned(bytes)?;
    let kind = input.u8("entry kind")?;
    let id = get_log_id(&mut input)?;
    let payload = match kind {
        KIND_BLANK => EntryPayload::Blank,
        KIND_COMMAND => EntryPayload::Normal(Command(input.rest())),
        KIND_MEMBERSHIP => EntryPayload::Membership(get_membership(&mut input)?),
        other => return Err(CodecError::Tag("entry kind", other)),
    };
    input.end(Entry::new(id, payload))
}

/// The log id of an encoded entry, without decoding the rest.
pub(crate) fn entry_log_id(bytes: &[u8]) -> Result<LogId, CodecError> {
    let head = bytes.get(..HEAD_BYTES).ok_or(CodecError::Short("entry"))?;
    let mut input = In::versioned(Bytes::copy_from_slice(head))?;
    input.u8("entry kind")?;
    get_log_id(&mut input)
}

pub(super) fn put_log_id(out: &mut Out, id: &LogId) {
    out.u64(term_of(id));
    out.u64(id.index());
}

pub(super) fn get_log_id(input: &mut In) -> Result<LogId, CodecError> {
    let term = input.u64("term")?;
    let index = input.u64("index")?;
    Ok(log_id(term, index))
}

pub(crate) fn encode_log_id(id: &LogId) -> Vec<u8> {
    let mut out = Out::versioned(16);
    put_log_id(&mut out, id);
    out.0
}

pub(crate) fn decode_log_id(bytes: Bytes) -> Result<LogId, CodecError> {
    let mut input = In::versioned(bytes)?;
    let id = get_log_id(&mut input)?;
    input.end(id)
}

pub(super) fn put_vote(out: &mut Out, vote: &Vote) {
    out.u64(vote.leader_id.term);
    out.u64(vote.leader_id.voted_for);
    out.u8(u8::from(vote.committed));
}

pub(super) fn get_vote(input: &mut In) -> Result<Vote, CodecError> {
    let term = input.u64("term of a vote")?;
    let candidate = input.u64("candidate of a vote")?;
    Ok(if input.flag("vote")? {
        Vote::new_committed(term, candidate)
    } else {
        Vote::new(term, candidate)
    })
}

pub(crate) fn encode_vote(vote: &Vote) -> Vec<u8> {
    let mut out = Out::versioned(17);
    put_vote(&mut out, vote);
    out.0
}

pub(crate) fn decode_vote(bytes: Bytes) -> Result<Vote, CodecError> {
    let mut input = In::versioned(bytes)?;
    let vote = get_vote(&mut input)?;
    input.end(vote)
}

fn put_member(out: &mut Out, member: &MemberRecord) {
    out.u64(member.id);
    out.text(&member.name);
    out.text(&member.peer_addr);
    out.text(&member.client_addr);
    out.text(&member.zone);
    out.u32(member.version_min);
    out.u32(member.version_max);
    let adopted = if member.adopted { ADOPTED } else { 0 };
    match member.joins {
        Joins::Learner => out.u8(JOINS_LEARNER + adopted),
        Joins::Voter { replaces: None } => out.u8(JOINS_VOTER + adopted),
        Joins::Voter { replaces: Some(id) } => {
            out.u8(JOINS_IN_PLACE_OF + adopted);
            out.u64(id);
        }
    }
}

/// How a member joins, and whether it was adopted.
fn get_joins(input: &mut In) -> Result<(Joins, bool), CodecError> {
    let tag = input.u8("how a member joins")?;
    let adopted = tag >= ADOPTED;
    let joins = match if adopted { tag - ADOPTED } else { tag } {
        JOINS_LEARNER => Joins::Learner,
        JOINS_VOTER => Joins::Voter { replaces: None },
        JOINS_IN_PLACE_OF => Joins::Voter { replaces: Some(input.u64("replaced member")?) },
        _ => return Err(CodecError::Tag("how a member joins", tag)),
    };
    Ok((joins, adopted))
}

fn get_member(input: &mut In) -> Result<MemberRecord, CodecError> {
    let mut member = MemberRecord {
        id: input.u64("member id")?,
        name: input.text("member name")?,
        peer_addr: input.text("peer address")?,
        client_addr: input.text("client address")?,
        zone: input.text("zone")?,
        version_min: input.u32("version range")?,
        version_max: input.u32("version range")?,
        ..MemberRecord::default()
    };
    (member.joins, member.adopted) = get_joins(input)?;
    Ok(member)
}

fn put_membership(out: &mut Out, membership: &Membership) {
    let configs = membership.get_joint_config();
    out.count(configs.len());
    for voters in configs {
        out.count(voters.len());
        voters.iter().for_each(|id| out.u64(*id));
    }
    let nodes: Vec<_> = membership.nodes().collect();
    out.count(nodes.len());
    for (id, member) in nodes {
        out.u64(*id);
        put_member(out, member);
    }
}

fn get_membership(input: &mut In) -> Result<Membership, CodecError> {
    let configs = input.count(4, "voter sets")?;
    let mut joint = Vec::with_capacity(configs);
    for _ in 0..configs {
        let voters = input.count(8, "voter set")?;
        let ids = (0..voters).map(|_| input.u64("voter")).collect::<Result<BTreeSet<u64>, _>>()?;
        joint.push(ids);
    }
    let count = input.count(8, "members")?;
    let mut nodes = BTreeMap::new();
    for _ in 0..count {
        let id = input.u64("member id")?;
        nodes.insert(id, get_member(input)?);
    }
    Membership::new(joint, nodes)
        .map_err(|error| CodecError::Invalid("membership", error.to_string()))
}

pub(super) fn put_stored_membership(out: &mut Out, stored: &StoredMembership) {
    out.option(stored.log_id().as_ref(), put_log_id);
    put_membership(out, stored.membership());
}

pub(super) fn get_stored_membership(input: &mut In) -> Result<StoredMembership, CodecError> {
    let id = input.option("membership log id", get_log_id)?;
    Ok(StoredMembership::new(id, get_membership(input)?))
}

pub(crate) fn encode_stored_membership(stored: &StoredMembership) -> Vec<u8> {
    let mut out = Out::versioned(512);
    put_stored_membership(&mut out, stored);
    out.0
}

pub(crate) fn decode_stored_membership(bytes: Bytes) -> Result<StoredMembership, CodecError> {
    let mut input = In::versioned(bytes)?;
    let stored = get_stored_membership(&mut input)?;
    input.end(stored)
}
