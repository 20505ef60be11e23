//! Garbage collection of objects that belong to no run: of rejected inputs, of uploads that arrived after their run was
//! deleted, and of runs whose objects could not be removed at the time.
//!
//! *Invariant:* a folder is removed only if it has this cluster's mark, no run has it, and both have been so, with the
//! same objects in it, for [`Retention::sweep_age_ms`] of this leader's time. A client has that long from the upload of
//! its input to the creation of its run. Clocks of stores and of other hosts play no part. A linearizable read confirms
//! that no run has the folder, after it was listed and again before each [`REMOVED_AT_ONCE`] objects. So a long removal
//! stops when a client creates the run after all, and a deposed leader removes nothing more.
//! A round scans a bounded number of names and lists a bounded number of folders; the next round continues. No folder
//! hides others forever: a folder is listed when it is new and when its time is over, the oldest first. A folder that
//! cannot be listed is skipped, and its time starts again. Only folders that still exist are remembered.
//!
//! Absent: folders of other clusters, folders of the cluster from which this one was restored, and stores
//! that only runs name.

use crate::gc::runs::{GcError, remove_all};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_config::coordinator::Retention;
use rollout_storage::{BlobError, BlobStore};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names of runs that one round scans.
const NAMES_PER_ROUND: usize = 1000;
/// Folders without a run that one round lists.
const FOLDERS_PER_ROUND: usize = 64;
/// Folders without a run that are remembered.
const SEEN_MAX: usize = 4096;
/// Objects that are removed after one confirmation that no run has them.
const REMOVED_AT_ONCE: usize = 256;

/// The folder of a run's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Folder {
    namespace: String,
    folder: String,
}

/// The namespace and the name of a run.
type RunKey = (String, String);

/// The result of scanning.
struct ScanResult {
    /// The cluster's folders that were found.
    found: Vec<Folder>,
    /// The scan covers the names after the first, up to and including the second. `None`: from the start, or to the
    /// end.
    range: (Option<RunKey>, Option<RunKey>),
}

/// A folder that has no run.
struct OrphanFolder {
    /// When it was first listed with its present objects.
    since: Instant,
    /// Hash of the names of its objects; `None` if it could not be listed.
    objects: Option<[u8; 32]>,
}

/// Objects to be removed.
struct RemovableObjects {
    folder: Folder,
    keys: Vec<String>,
}

/// The state of the search for objects without a run.
struct Orphans {
    store: BlobStore,
    /// The prefix of this cluster's folders.
    mark: String,
    age: Duration,
    /// The last name that the previous round scanned.
    after: Option<RunKey>,
    seen: BTreeMap<Folder, OrphanFolder>,
}

/// Sweeps for as long as the epoch lasts.
pub(crate) async fn sweep_orphans(
    leader: Arc<LeaderState>,
    store: BlobStore,
    retention: Retention,
) {
    if retention.sweep_every_ms == 0 {
        return;
    }
    let age = Duration::from_millis(retention.sweep_age_ms);
    let mut orphans = Orphans::new(store, &leader.cluster_id, age);
    loop {
        tokio::time::sleep(Duration::from_millis(retention.sweep_every_ms)).await;
        if let Err(error) = round(&leader, &mut orphans).await {
            tracing::warn!(%error, "could not sweep orphaned objects; will retry");
        }
    }
}

async fn round(leader: &LeaderState, orphans: &mut Orphans) -> Result<(), GcError> {
    let looked = orphans.look().await?;
    let without = without_run(leader, looked.found.clone()).await?;
    let due = orphans.judge(&looked, without, Instant::now()).await;
    let is_orphan = async |folder: Folder| Ok(!without_run(leader, vec![folder]).await?.is_empty());
    orphans.remove(due, is_orphan).await
}

/// Those folders that no run has, as of a read after they were listed.
async fn without_run(leader: &LeaderState, found: Vec<Folder>) -> Result<Vec<Folder>, GcError> {
    let read = leader.node.read_index().await;
    read.map_err(|error| GcError::Deposed(error.to_string()))?;
    Ok(leader.node.ledger(|l| {
        let all = found.into_iter();
        all.filter(|f| !l.has_folder(&f.namespace, &f.folder)).collect()
    }))
}

impl Folder {
    fn prefix(&self) -> String {
        rollout_storage::run_prefix(&self.namespace, &self.folder)
    }

    fn at(&self) -> RunKey {
        let name = self.folder.split_once('/').map_or(&*self.folder, |(name, _)| name);
        (self.namespace.clone(), name.to_owned())
    }
}

impl ScanResult {
    /// Whether the scan would have found this folder if it existed.
    fn covers(&self, folder: &Folder) -> bool {
        let (at, (after, upto)) = (folder.at(), &self.range);
        after.as_ref().is_none_or(|after| at > *after)
            && upto.as_ref().is_none_or(|upto| at <= *upto)
    }
}

impl Orphans {
    fn new(store: BlobStore, cluster_id: &str, age: Duration) -> Self {
        let mark = rollout_storage::folder_mark(cluster_id);
        Self { store, mark, age, after: None, seen: BTreeMap::new() }
    }

