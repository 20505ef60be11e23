//! What the leader does about objects that belong to no run: of inputs that were no good, of uploads that came after
//! their run was deleted, and of runs whose objects could not be removed when they were.
//!
//! *Invariant:* a folder is removed only when it has this cluster's mark, a linearizable read after it was listed says
//! that no run has it, and it has been so, with the same objects in it, for [`Retention::sweep_age_ms`] of this leader's
//! time: a client has so long from the upload of its input to the creation of its run. No clock of a store or of another
//! host is asked. A round looks at a bounded number of names and lists a bounded number of folders; the next one goes on.
//! No folder hides others for ever: one is listed when it is new, and when its time is over, whoever waits longest first;
//! one that cannot be listed is left out, and its time begins anew. What is remembered is of folders that are there.
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

/// The namespace and the name of a run.
type At = (String, String);

/// What a round has looked at.
struct Looked {
    /// The cluster's folders there.
    found: Vec<Folder>,
    /// It looked at what is behind the first, up to and including the second; `None`: from the beginning, to the end.
    range: (Option<At>, Option<At>),
}

/// A folder that has no run.
struct Seen {
    /// When it was first listed as it is.
    since: Instant,
    /// Over the names of its objects; `None`: it could not be listed.
    objects: Option<[u8; 32]>,
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
    /// What the last round ended with.
    after: Option<At>,
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
    let looked = orphans.look().await?;
    let without = without_run(leading, looked.found.clone()).await?;
    let due = orphans.judge(&looked, without, Instant::now()).await;
    if due.is_empty() {
        return Ok(());
    }
    let still = without_run(leading, due.iter().map(|due| due.folder.clone()).collect()).await?;
    let still: BTreeSet<Folder> = still.into_iter().collect();
    orphans.remove(due, &still).await;
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

    fn at(&self) -> At {
        let name = self.folder.split_once('/').map_or(&*self.folder, |(name, _)| name);
        (self.namespace.clone(), name.to_owned())
    }
}

impl Looked {
    /// Whether this folder, where it is there, is among what was found.
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

