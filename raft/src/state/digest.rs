//! Owns: the digests of this member's state at the indexes that the log fixed.
//!
//! Invariant: the image's digest is computed from records read back from disk, written at exactly that index.
//! Absent: the comparison between members, and the log entry that asks for a digest.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollout_storage::ImageStore;
use tokio::sync::watch;

use crate::state::machine::ImageGuard;
use crate::state::records::with_records;

/// A member's digests of its own state after applying one entry. They are equal on all members unless one is broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// The log index of the requesting entry.
    pub index: u64,
    /// The chain over every command and its replies up to there.
    pub chain: [u8; 32],
    /// The state in memory.
    pub state: [u8; 32],
    /// The image, read back from disk; an error if a record could not be read.
    pub image: Result<[u8; 32], String>,
}

/// How many digests are remembered.
const KEEP: usize = 16;

/// The latest digests of this member.
#[derive(Clone)]
pub(crate) struct DigestBook {
    computed: Arc<Mutex<BTreeMap<u64, Digests>>>,
    changed: watch::Sender<()>,
}

impl Default for DigestBook {
    fn default() -> Self {
        Self { computed: Arc::default(), changed: watch::Sender::new(()) }
    }
}

impl DigestBook {
    /// Reads the image back on another thread. Nothing may write the image until `imaged` is released, which happens
    /// as soon as reading has begun.
    pub(crate) fn compute(
        &self,
        index: u64,
        chain: [u8; 32],
        state: [u8; 32],
        image: ImageStore,
        imaged: ImageGuard,
    ) {
        let digests = self.clone();
        tokio::task::spawn_blocking(move || {
            let image = with_records(
                &image,
                Box::new(move || drop(imaged)),
                rollout_ledger::digest_records,
            )
            .map_err(|error| error.to_string());
            digests.remember(Digests { index, chain, state, image });
        });
    }

    fn remember(&self, digests: Digests) {
        let mut computed = self.computed.lock();
        computed.insert(digests.index, digests);
        while computed.len() > KEEP {
            computed.pop_first();
        }
        drop(computed);
        self.changed.send_replace(());
    }

    /// The digests at `index`, once they are known; `None` after `wait`, or if they were dropped.
    pub(crate) async fn at(&self, index: u64, wait: Duration) -> Option<Digests> {
        let mut changed = self.changed.subscribe();
        let computed = async {
            loop {
                if let Some(found) = self.computed.lock().get(&index) {
                    return Some(found.clone());
                }
                changed.changed().await.ok()?;
            }
        };
        tokio::time::timeout(wait, computed).await.ok().flatten()
    }
}
