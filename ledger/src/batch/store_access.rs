//! Owns: which object stores a worker can use, by the URLs of its registration.
//!
//! Invariant: from [`SCHEDULING_VERSION`] on, a URL also allows everything below it, by the rule of members and
//! workers. Below that version it allows only itself, so that a log replays as it did.
//! Absent: the cluster's own store, which every worker can use, and the shared stores of training jobs (`store.rs`).

use crate::kernel::id::SessionId;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use rollout_store_url::allows;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoreAccess {
    urls: Vec<String>,
    /// Whether they also allow URLs below them. False if there are no URLs, so that such workers share their offers.
    below: bool,
}

impl StoreAccess {
    /// What these URLs allow in a cluster of this version.
    pub(crate) fn new(urls: &[String], version: u32) -> Self {
        let below = version >= SCHEDULING_VERSION && !urls.is_empty();
        Self { urls: urls.to_vec(), below }
    }

    /// Whether its worker can use the store of this URL.
    pub(crate) fn allows(&self, url: &str) -> bool {
        self.urls.iter().any(|listed| listed == url || self.below && allows(listed, url))
    }
}

impl Ledger {
    /// The version was raised from `before`: the URLs of workers may allow more from here on.
    pub(crate) fn reindex_stores(&mut self, before: u32) {
        if before >= SCHEDULING_VERSION || self.meta.version() < SCHEDULING_VERSION {
            return;
        }
        let listing = self.workers.values().filter(|worker| !worker.stores().is_empty());
        let sessions: Vec<SessionId> = listing.map(|worker| worker.id()).collect();
        for session in sessions {
            self.unindex_slots(session);
            self.index_slots(session);
            self.workers.touch(session);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_allows_paths_below_it_from_version_3_on() {
        let urls = ["s3://team/a".to_owned()];
        for (version, below) in [(1, false), (2, false), (3, true), (4, true)] {
            let access = StoreAccess::new(&urls, version);
            assert!(access.allows("s3://team/a"), "{version}");
            assert_eq!(access.allows("s3://team/a/"), below, "{version}");
            assert_eq!(access.allows("s3://team/a/b"), below, "{version}");
            assert!(!access.allows("s3://team/ab"), "{version}");
        }
        assert_eq!(StoreAccess::new(&[], 3), StoreAccess::new(&[], 2), "they share offers");
    }
}
