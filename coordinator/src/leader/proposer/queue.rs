//! The queue of bundles to be proposed, bounded in bundles and in bytes.
//!
//! One bundle may have megabytes and thousands may wait, so a bound on their number alone does not bound a leader's
//! memory.
//!
//! *Invariant:* bundles without an answer take at most [`BYTES_MAX`] bytes, counted as in a command, and the requests
//! of one identity at most three quarters of that. A request that finds no room fails as overloaded, and nothing of it
//! was proposed. A worker's exchange waits instead, because an error would end its stream. A stream that waits is not
//! read, which bounds the exchanges that wait here.
//!
//! Absent: the reserved lane, which has no queue.

use super::returning_callers::ReturningCallers;
use super::{ProposeResult, QUEUE_MAX};
use crate::leader::caller;
use crate::leader::command_size::Weight;
use crate::leader::fair_room::{self, FairRoom};
use rollout_ledger::{Op, Scope};
use rollout_raft::ProposeError;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

/// Bytes of unanswered operations of all callers together.
const BYTES_MAX: usize = 256 << 20;

/// Operations that belong together, and their caller.
pub(super) struct Bundle {
    pub(super) ops: Vec<Op>,
    /// Where their caller may act.
    pub(super) scope: Scope,
    pub(super) weight: Weight,
    pub(super) answer: oneshot::Sender<ProposeResult>,
    /// Its share of the queue's bytes.
    pub(super) room: Room,
}

/// Bytes of the queue, released on drop.
pub(super) struct Room {
    _bytes: OwnedSemaphorePermit,
    /// The bytes that count for the request's caller.
    _share: Option<fair_room::Permit>,
}

#[cfg(test)]
impl Room {
    pub(super) fn of(bytes: OwnedSemaphorePermit) -> Self {
        Self { _bytes: bytes, _share: None }
    }
}

/// The sending end of the queue.
#[derive(Clone)]
pub(super) struct Queue {
    bundles: mpsc::Sender<Bundle>,
    bytes_max: usize,
    room: Arc<Semaphore>,
    /// Bytes that requests hold, by caller.
    shares: FairRoom,
    returning: Arc<ReturningCallers>,
}

impl Queue {
    pub(super) fn new(returning: Arc<ReturningCallers>) -> (Self, mpsc::Receiver<Bundle>) {
        Self::of(BYTES_MAX, returning)
    }

    fn of(bytes_max: usize, returning: Arc<ReturningCallers>) -> (Self, mpsc::Receiver<Bundle>) {
        let (bundles, queued) = mpsc::channel(QUEUE_MAX);
        let room = Arc::new(Semaphore::new(bytes_max));
        (Self { bundles, bytes_max, room, shares: FairRoom::new(bytes_max), returning }, queued)
    }

    /// Waits for a place in the queue, and then for the answer.
    pub(super) async fn answered(&self, ops: Vec<Op>, scope: Scope) -> ProposeResult {
        // Here, and not in the single task through which all bundles pass.
        let weight = Weight::of(&ops).in_scope(&scope);
        let room = self.room_for(&ops, weight.bytes).await?;
        let (answer, replies) = oneshot::channel();
        self.returning.queued();
        let sent = self.bundles.send(Bundle { ops, scope, weight, answer, room }).await;
        if sent.is_err() {
            return Err(ProposeError::Stopped);
        }
        replies.await.unwrap_or(Err(ProposeError::Unknown))
    }

    async fn room_for(&self, ops: &[Op], bytes: usize) -> Result<Room, ProposeError> {
        let waits = ops.iter().all(|op| op.kind.in_exchange());
        // A bundle larger than the whole queue never fits. It goes on to consensus, which refuses it for its size.
        let bytes = bytes.min(self.bytes_max);
        let caller = caller::current().filter(|_| !waits);
        let mut share = caller.map(|caller| self.shares.none(caller));
        if share.as_mut().is_some_and(|share| !share.grow(bytes)) {
            return Err(ProposeError::Overloaded { max: self.bytes_max });
        }
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Ok(bytes) = self.room.clone().try_acquire_many_owned(permits) {
            return Ok(Room { _bytes: bytes, _share: share });
        }
        if !waits {
            return Err(ProposeError::Overloaded { max: self.bytes_max });
        }
        // invariant: this semaphore is never closed.
        let bytes = self.room.clone().acquire_many_owned(permits).await;
        bytes.map(|bytes| Room { _bytes: bytes, _share: share }).map_err(|_| ProposeError::Stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::poll;
    use rollout_ledger::id::{SessionId, SlotNo, SlotRef};
    use rollout_ledger::{OpKind, op};
    use rollout_proto::{Identity, Role};
    use std::pin::pin;

    fn request() -> Vec<Op> {
        let kind =
            OpKind::OpenClient(op::OpenClient { name: "x".repeat(4000), holder: String::new() });
        vec![kind.into()]
    }

    fn exchange() -> Vec<Op> {
        let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        vec![OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max: 1 }).into()]
    }