    /// The cluster's folders below the next names.
    async fn look(&mut self) -> Result<Looked, BlobError> {
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
                    return Ok(Looked { found, range: (after, Some(at)) });
                }
            }
        }
        Ok(Looked { found, range: (after, None) })
    }

    /// The folders below one; none where that cannot be said, for others have to come round.
    async fn folders_of(&self, prefix: &str) -> Vec<String> {
        self.store.folders(prefix).await.unwrap_or_else(|error| {
            tracing::warn!(%error, prefix, "what is below was not looked at for objects of no run");
            Vec::new()
        })
    }

    /// Of those that were found, the ones that had no run for long enough and did not change.
    async fn judge(&mut self, looked: &Looked, without: Vec<Folder>, now: Instant) -> Vec<Due> {
        let orphans: BTreeSet<&Folder> = without.iter().collect();
        // Of the others the run was created meanwhile, or they are gone.
        self.seen.retain(|folder, _| orphans.contains(folder) || !looked.covers(folder));
        let mut due = Vec::new();
        for folder in self.to_list(without, now) {
            let keys = match self.store.list(&folder.prefix()).await {
                Ok(keys) => keys,
                Err(error) => {
                    let (namespace, name) = (&folder.namespace, &folder.folder);
                    tracing::warn!(%error, namespace, folder = name, "was not looked at");
                    self.seen.insert(folder, Seen { since: now, objects: None });
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
            self.seen.insert(folder.clone(), Seen { since, objects });
            if now.duration_since(since) >= self.age {
                due.push(Due { folder, keys });
            }
        }
        due
    }

    /// Those that are to be listed now: the ones whose time is over, the oldest first, and as many new ones as can be
    /// remembered. Whatever a listing shows, the next round lists others.
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

    /// Removes those that `still` have no run. Of one that cannot be removed the time begins anew.
    async fn remove(&mut self, due: Vec<Due>, still: &BTreeSet<Folder>) {
        for Due { folder, keys } in due {
            self.seen.remove(&folder);
            if !still.contains(&folder) {
                continue;
            }
            let (namespace, name, objects) = (&folder.namespace, &folder.folder, keys.len());
            let removed = match remove_all(&self.store, keys).await {
                Ok(()) => self.store.prune(&folder.prefix()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = removed {
                tracing::warn!(%error, namespace, folder = name, "was not swept: tried again later");
                continue;
            }
            tracing::info!(namespace, folder = name, objects, "objects of no run are swept");
            metrics::counter!("rollout_orphan_objects_swept_total").increment(objects as u64);
        }
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
        let looked = orphans.look().await.expect("listed");
        let without = looked.found.iter().filter(|f| !runs.contains(&f.folder.as_str()));
        let without: Vec<Folder> = without.cloned().collect();
        let due = orphans.judge(&looked, without, now).await;
        let still = due.iter().map(|due| due.folder.clone()).collect();
        let count = due.len();
        orphans.remove(due, &still).await;
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
        let looked = orphans.look().await.expect("listed");
        assert_eq!(looked.found.len(), 1);
        let without = looked.found.clone();
        let due = orphans.judge(&looked, without, Instant::now()).await;
        assert_eq!(due.len(), 1);
        orphans.remove(due, &BTreeSet::new()).await;
        assert_eq!(store.list("runs").await.expect("listed"), [key]);
    }

    #[tokio::test]
    async fn folders_that_go_on_changing_hide_none_that_does_not() {
        let store = BlobStore::open("memory://crowd").expect("open");
        let folder = |name: String| rollout_storage::run_folder(&name, OURS, 1);
        let crowd: Vec<String> = (0..FOLDERS_PER_ROUND).map(|i| folder(format!("a{i}"))).collect();
        let last = folder("z".to_owned());
        let hidden = put(&store, &last, 1).await;
        let mut orphans = Orphans::new(store.clone(), OURS, AGE);
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        // Something is uploaded to each of the crowd before each round.
        for (digest, passed) in
            (0..).zip([Duration::ZERO, second, second + AGE, 2 * second + AGE, 3 * second + AGE])
        {
            for folder in &crowd {
                put(&store, folder, digest).await;
            }
            round(&mut orphans, &[], begun + passed).await;
        }
        let left = store.list("runs").await.expect("listed");
        assert!(!left.contains(&hidden), "it was never looked at");
        assert_eq!(left.len(), 5 * crowd.len(), "what changes stays");
    }

    #[tokio::test]
    async fn what_cannot_be_listed_keeps_no_other_from_being_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = BlobStore::open(&format!("file://{}", dir.path().display())).expect("open");
        let orphan = rollout_storage::run_folder("m", OURS, 1);
        put(&store, &orphan, 1).await;
        // Names that no object has, so that they cannot be listed: of folders with the mark, of runs, of namespaces.
        let mark = rollout_storage::folder_mark(OURS);
        let odd: Vec<String> = (0..FOLDERS_PER_ROUND)
            .map(|i| format!("default/a/{mark}{i} by hand"))
            .chain(["default/b by hand".to_owned(), "a by hand/c".to_owned()])
            .collect();
        for name in &odd {
            let path = dir.path().join("runs").join(name);
            std::fs::create_dir_all(path).expect("created");
        }
        let mut orphans = Orphans::new(store.clone(), OURS, AGE);
        let (begun, second) = (Instant::now(), Duration::from_secs(1));
        let mut swept = 0;
        for passed in [Duration::ZERO, second, second + AGE, 2 * second + AGE] {
            swept += round(&mut orphans, &[], begun + passed).await;
        }
        assert_eq!(swept, 1, "the folders that cannot be listed hide it");
        assert!(store.list(&format!("runs/default/{orphan}")).await.expect("listed").is_empty());
        for name in &odd {
            assert!(dir.path().join("runs").join(name).is_dir(), "{name} is gone");
        }
    }

    #[tokio::test]
    async fn a_store_that_does_not_answer_does_not_send_a_round_back_to_the_first_names() {
        let dir = tempfile::tempdir().expect("a directory");
        let store = BlobStore::open(&format!("file://{}", dir.path().display())).expect("open");
        put(&store, &rollout_storage::run_folder("a", OURS, 1), 1).await;
        let mut orphans = Orphans::new(store, OURS, AGE);
        let after = Some(("default".to_owned(), "a".to_owned()));
        orphans.after.clone_from(&after);
        let (runs, away) = (dir.path().join("runs"), dir.path().join("away"));
        std::fs::rename(&runs, &away).expect("renamed");
        std::fs::write(&runs, "no directory").expect("written");
        assert!(orphans.look().await.is_err(), "the store answers");
        assert_eq!(orphans.after, after);
        std::fs::remove_file(&runs).expect("removed");
        std::fs::rename(&away, &runs).expect("renamed");
        assert!(
            orphans.look().await.expect("listed").found.is_empty(),
            "what is before is looked at"
        );
    }

    #[tokio::test]
    async fn what_is_gone_is_remembered_no_longer() {
        let store = BlobStore::open("memory://gone").expect("open");
        let folder = |name: &str| rollout_storage::run_folder(name, OURS, 1);
        let mut orphans = Orphans::new(store.clone(), OURS, AGE);
        let now = Instant::now();
        put(&store, &folder("stays"), 1).await;
        let key = put(&store, &folder("goes"), 1).await;
        round(&mut orphans, &[], now).await;
        assert_eq!(orphans.seen.len(), 2);
        remove_all(&store, vec![key]).await.expect("removed");
        round(&mut orphans, &[], now).await;
        let seen: Vec<&str> = orphans.seen.keys().map(|f| f.folder.as_str()).collect();
        assert_eq!(seen, [folder("stays")]);
    }

    #[test]
    fn a_round_speaks_of_the_names_that_it_has_looked_at_alone() {
        let at = |name: &str| Some(("default".to_owned(), name.to_owned()));
        let looked = Looked { found: Vec::new(), range: (at("b"), at("d")) };
        for (name, covered) in [("b", false), ("b-", true), ("c", true), ("d", true), ("d-", false)]
        {
            let folder = rollout_storage::run_folder(name, OURS, 1);
            let folder = Folder { namespace: "default".to_owned(), folder };
            assert_eq!(looked.covers(&folder), covered, "{name}");
        }
    }
}