    /// Scans the next names for the cluster's folders.
    async fn look(&mut self) -> Result<ScanResult, BlobError> {
        let namespaces = self.store.folders("runs").await?;
        let (after, mut found, mut names) = (self.after.take(), Vec::new(), 0);
        for namespace in namespaces {
            for name in self.folders_of(&format!("runs/{namespace}")).await {
                let at = (namespace.clone(), name);
                if after.as_ref().is_some_and(|after| at <= *after) {
                    continue;
                }
                let own = self.folders_of(&format!("runs/{namespace}/{}", at.1)).await;
                let own = own.into_iter().filter(|folder| folder.starts_with(&self.mark));
                found.extend(own.map(|folder| {
                    let folder = format!("{}/{folder}", at.1);
                    Folder { namespace: namespace.clone(), folder }
                }));
                names += 1;
                if names == NAMES_PER_ROUND {
                    self.after = Some(at.clone());
                    return Ok(ScanResult { found, range: (after, Some(at)) });
                }
            }
        }
        Ok(ScanResult { found, range: (after, None) })
    }

    /// The folders below one. None if they cannot be listed, so that the scan continues with others.
    async fn folders_of(&self, prefix: &str) -> Vec<String> {
        self.store.folders(prefix).await.unwrap_or_else(|error| {
            tracing::warn!(%error, prefix, "this folder was not scanned for orphaned objects");
            Vec::new()
        })
    }

    /// The objects of folders that had no run, and did not change, for long enough.
    async fn judge(
        &mut self,
        looked: &ScanResult,
        without: Vec<Folder>,
        now: Instant,
    ) -> Vec<RemovableObjects> {
        let orphans: BTreeSet<&Folder> = without.iter().collect();
        // For the others a run was created meanwhile, or they are gone.
        self.seen.retain(|folder, _| orphans.contains(folder) || !looked.covers(folder));
        let mut due = Vec::new();
        for folder in self.to_list(without, now) {
            let keys = match self.store.list(&folder.prefix()).await {
                Ok(keys) => keys,
                Err(error) => {
                    let (namespace, name) = (&folder.namespace, &folder.folder);
                    tracing::warn!(%error, namespace, folder = name, "could not list an orphaned folder; will retry");
                    self.seen.insert(folder, OrphanFolder { since: now, objects: None });
                    continue;
                }
            };
            let mut hasher = blake3::Hasher::new();
            keys.iter().for_each(|key| {
                hasher.update(key.as_bytes()).update(b"\n");
            });
            let objects = Some(*hasher.finalize().as_bytes());
            let since = match self.seen.get(&folder) {
                Some(seen) if seen.objects == objects => seen.since,
                _ => now,
            };
            self.seen.insert(folder.clone(), OrphanFolder { since, objects });
            if now.duration_since(since) >= self.age {
                due.push(RemovableObjects { folder, keys });
            }
        }
        due
    }

    /// Folders to list now: those whose time is over, the oldest first, and as many new ones as can be remembered.
    /// Whatever a listing shows, the next round lists others.
    fn to_list(&self, without: Vec<Folder>, now: Instant) -> Vec<Folder> {
        let (mut over, mut new) = (Vec::new(), Vec::new());
        for folder in without {
            match self.seen.get(&folder) {
                Some(seen) if now.duration_since(seen.since) >= self.age => {
                    over.push((seen.since, folder));
                }
                Some(_) => {}
                None => new.push(folder),
            }
        }
        over.sort();
        let room = SEEN_MAX.saturating_sub(self.seen.len());
        let over = over.into_iter().map(|(_, folder)| folder);
        over.chain(new.into_iter().take(room)).take(FOLDERS_PER_ROUND).collect()
    }

    /// Removes due objects while `is_orphan` confirms that no run has the folder. If a folder gets a run meanwhile, or
    /// cannot be removed, its time starts again. An error of `is_orphan` ends the round.
    async fn remove<F>(
        &mut self,
        due: Vec<RemovableObjects>,
        is_orphan: impl Fn(Folder) -> F,
    ) -> Result<(), GcError>
    where
        F: Future<Output = Result<bool, GcError>>,
    {
        for RemovableObjects { folder, keys } in due {
            self.seen.remove(&folder);
            let (namespace, name) = (&folder.namespace, &folder.folder);
            let (mut removed, mut failed) = (0, None);
            for some in keys.chunks(REMOVED_AT_ONCE) {
                if !is_orphan(folder.clone()).await? {
                    break;
                }
                failed = remove_all(&self.store, some.to_vec()).await.err();
                if failed.is_some() {
                    break;
                }
                removed += some.len();
            }
            metrics::counter!("rollout_orphan_objects_swept_total").increment(removed as u64);
            if failed.is_none() && removed == keys.len() {
                failed = self.store.prune(&folder.prefix()).await.err();
            }
            match failed {
                Some(error) => {
                    tracing::warn!(%error, namespace, folder = name, "could not remove orphaned objects; will retry");
                }
                None if removed < keys.len() => {
                    let left = keys.len() - removed;
                    tracing::warn!(
                        namespace,
                        folder = name,
                        removed,
                        left,
                        "a run was created from a folder while its objects were removed"
                    );
                }
                None => {
                    tracing::info!(
                        namespace,
                        folder = name,
                        objects = removed,
                        "removed orphaned objects"
                    );
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
