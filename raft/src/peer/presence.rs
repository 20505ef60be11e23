//! Owns: which members hold open streams to this one, and when each was last heard.
//!
//! Invariant: a member counts as connected while any of its append streams is open; when its last one ends, a watcher
//! is notified at once. The kernel closes the sockets of a killed process, so this is the earliest sign of its death.
//! Absent: conclusions. `elector` draws them, and safely: a leader that lives keeps its lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::mpsc;

/// The queue of members that lost their last stream and were not handled yet; further ones are dropped, because a
/// timeout follows anyway.
const LOST_QUEUE: usize = 16;

#[derive(Default)]
struct PeerPresence {
    streams: usize,
    last_message: Option<Instant>,
}

/// The connected members. Clones share it.
#[derive(Clone)]
pub(crate) struct Presence {
    seen: Arc<Mutex<HashMap<u64, PeerPresence>>>,
    lost: mpsc::Sender<u64>,
}

impl Presence {
    /// The presence, and the channel of members that lost their last stream.
    pub(crate) fn new() -> (Self, mpsc::Receiver<u64>) {
        let (lost, watcher) = mpsc::channel(LOST_QUEUE);
        (Self { seen: Arc::default(), lost }, watcher)
    }

    /// Marks a stream of `member` as open until the guard is dropped.
    pub(crate) fn connected(&self, member: u64) -> StreamGuard {
        self.seen.lock().entry(member).or_default().streams += 1;
        StreamGuard { presence: self.clone(), member }
    }

    /// A message of `member` arrived.
    pub(crate) fn record_message(&self, member: u64) {
        self.seen.lock().entry(member).or_default().last_message = Some(Instant::now());
    }

    /// When `member` was last heard, and whether it has a stream open.
    pub(crate) fn of(&self, member: u64) -> (Option<Instant>, bool) {
        self.seen
            .lock()
            .get(&member)
            .map_or((None, false), |seen| (seen.last_message, seen.streams > 0))
    }
}

/// One open stream.
pub(crate) struct StreamGuard {
    presence: Presence,
    member: u64,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        let mut seen = self.presence.seen.lock();
        let Some(entry) = seen.get_mut(&self.member) else { return };
        entry.streams -= 1;
        if entry.streams == 0 {
            // A full queue only costs speed.
            self.presence.lost.try_send(self.member).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_last_stream_is_reported_and_that_of_an_earlier_one_is_not() {
        let (presence, mut lost) = Presence::new();
        let (first, second) = (presence.connected(7), presence.connected(7));
        drop(first);
        assert!(lost.try_recv().is_err());
        assert!(presence.of(7).1);
        drop(second);
        assert_eq!(lost.try_recv(), Ok(7));
        assert!(!presence.of(7).1);
    }
}
