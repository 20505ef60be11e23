//! `Maintenance`: a snapshot file of the ledger from a running leader, and a member's part of a report for a bug.
//!
//! *Invariant:* the file has every write that was acknowledged before the call. One file is written at a time, by a
//! thread of its own. A reader that takes nothing for long is disconnected, and the files from which it read are
//! removed.

use super::{Shared, caller, check_every_namespace};
use crate::observe::diagnosis;
use rollout_proto::{ErrorCode, Outcome, RpcError, v1};
use rollout_raft::{Backup, BackupError};
use std::io::{self, Write};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// Bytes of the file in one message.
const CHUNK_BYTES: usize = 256 << 10;
/// Messages that wait for a slow reader.
const STREAM_AHEAD: usize = 4;
/// A reader that takes nothing for this long is disconnected.
const STALLED_AFTER: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub(crate) struct MaintenanceService {
    shared: Arc<Shared>,
    room: Arc<Semaphore>,
}

type Chunk = Result<v1::SaveSnapshotResponse, Status>;

impl MaintenanceService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, room: Arc::new(Semaphore::new(1)) }
    }
}

#[tonic::async_trait]
impl v1::maintenance_server::Maintenance for MaintenanceService {
    type SaveSnapshotStream = Pin<Box<dyn Stream<Item = Chunk> + Send>>;

    async fn save_snapshot(
        &self,
        request: Request<v1::SaveSnapshotRequest>,
    ) -> Result<Response<Self::SaveSnapshotStream>, Status> {
        check_every_namespace(&caller(&request)?)?;
        let leader = self.shared.reading().await?;
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            let message = "this member is already writing a snapshot for another caller";
            return Err(RpcError::new(ErrorCode::Overloaded, message).into());
        };
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let backup = self
            .shared
            .node
            .backup(env!("CARGO_PKG_VERSION"), wall.as_millis() as u64)
            .await
            .map_err(|error| failed(&error))?
            .ok_or_else(|| {
                RpcError::new(ErrorCode::NotBootstrapped, "this member has left the cluster")
            })?;
        let (out, stream) = mpsc::channel(STREAM_AHEAD);
        let first = v1::SaveSnapshotResponse {
            header: Some(leader.full_header()),
            member: self.shared.config.name.clone(),
            index: backup.header().index,
            bytes_estimated: backup.bytes_estimated(),
            data: Default::default(),
        };
        // The stream is new, so there is room.
        let _ = out.try_send(Ok(first));
        let runtime = Handle::current();
        tokio::task::spawn_blocking(move || write(&backup, out, runtime, permit));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }

    async fn diagnose(
        &self,
        request: Request<v1::DiagnoseRequest>,
    ) -> Result<Response<v1::DiagnoseResponse>, Status> {
        check_every_namespace(&caller(&request)?)?;
        let shared = &self.shared;
        Ok(Response::new(v1::DiagnoseResponse {
            header: Some(shared.header()),
            member: shared.config.name.clone(),
            version: env!("CARGO_PKG_VERSION").into(),
            config_json: diagnosis::settings(&shared.config).to_string(),
            metrics: shared.metrics.render(),
        }))
    }
}

fn failed(error: &BackupError) -> RpcError {
    tracing::error!(%error, "a snapshot cannot be saved");
    let message = format!("the snapshot cannot be read: {error}");
    RpcError::new(ErrorCode::Internal, message).with_outcome(Outcome::NotApplied)
}

fn write(
    backup: &Backup,
    out: mpsc::Sender<Chunk>,
    runtime: Handle,
    _permit: OwnedSemaphorePermit,
) {
    let mut chunks = Chunks { out, runtime, held: Vec::with_capacity(CHUNK_BYTES) };
    let index = backup.header().index;
    match backup.write_to(&mut chunks) {
        Ok(_) => tracing::info!(index, "a snapshot was saved"),
        Err(BackupError::Write(error)) => {
            tracing::warn!(index, %error, "the reader of a snapshot disconnected");
        }
        Err(error) => drop(chunks.send(Err(failed(&error).into()))),
    }
}

/// Splits written bytes into messages, and waits for a slow reader.
struct Chunks {
    out: mpsc::Sender<Chunk>,
    runtime: Handle,
    held: Vec<u8>,
}

impl Chunks {
    fn send(&self, chunk: Chunk) -> io::Result<()> {
        let sent = async { tokio::time::timeout(STALLED_AFTER, self.out.send(chunk)).await };
        match self.runtime.block_on(sent) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(io::Error::new(io::ErrorKind::BrokenPipe, "the stream is closed")),
            Err(_) => {
                let what = format!("it took nothing for {STALLED_AFTER:?}");
                Err(io::Error::new(io::ErrorKind::TimedOut, what))
            }
        }
    }

    fn send_held(&mut self) -> io::Result<()> {
        let data = std::mem::replace(&mut self.held, Vec::with_capacity(CHUNK_BYTES)).into();
        self.send(Ok(v1::SaveSnapshotResponse { data, ..Default::default() }))
    }
}

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.held.len());
        self.held.extend_from_slice(&bytes[..taken]);
        if self.held.len() == CHUNK_BYTES {
            self.send_held()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.held.is_empty() { Ok(()) } else { self.send_held() }
    }
}
