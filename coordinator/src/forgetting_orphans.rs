//! What the leader does about objects that belong to no run: of inputs that were no good, of uploads that came after
//! their run was deleted, and of runs whose objects could not be removed when they were.
//!
//! *Invariant:* a folder is removed only when it has this cluster's mark, a linearizable read after it was listed says
//! that no run has it, and it has been so, with the same objects in it, for [`Retention::sweep_age_ms`] of this leader's
//! time: a client has so long from the upload of its input to the creation of its run. No clock of a store or of another
//! host is asked. A round looks at a bounded number of names and lists a bounded number of folders; the next one goes on.
//!
//! Absent on purpose: other clusters' folders, those of the cluster that this one was restored from, and stores that
//! only runs name.

use crate::config::Retention;
use crate::forgetting::{ForgetError, remove_all};
use crate::leading::Leading;
use crate::ledger_read::ReadLedger;
use rollout_storage::{BlobError, BlobStore};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Names of runs that a round looks at.
const NAMES_PER_ROUND: usize = 1000;
/// Folders without a run that a round lists.
const FOLDERS_PER_ROUND: usize = 64;
/// Folders without a run that are remembered.
const SEEN_MAX: usize = 4096;

/// The folder of a run's objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Folder {
    namespace: String,
    folder: String,
}

/// A folder that has no run.
struct Seen {
    since: Instant,
    /// Over the names of its objects.
    objects: [u8; 32],
}

/// Objects that are to go.
struct Due {
    folder: Folder,
    keys: Vec<String>,
}

/// What was found so far.
struct Orphans {
    store: BlobStore,
    /// What folders of this cluster begin with.
    mark: String,
    age: Duration,
    /// The namespace and name that the last round ended with.
    after: Option<(String, String)>,
    seen: BTreeMap<Folder, Seen>,
}

/// Sweeps for as long as the epoch lasts.
pub(crate) async fn sweep_orphans(leading: Arc<Leading>, store: BlobStore, retention: Retention) {
    if retention.sweep_every_ms == 0 {
        return;
    }
    let age = Duration::from_millis(retention.sweep_age_ms);
    let mut orphans = Orphans::new(store, &leading.cluster_id, age);
    loop {
        tokio::time::sleep(Duration::from_millis(retention.sweep_every_ms)).await;
        if let Err(error) = round(&leading, &mut orphans).await {
            tracing::warn!(%error, "objects of no run were not swept: tried again later");
        }
    }
}

async fn round(leading: &Leading, orphans: &mut Orphans) -> Result<(), ForgetError> {
    let found = orphans.look().await?;
    let without = without_run(leading, found.clone()).await?;
    let due = orphans.judge(&found, without, Instant::now()).await?;
    if due.is_empty() {
        return Ok(());
    }
    let still = without_run(leading, due.iter().map(|due| due.folder.clone()).collect()).await?;
    let still: BTreeSet<Folder> = still.into_iter().collect();
    orphans.remove(due, &still).await?;
    Ok(())
}

/// Those that no run has, now that they are listed.
async fn without_run(leading: &Leading, found: Vec<Folder>) -> Result<Vec<Folder>, ForgetError> {
    let read = leading.node.read_index().await;
    read.map_err(|error| ForgetError::Deposed(error.to_string()))?;
    Ok(leading.node.ledger(|l| {
        let all = found.into_iter();
        all.filter(|f| !l.has_folder(&f.namespace, &f.folder)).collect()
    }))
}

impl Folder {
    fn prefix(&self) -> String {
        rollout_storage::run_prefix(&self.namespace, &self.folder)
    }
}

impl Orphans {
    fn new(store: BlobStore, cluster_id: &str, age: Duration) -> Self {
        let mark = rollout_storage::folder_mark(cluster_id);
        Self { store, mark, age, after: None, seen: BTreeMap::new() }
    }

    /// The cluster's folders below the next names.
    async fn look(&mut self) -> Result<Vec<Folder>, BlobError> {
        let (after, mut found, mut names) = (self.after.take(), Vec::new(), 0);
        for namespace in self.store.folders("runs").await? {
            for name in self.store.folders(&format!("runs/{namespace}")).await? {
                let at = (namespace.clone(), name);
                if after.as_ref().is_some_and(|after| at <= *after) {
                    continue;
                }
                let own = self.store.folders(&format!("runs/{namespace}/{}", at.1)).await?;
                let own = own.into_iter().filter(|folder| folder.starts_with(&self.mark));
                found.extend(own.map(|folder| {
                    let folder = format!("{}/{folder}", at.1);
                    Folder { namespace: namespace.clone(), folder }
                }));
                names += 1;
                if names == NAMES_PER_ROUND {
                    self.after = Some(at);
                    return Ok(found);
                }
            }
        }
        Ok(found)
    }

