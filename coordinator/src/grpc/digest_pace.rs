//! How often this member, as the leader, requests digests of the cluster's state.
//!
//! *Invariant:* it requests one digest at a time and waits [`EVERY`] between two, whether or not their callers still
//! wait, because each digest hashes the whole state and image of every member. Callers that arrive before a digest is
//! requested share it. So each gets an index that covers everything that was applied before its request arrived.
//!
//! Absent: the digests themselves (`rollout_raft`).

use rollout_proto::RpcError;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Time between two digests.
const EVERY: Duration = Duration::from_secs(1);
/// The longest that a digest delays the next one. A member that installed a snapshot instead computes none.
pub(super) const COMPUTING_MAX: Duration = Duration::from_secs(30);

/// The pace of one member.
pub(crate) struct DigestPace {
    every: Duration,
    latest: Mutex<Option<RequestedDigest>>,
}

/// A digest that was requested.
#[derive(Clone, Copy)]
struct RequestedDigest {
    at: Instant,
    /// `None` if the proposal failed, or its caller left before it was committed.
    index: Option<u64>,
}

impl Default for DigestPace {
    fn default() -> Self {
        Self::of(EVERY)
    }
}

impl DigestPace {
    fn of(every: Duration) -> Self {
        Self { every, latest: Mutex::default() }
    }

    /// The index of a digest that is requested after this call. `computed` waits until this member has computed the
    /// digest of an index; `propose` requests the next one and returns its index.
    pub(super) async fn ask<C: Future<Output = ()>>(
        &self,
        computed: impl FnOnce(u64) -> C,
        propose: impl Future<Output = Result<u64, RpcError>>,
    ) -> Result<u64, RpcError> {
        let came = Instant::now();
        let mut latest = self.latest.lock().await;
        if let Some(request) = *latest {
            if let Some(index) = request.index {
                if request.at >= came {
                    return Ok(index);
                }
                let _ = timeout_at(request.at + COMPUTING_MAX, computed(index)).await;
            }
            sleep_until(request.at + self.every).await;
        }
        let at = Instant::now();
        *latest = Some(RequestedDigest { at, index: None });
        let index = propose.await?;
        *latest = Some(RequestedDigest { at, index: Some(index) });
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[tokio::test]
    async fn concurrent_requests_share_a_digest_that_starts_after_they_arrived() {
        let pace = DigestPace::of(Duration::from_millis(20));
        let (requests, begun) = (AtomicU64::new(0), Instant::now());
        let ask = || {
            pace.ask(|_| async {}, async {
                let index = requests.fetch_add(1, Ordering::Relaxed) + 1;
                tokio::task::yield_now().await;
                Ok(index)
            })
        };
        let first = ask().await.expect("an index");
        // The first of these waits for its turn, and the others share its digest.
        let indexes = futures::future::join_all((0..10).map(|_| ask())).await;
        for index in indexes {
            assert!(index.expect("an index") > first, "it was asked for before they came");
        }
        assert_eq!(requests.load(Ordering::Relaxed), 2);
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[tokio::test]
    async fn a_caller_that_leaves_does_not_let_the_next_one_skip_the_pause() {
        let pace = DigestPace::of(Duration::from_millis(20));
        let begun = Instant::now();
        let leaves = pace.ask(|_| async {}, std::future::pending());
        tokio::time::timeout(Duration::from_millis(1), leaves).await.expect_err("it has no end");
        assert_eq!(pace.ask(|_| async {}, async { Ok(7) }).await.expect("an index"), 7);
        assert!(begun.elapsed() >= Duration::from_millis(20));
    }

    #[tokio::test]
    async fn the_next_digest_waits_until_the_one_before_is_computed() {
        let pace = DigestPace::of(Duration::ZERO);
        pace.ask(|_| async {}, async { Ok(1) }).await.expect("an index");
        let computing = pace.ask(|_| std::future::pending(), async { Ok(2) });
        let waited = tokio::time::timeout(Duration::from_millis(20), computing).await;
        waited.expect_err("the first is not computed");
        let next = pace.ask(|index| async move { assert_eq!(index, 1) }, async { Ok(2) });
        assert_eq!(next.await.expect("an index"), 2);
    }
}
