//! One function for each decoder. It takes any bytes, and panics only where that is a finding.

use std::io::Write as _;
use std::path::PathBuf;

use bytes::Bytes;
use prost::Message as _;
use rollout_engine_protocol::{FromEngine, ToEngine};
use rollout_ledger::{Command, Ledger};
use rollout_proto::pki::{RequestedKey, inspect_der};
use rollout_proto::trace::TraceContext;
use rollout_proto::{Identity, v1};
use rollout_storage::{Part, Segment, SnapshotFileReader, Spool, record};
use rustls_pki_types::CertificateDer;

/// A command of the log.
pub(crate) fn commands(bytes: &[u8]) {
    if let Some(command) = Command::decode(bytes) {
        assert_eq!(Command::decode(&command.encode()), Some(command));
    }
}

/// An image of the ledger: records, each a key and a value with a length of two bytes before it. What loads has to be
/// written whole again.
pub(crate) fn images(mut bytes: &[u8]) {
    let mut sized = || {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
        bytes = rest;
        Some(value.to_vec())
    };
    let records = std::iter::from_fn(|| Some((sized()?, sized()?)));
    let records: Vec<(Vec<u8>, Vec<u8>)> =
        records.filter(|(key, _)| key.first().is_some_and(u8::is_ascii_uppercase)).collect();
    if let Ok(mut ledger) = Ledger::load(records) {
        drop(ledger.drain_dirty());
    }
}

/// A record of the disk, with its envelope.
pub(crate) fn records(bytes: &[u8]) {
    let (context, sealed) = bytes.split_at(bytes.len().min(4));
    if let Ok(payload) = record::open(context, sealed) {
        assert_eq!(record::seal(context, payload), sealed);
    }
}

/// A segment of rows in an object store.
pub(crate) fn segments(bytes: &[u8]) {
    if let Ok(segment) = Segment::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!((0..segment.len()).filter_map(|row| segment.row(row)).count(), segment.len());
        assert!(segment.row(segment.len()).is_none());
    }
}

/// A part of results in an object store.
pub(crate) fn parts(bytes: &[u8]) {
    if let Ok(part) = Part::decode(Bytes::copy_from_slice(bytes)) {
        assert_eq!(part.rows().count(), part.len());
    }
}

/// A file in memory where the system has such a place, so that a target does not wait for a disk.
fn file_of(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
    let memory = std::path::Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a directory");
    let path = dir.path().join("file");
    let mut file = std::fs::File::create(&path).expect("a file");
    file.write_all(bytes).expect("written");
    (dir, path)
}

/// A worker's spool. What was recovered is recovered again as the same.
pub(crate) fn spools(bytes: &[u8]) {
    let (_dir, path) = file_of(bytes);
    if let Ok((spool, rows)) = Spool::open(&path) {
        drop(spool);
        let (_spool, again) = Spool::open(&path).expect("what was recovered opens");
        assert_eq!(rows, again);
    }
}

/// A snapshot file.
pub(crate) fn snapshots(bytes: &[u8]) {
    let (_dir, path) = file_of(bytes);
    if let Ok(mut reader) = SnapshotFileReader::open(&path) {
        while let Some(Ok(_)) = reader.next() {}
    }
}

/// A message of consensus, or a value that it keeps on disk.
pub(crate) fn consensus(bytes: &[u8]) {
    rollout_raft::fuzzing::decode(bytes);
}

/// A connection of torch's TCPStore client.
pub(crate) fn store_requests(bytes: &[u8]) {
    let _ = futures::executor::block_on(rollout_gateway::fuzzing::read(bytes));
}

/// A message between an agent and its engine, in either direction.
pub(crate) fn engine_messages(bytes: &[u8]) {
    let _ = rollout_engine_protocol::read::<FromEngine>(&mut &bytes[..]);
    let _ = rollout_engine_protocol::read::<ToEngine>(&mut &bytes[..]);
}

/// A request of a client or a worker. The first byte chooses its type.
pub(crate) fn requests(bytes: &[u8]) {
    macro_rules! stable {
        ($message:ident, $bytes:expr) => {
            if let Ok(message) = v1::$message::decode($bytes) {
                let again = v1::$message::decode(message.encode_to_vec().as_slice());
                // Floats that are no number differ from themselves.
                assert_eq!(
                    format!("{:?}", again.expect("what was written is read")),
                    format!("{message:?}")
                );
            }
        };
    }
    let Some((kind, rest)) = bytes.split_first() else { return };
    match kind % 8 {
        0 => stable!(CreateRunRequest, rest),
        1 => stable!(AddSegmentsRequest, rest),
        2 => stable!(WorkerMessage, rest),
        3 => stable!(RegisterRequest, rest),
        4 => stable!(RevokeRequest, rest),
        5 => stable!(EnrolRequest, rest),
        6 => stable!(WatchEventsRequest, rest),
        _ => stable!(ReportCheckpointRequest, rest),
    }
}

/// A certificate, a signing request, and the texts that name an identity or a trace.
pub(crate) fn credentials(bytes: &[u8]) {
    let _ = inspect_der(&CertificateDer::from(bytes));
    let _ = Identity::from_certificate(bytes);
    let _ = RequestedKey::read(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(identity) = Identity::from_uri(text) {
            assert_eq!(identity.to_uri(), text);
        }
        let _ = TraceContext::parse(text);
    }
}
