//! Owns: sending a snapshot to a peer, and receiving one.
//!
//! Invariant: a received snapshot is installed only when every file has the length and digest that the header
//! announced; until then it lies in a staging directory that is removed with the stream.
//! Absent: resuming a broken transfer: it starts again.

use openraft::alias::SnapshotOf;
use openraft::errors::StreamingError;
use openraft::raft::SnapshotResponse;
use rollout_proto::v1::peer_client::PeerClient;
use rollout_proto::v1::{SnapshotBytes, SnapshotChunk, snapshot_chunk::Kind};
use rollout_storage::{ImageStore, Manifest, ManifestFile, Staged, StorageError};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use super::link::{PeerContext, unreachable};
use crate::codec::{SnapshotHeader, SnapshotPart, decode_vote, encode_snapshot_header};
use crate::state::machine::blocking;
use crate::state::snapshot_files::for_each_piece;
use crate::state::state_machine::SnapshotData;
use crate::types::{Types, Vote};

/// Pieces that are read ahead of the network.
const PIECES_AHEAD: usize = 4;

/// Why reading ahead ended early.
enum Stopped {
    Storage(StorageError),
    /// The stream is gone; its other end reports why.
    Receiver,
}

impl From<StorageError> for Stopped {
    fn from(error: StorageError) -> Self {
        Self::Storage(error)
    }
}

/// Streams a snapshot and waits until the peer has installed it.
pub(super) async fn send_snapshot(
    context: &PeerContext,
    target: u64,
    mut client: PeerClient<Channel>,
    vote: Vote,
    snapshot: SnapshotOf<Types, SnapshotData>,
) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
    let SnapshotData::Taken(taken) = snapshot.snapshot else {
        return Err(unreachable("a snapshot that was received is not yet installed").into());
    };
    let (cluster, me, meta) = (context.cluster_text.clone(), context.me, snapshot.meta);
    let (ahead, pieces) = mpsc::channel(PIECES_AHEAD);
    let reading = blocking(move || {
        let chunk = |kind| SnapshotChunk {
            cluster_id: cluster.clone(),
            from: me,
            to: target,
            kind: Some(kind),
        };
        let send = |kind| ahead.blocking_send(chunk(kind)).map_err(|_| Stopped::Receiver);
        let manifest = taken.manifest()?;
        let files = manifest
            .files
            .iter()
            .map(|file| SnapshotPart {
                name: file.name.clone(),
                bytes: file.len,
                digest: file.blake3,
            })
            .collect();
        let header = encode_snapshot_header(&SnapshotHeader { vote, meta, files });
        send(Kind::Header(header.into()))?;
        for_each_piece(&taken, &manifest, |name, offset, bytes| {
            let data = bytes.to_vec().into();
            send(Kind::File(SnapshotBytes { name: name.to_owned(), offset, data }))
        })?;
        send(Kind::Done(true))
    });
    let (read, answer) =
        tokio::join!(reading, client.install_snapshot(ReceiverStream::new(pieces)));
    if let Err(Stopped::Storage(error)) = read {
        return Err(unreachable(format!("the snapshot cannot be read: {error}")).into());
    }
    let answer = answer.map_err(unreachable)?.into_inner();
    let payload = context.open(target, answer).map_err(unreachable)?;
    Ok(SnapshotResponse::new(decode_vote(payload).map_err(unreachable)?))
}

/// Receives the files that follow a header.
pub(crate) async fn receive_files(
    image: ImageStore,
    header: &SnapshotHeader,
    mut chunks: Streaming<SnapshotChunk>,
    check: impl Fn(&SnapshotChunk) -> Result<(), Status>,
) -> Result<Staged, Status> {
    let expected = Manifest {
        files: header
            .files
            .iter()
            .map(|file| ManifestFile {
                name: file.name.clone(),
                len: file.bytes,
                blake3: file.digest,
            })
            .collect(),
    };
    let (ahead, mut pieces) = mpsc::channel::<SnapshotBytes>(PIECES_AHEAD);
    let writing = tokio::task::spawn_blocking(move || {
        let staging = image.stage()?;
        while let Some(piece) = pieces.blocking_recv() {
            staging.write_file(&piece.name, piece.offset, &piece.data)?;
        }
        Ok::<_, StorageError>(staging)
    });
    let mut complete = false;
    while let Some(chunk) = chunks.message().await? {
        check(&chunk)?;
        match chunk.kind {
            Some(Kind::File(piece)) if !complete => {
                if ahead.send(piece).await.is_err() {
                    break;
                }
            }
            Some(Kind::Done(true)) if !complete => complete = true,
            _ => {
                return Err(Status::invalid_argument(
                    "a snapshot is header, files, done, in this order",
                ));
            }
        }
    }
    drop(ahead);
    let failed =
        |error: StorageError| Status::internal(format!("the snapshot was not stored: {error}"));
    let staging =
        writing.await.map_err(|error| Status::internal(error.to_string()))?.map_err(failed)?;
    if !complete {
        return Err(Status::aborted("the snapshot ended before its last piece"));
    }
    blocking(move || staging.finish(&expected)).await.map_err(failed)
}
