//! Garbage collection of content of files on the leader: removes the content of deleted and expired files and of parts
//! that became no file, and sweeps content that no operation has named.
//!
//! *Invariant:* objects first, then the command that relies on them: the objects of a folder are gone before
//! `ForgetContent` is proposed. The leader confirms that it still leads before it removes: the ledger lists a folder as
//! removed only once nothing can name it any more.
//! Content that no record names is removed only when no operation can name it any more: each operation says at which
//! ledger time its content was begun, and the ledger refuses those that are older than [`limits::CONTENT_WRITE_MS_MAX`].
//! So the sweep notes the ledger time of a confirmed read at which it found a folder that no record names, and removes the
//! folder after a confirmed read that is later by more than that and finds no record either. A deposed leader removes the
//! same folders.
//! A folder that cannot be removed delays no other: each round continues after the last one.
//!
//! Ledger time stands still in a cluster without commands, and so does the sweep. Absent: folders of other clusters, which
//! have other marks.

use crate::gc::runs::{AGAIN_AFTER, GcError, LOOK_EVERY, propose, remove_all};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use futures::StreamExt;
use rollout_ledger::id::LedgerMs;
use rollout_ledger::{OpKind, limits, op};
use rollout_storage::{BlobError, BlobStore, CONTENT_ROOT, content_prefix};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Folders of a round.
const FOLDERS_PER_ROUND: usize = 256;
/// Folders that are removed concurrently.
const AT_A_TIME: usize = 8;
/// Folders without a record that are remembered.
const SEEN_MAX: usize = 4096;

const _: () = assert!(FOLDERS_PER_ROUND <= limits::FORGET_FOLDERS_MAX);

/// A folder with its namespace.
type Folder = (String, String);

/// Removes the content that the ledger lists as removed, for as long as the epoch lasts.
pub(crate) async fn collect_content(leader: Arc<LeaderState>, store: BlobStore) {
    let mut after = None;
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let listed = |after: &Option<Folder>| {
            leader.node.ledger(|l| l.removable_content(after.as_ref(), FOLDERS_PER_ROUND))
        };
        let mut folders = listed(&after);
        if folders.is_empty() && after.take().is_some() {
            folders = listed(&None);
        }
        let Some(last) = folders.last().cloned() else { continue };
        after = Some(last);
        if let Err(error) = collect(&leader, &store, folders).await {
            tracing::warn!(%error, "could not remove the content of deleted files; will retry");
            tokio::time::sleep(AGAIN_AFTER).await;
        }
    }
}

/// Removes the objects of some folders, and reports those that are gone. The error is that of a folder that is not.
async fn collect(
    leader: &LeaderState,
    store: &BlobStore,
    folders: Vec<Folder>,
) -> Result<(), GcError> {
    still_leads(leader).await?;
    let (gone, failed) = remove_folders(store, folders).await;
    for (namespace, folders) in gone {
        let op = op::ForgetContent { namespace, folders };
        propose(leader, OpKind::ForgetContent(op)).await?;
    }
    failed.map_or(Ok(()), |error| Err(error.into()))
}

/// Removes folders. Returns those that are gone, by namespace, and one of the errors of the others.
async fn remove_folders(
    store: &BlobStore,
    folders: Vec<Folder>,
) -> (BTreeMap<String, Vec<String>>, Option<BlobError>) {
    let removals = futures::stream::iter(folders).map(|(namespace, folder)| async move {
        let removed = remove(store, &namespace, &folder).await;
        (namespace, folder, removed)
    });
    let mut removals = std::pin::pin!(removals.buffer_unordered(AT_A_TIME));
    let (mut gone, mut failed) = (BTreeMap::<String, Vec<String>>::new(), None);
    while let Some((namespace, folder, removed)) = removals.next().await {
        match removed {
            Ok(_) => gone.entry(namespace).or_default().push(folder),
            Err(error) => failed = Some(error),
        }
    }
    (gone, failed)
}

