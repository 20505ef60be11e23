//! Owns: the encoding of everything that consensus writes to disk or sends to a peer.
//!
//! Invariant: every top-level value begins with a format version; numbers are little endian; a value with bytes left
//! over is refused. Golden tests fix the bytes: openraft's own serialization is documented as unstable and is not
//! used anywhere.
//! Absent: checksums. The log's records and TLS have them.

mod entry;
#[cfg(test)]
mod golden;
mod rpc;
mod wire;

pub(crate) use entry::{
    decode_entry, decode_log_id, decode_stored_membership, decode_vote, encode_entry,
    encode_log_id, encode_stored_membership, encode_vote, encoded_entry_len, entry_log_id,
};
pub(crate) use rpc::{
    SnapshotHeader, SnapshotPart, decode_append, decode_append_result, decode_snapshot_header,
    decode_transfer, decode_transfer_reply, decode_vote_request, decode_vote_response,
    encode_append, encode_append_result, encode_snapshot_header, encode_transfer,
    encode_transfer_reply, encode_vote_request, encode_vote_response,
};
pub(crate) use wire::CodecError;

/// The version that this program writes. It reads only this one: there is no earlier one.
pub(crate) const VERSION: u8 = 1;
