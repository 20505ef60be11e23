//! The stores that have runs' objects: the cluster's own, and those that `[store] urls` lists.
//!
//! *Invariant:* a member opens no other store for a run, whatever URL the ledger has: a URL from a user reaches only
//! directories and buckets that an operator listed. For a new run in the cluster's own store, which every worker can
//! use, the ledger has no URL.
//!
//! Absent: whether a store is the one that has a run's objects. The code that relies on this checks it.

use crate::gc::runs::GcError;
use anyhow::{Context, Result};
use rollout_storage::{BlobStore, same_store};
use rollout_store_url::allows;
use std::sync::Arc;

/// Clones share the cluster's store.
#[derive(Clone)]
pub(crate) struct RunStores {
    cluster: BlobStore,
    listed: Arc<[String]>,
}

impl RunStores {
    /// Checks the list, and refuses an entry that is not a store's URL.
    pub(crate) fn new(cluster: BlobStore, urls: &[String]) -> Result<Self> {
        for url in urls {
            BlobStore::open(url).with_context(|| format!("{url:?}"))?;
        }
        Ok(Self { cluster, listed: urls.into() })
    }

    /// The cluster's own store.
    pub(crate) fn cluster(&self) -> &BlobStore {
        &self.cluster
    }

    /// The URL that the ledger records for a run that requests `url`. A run of that name keeps its spelling of the
    /// cluster's URL: with another spelling, its creation would be refused because of a different spec.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub(crate) fn recorded(&self, url: String, there: Option<String>) -> Result<String, String> {
        self.admit(&url)?;
        match self.is_cluster(&url) {
            true => Ok(there.filter(|there| self.is_cluster(there)).unwrap_or_default()),
            false => Ok(url),
        }
    }

    fn is_cluster(&self, url: &str) -> bool {
        url.is_empty() || same_store(url, self.cluster.url())
    }

    /// Refuses a URL that is neither the cluster's nor allowed by the list. Empty means the cluster's.
    pub(crate) fn admit(&self, url: &str) -> Result<(), String> {
        match self.is_cluster(url) || self.listed.iter().any(|listed| allows(listed, url)) {
            true => Ok(()),
            false => Err(format!(
                "store {url} is not the cluster's, and [store] urls of the members does not allow it: name a URL of \
                 that list, or one below it without `.`, `..` or escapes"
            )),
        }
    }

    /// Opens the store that a run's spec names.
    pub(crate) fn open(&self, url: &str) -> Result<BlobStore, GcError> {
        self.admit(url).map_err(GcError::NotListed)?;
        match self.is_cluster(url) {
            true => Ok(self.cluster.clone()),
            false => Ok(BlobStore::open(url)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_clusters_store_and_listed_ones_are_opened() {
        let cluster = BlobStore::open("file:///srv/store").expect("a store");
        let urls = ["file:///mnt/team-a/".to_owned(), "memory://more/x".to_owned()];
        let stores = RunStores::new(cluster, &urls).expect("good");
        for good in [
            "",
            "file:///srv/store",
            "file:///srv/store/",
            "file:///mnt/team-a",
            "file:///mnt/team-a/",
            "file:///mnt/team-a/b/c",
            "memory://more/x",
            "memory://more/x/y",
        ] {
            assert!(stores.open(good).is_ok(), "{good}");
        }
        for bad in [
            "file:///srv/store/runs/other",
            "file:///srv",
            "file:///any/dir",
            "file:///mnt/team-ab",
            "file:///mnt/team-a/../b",
            "file:///mnt/./team-a/b",
            "file:///mnt/team-a/b/../c",
            "file:///mnt/team-a/%2e%2e/b",
            "file:///mnt/team-a/..%2F..%2Fetc",
            "file://host/mnt/team-a",
            "memory://more/xy",
            "memory://other/x",
            "memory://user@more/x",
            "memory://more/x?a=b",
            "nothing",
        ] {
            let error = stores.open(bad).expect_err(bad).to_string();
            assert!(error.contains("[store] urls"), "{bad}: {error}");
        }
    }

    #[test]
    fn a_run_that_names_the_clusters_own_store_is_recorded_without_a_url() {
        let cluster = BlobStore::open("file:///srv/store").expect("a store");
        let urls = ["file:///mnt/team-a".to_owned()];
        let stores = RunStores::new(cluster, &urls).expect("good");
        let recorded = |url: &str, there: Option<&str>| {
            stores.recorded(url.to_owned(), there.map(str::to_owned))
        };
        for own in ["", "file:///srv/store", "file:///srv/store/", "file:///srv/./store"] {
            assert_eq!(recorded(own, None).as_deref(), Ok(""), "{own}");
            assert_eq!(recorded(own, Some("")).as_deref(), Ok(""), "{own}");
            // The run was created when members still recorded the URL.
            let before = recorded(own, Some("file:///srv/store"));
            assert_eq!(before.as_deref(), Ok("file:///srv/store"), "{own}");
            assert_eq!(recorded(own, Some("file:///mnt/team-a")).as_deref(), Ok(""), "{own}");
        }
        for there in [None, Some(""), Some("file:///srv/store")] {
            let other = recorded("file:///mnt/team-a/x", there);
            assert_eq!(other.as_deref(), Ok("file:///mnt/team-a/x"));
        }
        assert!(recorded("file:///srv", Some("file:///srv")).is_err());
    }

    #[test]
    fn a_list_with_an_entry_that_is_no_store_is_refused() {
        let cluster = BlobStore::open("file:///srv/store").expect("a store");
        for bad in ["", "/mnt", "ftp://host/a", "s3://key:secret@bucket/a"] {
            assert!(RunStores::new(cluster.clone(), &[bad.to_owned()]).is_err(), "{bad}");
        }
    }
}