/// Removes a folder. Returns how many objects it had.
async fn remove(store: &BlobStore, namespace: &str, folder: &str) -> Result<u64, BlobError> {
    let prefix = content_prefix(namespace, folder);
    let keys = store.list(&prefix).await?;
    let objects = keys.len() as u64;
    remove_all(store, keys).await?;
    store.prune(&prefix).await?;
    Ok(objects)
}

/// Confirms that the ledger here is at least as new as this call.
async fn still_leads(leader: &LeaderState) -> Result<(), GcError> {
    let read = leader.node.read_index().await;
    read.map(drop).map_err(|error| GcError::Deposed(error.to_string()))
}

/// Removes content that no record names, for as long as the epoch lasts. An interval of 0 means never.
pub(crate) async fn sweep_content(leader: Arc<LeaderState>, store: BlobStore, every: Duration) {
    if every.is_zero() {
        return;
    }
    let mut sweep = Sweep::new(store, &leader.cluster_id);
    loop {
        tokio::time::sleep(every).await;
        if let Err(error) = round(&leader, &mut sweep).await {
            tracing::warn!(%error, "could not sweep content that no file has; will retry");
        }
    }
}

async fn round(leader: &LeaderState, sweep: &mut Sweep) -> Result<(), GcError> {
    let abandoned = sweep.store.remove_abandoned(CONTENT_ROOT).await?;
    metrics::counter!("rollout_orphan_objects_swept_total").increment(abandoned);
    let mut found = Vec::new();
    for namespace in sweep.store.folders(CONTENT_ROOT).await? {
        found.extend(sweep.marked(&namespace).await?);
    }
    still_leads(leader).await?;
    let (clock, unnamed) = leader.node.ledger(|l| {
        let unnamed = found
            .into_iter()
            .filter(|(namespace, folder)| !l.has_content(namespace, folder, sweep.id_in(folder)));
        (l.clock(), unnamed.collect::<Vec<_>>())
    });
    for (namespace, folder) in sweep.due(unnamed, clock) {
        let objects = remove(&sweep.store, &namespace, &folder).await?;
        metrics::counter!("rollout_orphan_objects_swept_total").increment(objects);
        tracing::info!(namespace, folder, objects, "removed content that no file has");
    }
    Ok(())
}

/// The search for content that no record names.
struct Sweep {
    store: BlobStore,
    /// The prefix of this cluster's folders.
    mark: String,
    /// Folders without a record, with the ledger time at which the first was found to have none.
    seen: BTreeMap<Folder, LedgerMs>,
}

impl Sweep {
    fn new(store: BlobStore, cluster_id: &str) -> Self {
        let mark = rollout_storage::folder_mark(cluster_id);
        Self { store, mark, seen: BTreeMap::new() }
    }

    /// This cluster's folders in a namespace.
    async fn marked(&self, namespace: &str) -> Result<Vec<Folder>, BlobError> {
        let folders = self.store.folders(&format!("{CONTENT_ROOT}/{namespace}")).await?;
        let own = folders.into_iter().filter(|folder| folder.starts_with(&self.mark));
        Ok(own.map(|folder| (namespace.to_owned(), folder)).collect())
    }

    /// The id for which a folder of this cluster was written.
    fn id_in<'a>(&self, folder: &'a str) -> &'a str {
        folder.strip_prefix(&*self.mark).unwrap_or_default()
    }

    /// Of all folders that no record names at this ledger time, those that no operation can name any more.
    fn due(&mut self, unnamed: Vec<Folder>, clock: LedgerMs) -> Vec<Folder> {
        let before = std::mem::take(&mut self.seen);
        let (mut due, mut new) = (Vec::new(), Vec::new());
        for folder in unnamed {
            match before.get(&folder) {
                Some(&since) if clock.0 > since.0.saturating_add(limits::CONTENT_WRITE_MS_MAX) => {
                    due.push(folder);
                }
                Some(&since) => drop(self.seen.insert(folder, since)),
                None => new.push(folder),
            }
        }
        let room = SEEN_MAX.saturating_sub(self.seen.len());
        self.seen.extend(new.into_iter().take(room).map(|folder| (folder, clock)));
        due
    }
}

#[cfg(test)]
mod tests;
