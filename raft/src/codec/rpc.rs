//! Owns: the messages between members, as the payloads of the `Peer` service.
//!
//! Invariant: responses repeat what the sender needs to order them, so a stream of responses can be read without its
//! requests.
//! Absent: sender and receiver. The frame around these payloads names and checks them.

use bytes::Bytes;
use openraft::raft::{
    AppendEntriesRequest, StreamAppendError, StreamAppendResult, TransferLeaderError,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};

use super::entry::{
    decode_entry, encoded_entry_len, get_log_id, get_stored_membership, get_vote, put_entry,
    put_log_id, put_stored_membership, put_vote,
};
use super::wire::{CodecError, In, Out};
use crate::types::{SnapshotMeta, Types, Vote};

/// A follower's answer to one append.
pub(crate) type AppendResult = StreamAppendResult<Types>;
/// The chosen successor's answer to a transfer.
pub(crate) type TransferReply = TransferLeaderResponse<Types>;

pub(crate) fn encode_append(request: &AppendEntriesRequest<Types>) -> Vec<u8> {
    let entries: usize = request.entries.iter().map(|entry| encoded_entry_len(entry) + 4).sum();
    let mut out = Out::versioned(17 + 17 + 17 + 4 + entries);
    put_vote(&mut out, &request.vote);
    out.option(request.prev_log_id.as_ref(), put_log_id);
    out.option(request.leader_commit.as_ref(), put_log_id);
    out.count(request.entries.len());
    for entry in &request.entries {
        let at = out.0.len();
        out.u32(0);
        put_entry(&mut out, entry);
        // invariant: a proposal is at most a few MiB, so its length fits.
        let len = u32::try_from(out.0.len() - at - 4).unwrap_or(u32::MAX);
        out.0[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
    out.0
}

pub(crate) fn decode_append(bytes: Bytes) -> Result<AppendEntriesRequest<Types>, CodecError> {
    let mut input = In::versioned(bytes)?;
    let vote = get_vote(&mut input)?;
    let prev_log_id = input.option("previous log id", get_log_id)?;
    let leader_commit = input.option("commit log id", get_log_id)?;
    let count = input.count(4, "entries")?;
    let mut entries = Vec::with_capacity(count);
    for _ in 0..count {
        entries.push(decode_entry(input.bytes("entry")?)?);
    }
    input.end(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

pub(crate) fn encode_append_result(result: &AppendResult) -> Vec<u8> {
    let mut out = Out::versioned(18);
    match result {
        Ok(matching) => {
            out.u8(0);
            out.option(matching.as_ref(), put_log_id);
        }
        Err(StreamAppendError::Conflict(at)) => {
            out.u8(1);
            put_log_id(&mut out, at);
        }
        Err(StreamAppendError::HigherVote(vote)) => {
            out.u8(2);
            put_vote(&mut out, vote);
        }
    }
    out.0
}

pub(crate) fn decode_append_result(bytes: Bytes) -> Result<AppendResult, CodecError> {
    let mut input = In::versioned(bytes)?;
    let result = match input.u8("append result")? {
        0 => Ok(input.option("matching log id", get_log_id)?),
        1 => Err(StreamAppendError::Conflict(get_log_id(&mut input)?)),
        2 => Err(StreamAppendError::HigherVote(get_vote(&mut input)?)),
        tag => return Err(CodecError::Tag("append result", tag)),
    };
    input.end(result)
}

pub(crate) fn encode_vote_request(request: &VoteRequest<Types>) -> Vec<u8> {
    let mut out = Out::versioned(40);
    put_vote(&mut out, &request.vote);
    out.option(request.last_log_id.as_ref(), put_log_id);
    out.u8(u8::from(request.leadership_transfer));
    out.0
}

pub(crate) fn decode_vote_request(bytes: Bytes) -> Result<VoteRequest<Types>, CodecError> {
    let mut input = In::versioned(bytes)?;
    let vote = get_vote(&mut input)?;
    let last_log_id = input.option("last log id", get_log_id)?;
    let mut request = VoteRequest::new(vote, last_log_id);
    request.leadership_transfer = input.flag("leadership transfer")?;
    input.end(request)
}

pub(crate) fn encode_vote_response(response: &VoteResponse<Types>) -> Vec<u8> {
    let mut out = Out::versioned(40);
    put_vote(&mut out, &response.vote);
    out.u8(u8::from(response.vote_granted));
    out.option(response.last_log_id.as_ref(), put_log_id);
    out.0
}

pub(crate) fn decode_vote_response(bytes: Bytes) -> Result<VoteResponse<Types>, CodecError> {
    let mut input = In::versioned(bytes)?;
    let vote = get_vote(&mut input)?;
    let granted = input.flag("grant")?;
    let last_log_id = input.option("last log id", get_log_id)?;
    input.end(VoteResponse::new(vote, last_log_id, granted))
}

pub(crate) fn encode_transfer(request: &TransferLeaderRequest<Types>) -> Vec<u8> {
    let mut out = Out::versioned(48);
    put_vote(&mut out, request.from_leader());
    out.u64(*request.to_node_id());
    out.option(request.last_log_id(), put_log_id);
    out.0
}

pub(crate) fn decode_transfer(bytes: Bytes) -> Result<TransferLeaderRequest<Types>, CodecError> {
    let mut input = In::versioned(bytes)?;
    let from = get_vote(&mut input)?;
    let to = input.u64("successor")?;
    let last = input.option("last log id", get_log_id)?;
    input.end(TransferLeaderRequest::new(from, to, last))
}

pub(crate) fn encode_transfer_reply(reply: &TransferReply) -> Vec<u8> {
    let mut out = Out::versioned(40);
    match reply {
        Ok(()) => out.u8(0),
        Err(TransferLeaderError::VoteChanged { expected, actual }) => {
            out.u8(1);
            put_vote(&mut out, expected);
            put_vote(&mut out, actual);
        }
        Err(TransferLeaderError::LogNotFlushed { expected, actual }) => {
            out.u8(2);
            out.option(expected.as_ref(), put_log_id);
            out.option(actual.as_ref(), put_log_id);
        }
    }
    out.0
}

pub(crate) fn decode_transfer_reply(bytes: Bytes) -> Result<TransferReply, CodecError> {
    let mut input = In::versioned(bytes)?;
    let reply = match input.u8("transfer reply")? {
        0 => Ok(()),
        1 => Err(TransferLeaderError::VoteChanged {
            expected: get_vote(&mut input)?,
            actual: get_vote(&mut input)?,
        }),
        2 => Err(TransferLeaderError::LogNotFlushed {
            expected: input.option("expected log id", get_log_id)?,
            actual: input.option("actual log id", get_log_id)?,
        }),
        tag => return Err(CodecError::Tag("transfer reply", tag)),
    };
    input.end(reply)
}

/// One file of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotPart {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) digest: [u8; 32],
}

/// The header before the files of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotHeader {
    pub(crate) vote: Vote,
    pub(crate) meta: SnapshotMeta,
    pub(crate) files: Vec<SnapshotPart>,
}

pub(crate) fn encode_snapshot_header(header: &SnapshotHeader) -> Vec<u8> {
    let mut out = Out::versioned(1024);
    put_vote(&mut out, &header.vote);
    out.option(header.meta.last_log_id.as_ref(), put_log_id);
    put_stored_membership(&mut out, &header.meta.last_membership);
    out.count(header.files.len());
    for file in &header.files {
        out.text(&file.name);
        out.u64(file.bytes);
        out.raw(&file.digest);
    }
    out.0
}

pub(crate) fn decode_snapshot_header(bytes: Bytes) -> Result<SnapshotHeader, CodecError> {
    let mut input = In::versioned(bytes)?;
    let vote = get_vote(&mut input)?;
    let last_log_id = input.option("snapshot log id", get_log_id)?;
    let last_membership = get_stored_membership(&mut input)?;
    let count = input.count(4 + 8 + 32, "snapshot files")?;
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        let name = input.text("file name")?;
        let bytes = input.u64("file length")?;
        let mut digest = [0u8; 32];
        digest.copy_from_slice(&input.take(32, "file digest")?);
        files.push(SnapshotPart { name, bytes, digest });
    }
    input.end(SnapshotHeader { vote, meta: SnapshotMeta { last_log_id, last_membership }, files })
}