    /// Of those that were found, the ones that had no run for long enough and did not change.
    async fn judge(
        &mut self,
        found: &[Folder],
        without: Vec<Folder>,
        now: Instant,
    ) -> Result<Vec<Due>, BlobError> {
        let orphans: BTreeSet<&Folder> = without.iter().collect();
        found.iter().filter(|folder| !orphans.contains(folder)).for_each(|folder| {
            self.seen.remove(folder); // Its run was created meanwhile.
        });
        let mut due = Vec::new();
        for folder in without.into_iter().take(FOLDERS_PER_ROUND) {
            let keys = self.store.list(&folder.prefix()).await?;
            let mut hasher = blake3::Hasher::new();
            keys.iter().for_each(|key| {
                hasher.update(key.as_bytes()).update(b"\n");
            });
            let objects = *hasher.finalize().as_bytes();
            let since = match self.seen.get(&folder) {
                Some(seen) if seen.objects == objects => seen.since,
                None if self.seen.len() >= SEEN_MAX => continue,
                _ => now,
            };
            self.seen.insert(folder.clone(), Seen { since, objects });
            if now.duration_since(since) >= self.age {
                due.push(Due { folder, keys });
            }
        }
        Ok(due)
    }

    /// Removes those that `still` have no run.
    async fn remove(&mut self, due: Vec<Due>, still: &BTreeSet<Folder>) -> Result<(), BlobError> {
        for Due { folder, keys } in due {
            self.seen.remove(&folder);
            if !still.contains(&folder) {
                continue;
            }
            let (namespace, name, objects) = (&folder.namespace, &folder.folder, keys.len());
            tracing::info!(namespace, folder = name, objects, "objects of no run are swept");
            metrics::counter!("rollout_orphan_objects_swept_total").increment(objects as u64);
            remove_all(&self.store, keys).await?;
            self.store.prune(&folder.prefix()).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "0123456789abcdef0123456789abcdef";
    const OTHERS: &str = "ffffffffffffffffffffffffffffffff";
    const AGE: Duration = Duration::from_secs(100);

    async fn put(store: &BlobStore, folder: &str, digest: u8) -> String {
        let key = rollout_storage::segment_key("default", folder, &[digest; 32]);
        store.put(&key, bytes::Bytes::from_static(b"x")).await.expect("put");
        key
    }

    /// One round, of a ledger that has the runs with these folders.
    async fn round(orphans: &mut Orphans, runs: &[&str], now: Instant) -> usize {
        let found = orphans.look().await.expect("listed");
        let without: Vec<Folder> =
            found.iter().filter(|f| !runs.contains(&f.folder.as_str())).cloned().collect();
        let due = orphans.judge(&found, without, now).await.expect("judged");
        let still = due.iter().map(|due| due.folder.clone()).collect();
        let count = due.len();
        orphans.remove(due, &still).await.expect("removed");
        count
    }

    #[tokio::test]
    async fn only_what_has_no_run_and_did_not_change_for_long_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = BlobStore::open(&format!("file://{}", dir.path().display())).expect("open");
        let folder = |name: &str, cluster: &str| rollout_storage::run_folder(name, cluster, 7);
        let (live, gone) = (folder("a", OURS), folder("b", OURS));
        let staged = folder("c", OURS);
        let kept = put(&store, &live, 1).await;
        let others = put(&store, &folder("b", OTHERS), 1).await;
        let unmarked = put(&store, "b/by-hand", 1).await;
        let orphan = put(&store, &gone, 1).await;
        let input = put(&store, &staged, 1).await;
        let mut orphans = Orphans::new(store.clone(), OURS, AGE);
        let begun = Instant::now();
        assert_eq!(round(&mut orphans, &[&live], begun).await, 0, "nothing was seen before");
        // Something is still uploaded to one of them: its time begins anew.
        let more = put(&store, &staged, 2).await;
        assert_eq!(round(&mut orphans, &[&live], begun + AGE / 2).await, 0);
        assert_eq!(round(&mut orphans, &[&live], begun + AGE).await, 1);
        let left = store.list("runs").await.expect("listed");
        assert!(!left.contains(&orphan), "{left:?}");
        for key in [&kept, &others, &unmarked, &input, &more] {
            assert!(left.contains(key), "{key} is gone");
        }
        // Its run was created in the last moment; deleted later, its time begins anew.
        let runs = [live.as_str(), staged.as_str()];
        assert_eq!(round(&mut orphans, &runs, begun + 2 * AGE).await, 0);
        assert_eq!(round(&mut orphans, &[&live], begun + 2 * AGE).await, 0);
        assert_eq!(round(&mut orphans, &[&live], begun + 3 * AGE).await, 1);
        assert!(store.list(&format!("runs/default/{staged}")).await.expect("listed").is_empty());
        assert!(orphans.seen.is_empty());
    }

    #[tokio::test]
    async fn what_is_found_without_a_run_and_gets_one_before_it_is_removed_stays() {
        let store = BlobStore::open("memory://orphans").expect("open");
        let folder = rollout_storage::run_folder("a", OURS, 1);
        let key = put(&store, &folder, 1).await;
        let mut orphans = Orphans::new(store.clone(), OURS, Duration::ZERO);
        let found = orphans.look().await.expect("listed");
        assert_eq!(found.len(), 1);
        let due = orphans.judge(&found, found.clone(), Instant::now()).await.expect("judged");
        assert_eq!(due.len(), 1);
        orphans.remove(due, &BTreeSet::new()).await.expect("removed");
        assert_eq!(store.list("runs").await.expect("listed"), [key]);
    }
}
