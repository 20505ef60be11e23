//! Owns: the object stores that this worker uses, one connection each.
//!
//! Invariant: only the cluster's own store and those that the configuration allows are ever opened.
//! Absent: retries and digests.

use std::collections::HashMap;

use parking_lot::Mutex;
use rollout_storage::{BlobError, BlobStore};
use rollout_store_url::allows;

/// Stores that are kept open. Users choose URLs below the configured ones.
const OPEN_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct Stores {
    allowed: Vec<String>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    cluster: String,
    stores: HashMap<String, BlobStore>,
}

impl Stores {
    /// Allows the configured stores, in addition to the cluster's.
    pub(crate) fn new(allowed: Vec<String>) -> Self {
        Self { allowed, open: Mutex::default() }
    }

    /// Sets the cluster's own store.
    pub(crate) fn set_cluster(&self, url: &str) {
        let mut open = self.open.lock();
        if open.cluster != url {
            url.clone_into(&mut open.cluster);
        }
    }

    pub(crate) fn urls(&self) -> &[String] {
        &self.allowed
    }

    /// The store of a run; an empty URL is the cluster's.
    pub(crate) fn get(&self, url: &str) -> Result<BlobStore, BlobError> {
        let mut open = self.open.lock();
        let url = if url.is_empty() { open.cluster.clone() } else { url.to_owned() };
        if let Some(store) = open.stores.get(&url) {
            return Ok(store.clone());
        }
        if url != open.cluster && !self.allowed.iter().any(|listed| allows(listed, &url)) {
            let reason =
                "this worker's [store] urls do not allow it: add it, or a URL above it".to_owned();
            return Err(BlobError::Url { url, reason });
        }
        let store = BlobStore::open(&url)?;
        if open.stores.len() >= OPEN_MAX {
            // Callers keep the stores that they use; the next caller opens a store again.
            open.stores.clear();
        }
        open.stores.insert(url, store.clone());
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_stores_are_opened() {
        let stores = Stores::new(vec!["memory://more".into()]);
        assert!(stores.get("").is_err(), "no cluster was met yet");
        stores.set_cluster("memory://cluster");
        assert_eq!(stores.get("").unwrap().url(), "memory://cluster");
        assert!(stores.get("memory://more").is_ok());
        assert!(stores.get("memory://strange").is_err());
    }

    #[test]
    fn a_configured_url_allows_what_is_below_it() {
        let stores = Stores::new(vec!["memory://more/a".into()]);
        for good in ["memory://more/a", "memory://more/a/", "memory://more/a/b/c"] {
            assert!(stores.get(good).is_ok(), "{good}");
        }
        for bad in ["memory://more", "memory://more/ab", "memory://more/a/../b", ""] {
            assert!(stores.get(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn runs_of_many_stores_keep_a_bounded_number_open() {
        let stores = Stores::new(vec!["file:///srv".into()]);
        for number in 0..2 * OPEN_MAX {
            assert!(stores.get(&format!("file:///srv/{number}")).is_ok(), "{number}");
            assert!(stores.open.lock().stores.len() <= OPEN_MAX);
        }
    }
}
