//! Owns: background work of the log: deleting whole files behind a purge, syncing the `SYNCED` mark.
//!
//! Invariant: skipping any of it loses nothing; compaction then reclaims the space later.
//! Absent: anything on which an acknowledgment depends.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;

use super::disk::Disk;
use crate::error::StorageError;

enum Task {
    DeleteFiles { first: u64, last: u64 },
    SyncMark,
}

pub(super) struct Janitor {
    tasks: Mutex<Option<SyncSender<Task>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Janitor {
    pub(super) fn start(disk: &Arc<Disk>) -> Result<Self, StorageError> {
        let (sender, receiver) = sync_channel(8);
        let worker = disk.clone();
        let thread = thread::Builder::new()
            .name("raft-log-janitor".to_owned())
            .spawn(move || run(&worker, &receiver))
            .map_err(StorageError::io(disk.dir(), "start the janitor thread"))?;
        Ok(Self { tasks: Mutex::new(Some(sender)), thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn delete_files(&self, first: u64, last: u64) {
        self.offer(Task::DeleteFiles { first, last });
    }

    pub(super) fn sync_mark(&self) {
        self.offer(Task::SyncMark);
    }

    pub(super) fn stop(&self) {
        drop(self.tasks.lock().take());
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.thread().id() != thread::current().id()
            && thread.join().is_err()
        {
            tracing::error!("the janitor thread of the raft log panicked");
        }
    }

    fn offer(&self, task: Task) {
        if let Some(sender) = self.tasks.lock().as_ref() {
            // If the queue is full, earlier tasks are slow. Skipping this one does no harm.
            drop(sender.try_send(task));
        }
    }
}

impl Drop for Janitor {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(disk: &Disk, tasks: &Receiver<Task>) {
    while let Ok(task) = tasks.recv() {
        let outcome = match task {
            Task::DeleteFiles { first, last } => disk.delete_files(first, last),
            Task::SyncMark => disk.sync_mark(),
        };
        if let Err(error) = outcome {
            tracing::warn!(%error, "a background chore of the raft log failed");
        }
    }
}
