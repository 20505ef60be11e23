//! Owns: openraft's view of the state: applying entries, building and installing snapshots.
//!
//! Invariant: entries are applied one by one under the lock, so a reader waits for one command at most, and every
//! responder is answered exactly once.
//! Absent: the state itself; see `machine`.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::{Stream, TryStreamExt};
use openraft::alias::SnapshotOf;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};
use rollout_ledger::Command;
use rollout_storage::{Snapshot, Staged};

use crate::state::log_store::{io_error, write_error};
use crate::state::machine::{self, LoadError, Machine, blocking, meta_of};
use crate::state::snapshot_files::stage_copy;
use crate::types::{Entry, LogId, Replies, SnapshotMeta, StoredMembership, Types};

/// An image on its way between members.
pub(crate) enum SnapshotData {
    /// A snapshot that this member took.
    Taken(Arc<Snapshot>),
    /// A received snapshot, complete and verified.
    Received(Staged),
}

/// A command with at least this many bytes may take long enough to apply to delay heartbeats, whatever it is.
const COSTLY_BYTES: usize = 16 << 10;

/// A snapshot that could not be taken or installed, which ends consensus. On a full disk the process ends here.
fn snapshot_error(error: LoadError) -> io::Error {
    match error {
        LoadError::Storage(error) => write_error(error),
        other => io_error(other),
    }
}

fn is_costly(entry: &Entry, command: Option<&Command>) -> bool {
    let EntryPayload::Normal(bytes) = &entry.payload else { return false };
    bytes.0.len() >= COSTLY_BYTES || command.is_some_and(Command::is_costly)
}

/// Entries that are applied before other tasks of the runtime get their turn.
const APPLIED_PER_TURN: u32 = 32;

/// The state machine as openraft sees it.
#[derive(Clone)]
pub(crate) struct StateMachine {
    machine: Machine,
    building: Arc<AtomicBool>,
}

impl StateMachine {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, building: Arc::default() }
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Types, SnapshotData>, io::Error> {
        let built = self.machine.snapshot().await;
        self.building.store(false, Ordering::Release);
        let meta = built.map_err(snapshot_error)?;
        match self.machine.image().current_snapshot() {
            Some(snapshot) => Ok(SnapshotOf::<Types, SnapshotData> {
                meta,
                snapshot: SnapshotData::Taken(snapshot),
            }),
            None => Err(io::Error::other("the snapshot vanished while it was taken")),
        }
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, StoredMembership), io::Error> {
        Ok(self.machine.read(|state| (state.applied, state.membership.clone())))
    }

    async fn apply<S>(&mut self, mut entries: S) -> Result<(), io::Error>
    where
        S: Stream<Item = Result<EntryResponder<Types>, io::Error>> + Unpin + OptionalSend,
    {
        let mut turn = 0;
        while let Some((entry, responder)) = entries.try_next().await? {
            let command = machine::read(&entry);
            let decoded = command.as_ref().ok().and_then(Option::as_ref);
            let applied = if is_costly(&entry, decoded) {
                // The tasks that this thread would run next, above all RaftCore, move to another thread meanwhile.
                tokio::task::block_in_place(|| self.machine.apply(&entry, command))
            } else {
                self.machine.apply(&entry, command)
            };
            let Some((replies, digest)) = applied else {
                // Part of the image already: only entries replayed after a restart come here.
                continue;
            };
            if let Some(responder) = responder {
                responder.send(Replies(replies));
            }
            if let Some(index) = digest {
                self.machine.digest_now(index).await;
            }
            turn += 1;
            if turn % APPLIED_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(())
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Self> {
        let busy = self.building.swap(true, Ordering::AcqRel);
        (force || !busy).then(|| self.clone())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        let staged = match snapshot {
            SnapshotData::Received(staged) => staged,
            SnapshotData::Taken(taken) => {
                let image = self.machine.image().clone();
                blocking(move || stage_copy(&image, &taken)).await.map_err(write_error)?
            }
        };
        self.machine.install(meta, staged).await.map_err(snapshot_error)
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<Types, SnapshotData>>, io::Error> {
        let Some(snapshot) = self.machine.image().current_snapshot() else { return Ok(None) };
        let read = snapshot.clone();
        let meta = blocking(move || meta_of(&read.open_image()?)).await.map_err(io_error)?;
        // An image of nothing is no snapshot.
        Ok(meta.last_log_id.is_some().then(|| SnapshotOf::<Types, SnapshotData> {
            meta,
            snapshot: SnapshotData::Taken(snapshot),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_storage::{NO_SPACE_EXIT, StorageError};
    use std::process::Command;

    /// Set in a child process, which ends in the middle of a test.
    const CHILD: &str = "ROLLOUT_TEST_FULL_SNAPSHOT";

    /// Not a separate test: the body of a child process.
    #[test]
    fn child_process() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let source = io::Error::from(io::ErrorKind::StorageFull);
        let full = StorageError::Io { path: "image".into(), action: "write", source };
        drop(snapshot_error(LoadError::Storage(full)));
    }

    #[test]
    fn a_snapshot_that_finds_no_room_ends_the_process_with_status_74_and_another_one_consensus() {
        let ended = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "state::state_machine::tests::child_process"])
            .env(CHILD, "1")
            .output()
            .expect("it starts");
        assert_eq!(ended.status.code(), Some(NO_SPACE_EXIT), "{ended:?}");

        let source = io::Error::from(io::ErrorKind::InvalidData);
        let other = StorageError::Io { path: "image".into(), action: "read", source };
        assert!(snapshot_error(LoadError::Storage(other)).to_string().contains("image"));
    }
}
