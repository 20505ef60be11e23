//! Owns: the object stores that this worker uses, one connection each.
//!
//! Invariant: only the cluster's own store and those of the configuration are ever opened.
//! Absent: retries and digests.

use std::collections::HashMap;

use parking_lot::Mutex;
use rollout_storage::{BlobError, BlobStore};

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
    /// Knows the configuration's further stores.
    pub(crate) fn new(allowed: Vec<String>) -> Self {
        Self { allowed, open: Mutex::default() }
    }

    /// Learns the cluster's own store.
    pub(crate) fn set_cluster(&self, url: &str) {
        let mut open = self.open.lock();
        if open.cluster != url {
            url.clone_into(&mut open.cluster);
        }
    }

    pub(crate) fn urls(&self) -> &[String] {
        &self.allowed
    }

    /// The store of a run; empty: the cluster's.
    pub(crate) fn get(&self, url: &str) -> Result<BlobStore, BlobError> {
        let mut open = self.open.lock();
        let url = if url.is_empty() { open.cluster.clone() } else { url.to_owned() };
        if let Some(store) = open.stores.get(&url) {
            return Ok(store.clone());
        }
        if url != open.cluster && !self.allowed.contains(&url) {
            let reason = "it is not among this worker's store.urls".to_owned();
            return Err(BlobError::Url { url, reason });
        }
        let store = BlobStore::open(&url)?;
        // At most one for each configured URL, and those that the cluster had.
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
}
