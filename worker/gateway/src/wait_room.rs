//! Owns: how many waits of a store's users the leader holds at a time.
//!
//! Invariant: waits share one connection with every other call, and a member serves 200 calls of one connection at a
//! time. At most [`PLACES`] of these are waits, so a change, which may be what all of them wait for, never queues
//! behind a wait. When half of the places are taken, the leader holds further waits only briefly, and waits without a
//! place take turns with them.
//! Absent: the keys that are waited for.

use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

/// Waits at a time.
pub(crate) const PLACES: usize = 128;
/// How long the leader holds a wait before it answers that nothing has changed.
const LONG_MS: u64 = 10_000;
/// The same when there are many waits.
const SHORT_MS: u64 = 500;

/// Places for the waits of all stores and gateways that share a client's connections. Clones share them.
#[derive(Clone)]
pub struct WaitRoom(Arc<Semaphore>);

/// One place, released on drop.
pub(crate) struct WaitPlace<'a> {
    /// How long the leader holds the wait.
    pub(crate) wait_ms: u64,
    _place: Option<SemaphorePermit<'a>>,
}

impl WaitRoom {
    /// Places for one client.
    pub fn new() -> Self {
        Self(Arc::new(Semaphore::new(PLACES)))
    }

    /// Takes a place, first come, first served.
    pub(crate) async fn enter(&self) -> WaitPlace<'_> {
        // This semaphore is never closed.
        let place = self.0.acquire().await.ok();
        let many = self.0.available_permits() < PLACES / 2;
        WaitPlace { wait_ms: if many { SHORT_MS } else { LONG_MS }, _place: place }
    }
}

impl Default for WaitRoom {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test]
    async fn with_many_waits_places_free_up_soon_and_are_taken_in_turns() {
        let room = WaitRoom::new();
        let mut held = Vec::new();
        for _ in 0..PLACES {
            held.push(room.enter().await);
        }
        let long = held.iter().filter(|place| place.wait_ms == LONG_MS).count();
        assert_eq!(long, PLACES / 2);
        assert_eq!(held.last().map(|place| place.wait_ms), Some(SHORT_MS));
        let mut first = Box::pin(room.enter());
        let mut second = Box::pin(room.enter());
        assert!(timeout(Duration::ZERO, &mut first).await.is_err(), "there is no place");
        assert!(timeout(Duration::ZERO, &mut second).await.is_err(), "there is no place");
        held.pop();
        assert!(timeout(Duration::ZERO, &mut second).await.is_err(), "another one was here first");
        assert_eq!(first.await.wait_ms, SHORT_MS);
        assert_eq!(second.await.wait_ms, SHORT_MS);
    }
}