    #[tokio::test]
    async fn bytes_without_an_answer_are_bounded_requests_are_refused_and_workers_wait() {
        let each = Weight::of(&request()).bytes;
        let (queue, mut bundles) = Queue::of(64 * each, Arc::default());
        let mut waiting: Vec<_> =
            (0..64).map(|_| Box::pin(queue.answered(request(), Scope::All))).collect();
        for one in &mut waiting {
            assert!(poll!(one).is_pending(), "there is room");
        }
        let refused = queue.answered(request(), Scope::All).await;
        let overloaded = ProposeError::Overloaded { max: 64 * each };
        assert_eq!(refused.map(drop), Err(overloaded.clone()));
        let mut worker = pin!(queue.answered(exchange(), Scope::All));
        assert!(poll!(&mut worker).is_pending());
        assert_eq!(bundles.len(), 64, "it is not queued");

        // A bundle that has left the queue is in memory until it is answered.
        let first = bundles.try_recv().expect("a bundle");
        assert!(poll!(&mut worker).is_pending());
        assert_eq!(bundles.len(), 63);
        drop(first);
        assert!(poll!(&mut worker).is_pending());
        assert_eq!(bundles.len(), 64, "the worker goes first");
        assert_eq!(queue.answered(request(), Scope::All).await.map(drop), Err(overloaded));

        // The bytes of a request whose caller is gone are released when the queue reaches it.
        drop(waiting);
        while bundles.try_recv().is_ok() {}
        assert!(
            poll!(pin!(queue.answered(request(), Scope::All))).is_pending(),
            "there is room again"
        );
    }

    #[tokio::test]
    async fn requests_of_one_identity_leave_a_quarter_of_the_bytes_to_others() {
        let named = |name: &str| Identity::new(Role::Client, name, Vec::new()).expect("a name");
        let each = Weight::of(&request()).bytes;
        let (queue, mut bundles) = Queue::of(64 * each, Arc::default());
        let asked = |name: &str| {
            Box::pin(caller::serving(named(name), queue.answered(request(), Scope::All)))
        };
        let mut greedy: Vec<_> = (0..48).map(|_| asked("greedy")).collect();
        for one in &mut greedy {
            assert!(poll!(one).is_pending(), "there is room");
        }
        let overloaded = ProposeError::Overloaded { max: 64 * each };
        assert_eq!(asked("greedy").await.map(drop), Err(overloaded.clone()), "it has its share");
        let mut others: Vec<_> = (0..16).map(|_| asked("other")).collect();
        for one in &mut others {
            assert!(poll!(one).is_pending(), "the rest is for others");
        }
        assert_eq!(asked("other").await.map(drop), Err(overloaded), "all is taken");

        // A worker's exchange waits for its turn, whatever its identity.
        let mut worker =
            pin!(caller::serving(named("greedy"), queue.answered(exchange(), Scope::All)));
        assert!(poll!(&mut worker).is_pending());
        assert_eq!(bundles.len(), 64);
        drop((greedy, others));
        while bundles.try_recv().is_ok() {}
        assert!(poll!(&mut worker).is_pending());
        assert_eq!(bundles.len(), 1);
        assert_eq!(queue.shares.left(), 64 * each, "all of it is given back");
    }

    #[tokio::test]
    async fn a_bundle_larger_than_the_queue_waits_for_an_empty_queue() {
        let (queue, mut bundles) = Queue::of(100, Arc::default());
        let mut large = pin!(queue.answered(request(), Scope::All));
        assert!(poll!(&mut large).is_pending());
        assert!(bundles.try_recv().is_ok(), "consensus refuses it");
    }
}
