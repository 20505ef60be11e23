//! Merges operations that arrive while earlier commands become durable into the next command.
//!
//! With one log entry per operation, each would wait for an fsync of its own. So up to [`IN_FLIGHT_MAX`] commands are
//! in flight, and operations that arrive meanwhile share the next one, within bounds. An idle leader delays nothing: it
//! proposes the first operation at once. A small command is not proposed beside others, because it costs all members as
//! much as a large one. It waits until the first of them returns, which takes a fraction of a millisecond, and takes
//! along the operations that arrive meanwhile. It waits a moment longer for callers that were just answered
//! ([`returning_callers`]).
//!
//! *Invariant:* operations of one bundle stay together and in order. Every bundle gets exactly its own replies, or an
//! error that says that its outcome is unknown. Commands of an ended epoch are not proposed, nor is a bundle whose
//! caller is gone before its turn, nor anything within a dry run.

mod pending;
mod queue;
mod returning_callers;

use crate::leader::caller;
use crate::leader::dry_run;
use crate::leader::leader_clock::LeaderClock;
use pending::{Pending, distribute};
use queue::{Bundle, Queue};
use returning_callers::{ReturningCallers, WAIT_MAX, WaitPolicy};
use rollout_ledger::id::CoordEpoch;
use rollout_ledger::{
    Body, Command, Ledger, NAMESPACES_VERSION, Op, Reply, Scope, check_body_version, check_version,
};
use rollout_proto::trace::{self, Span, SpanKind};
use rollout_raft::{Node, ProposeError};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::{Notify, Semaphore, mpsc};

/// Commands in flight at a time.
const IN_FLIGHT_MAX: usize = 4;
/// Waiting bundles. Beyond this, requests wait before they are queued, and streams are not read.
const QUEUE_MAX: usize = 8192;

/// A position in the log: an entry, and an operation of its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogPosition {
    pub(crate) index: u64,
    pub(crate) position: u32,
}

impl LogPosition {
    /// The position of an operation that was not proposed; the index of an entry starts at 1.
    pub(crate) const NONE: Self = Self { index: 0, position: 0 };
}

/// A bundle that was applied.
#[derive(Debug)]
pub(crate) struct Applied {
    /// The position of its first operation; the others follow.
    pub(crate) at: LogPosition,
    /// One reply for each operation.
    pub(crate) replies: Vec<Reply>,
}

/// The answer to a bundle.
pub(crate) type ProposeResult = Result<Applied, ProposeError>;

/// The way into the log for one epoch.
#[derive(Clone)]
pub(crate) struct Proposer {
    node: Node,
    epoch: CoordEpoch,
    clock: Arc<LeaderClock>,
    queue: Queue,
}

impl Proposer {
    /// Starts merging for this epoch, until the last clone is dropped. `applied` is called after
    /// each command.
    pub(crate) fn start(
        node: Node,
        epoch: u64,
        clock: Arc<LeaderClock>,
        applied: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let returning: Arc<ReturningCallers> = Arc::default();
        let (queue, bundles) = Queue::new(returning.clone());
        let this = Self { node, epoch: CoordEpoch(epoch), clock, queue };
        let merging = Merging {
            node: this.node.clone(),
            epoch: this.epoch,
            clock: this.clock.clone(),
            applied: Arc::new(applied),
            landed: Arc::default(),
            returning,
        };
        tokio::spawn(merging.run(bundles));
        this
    }

    /// Applies operations together and in order, in a command shared with others. If the cluster's version lacks one
    /// of them, rejects all and proposes none, because a member of an older build could not read it. Within a request,
    /// the operations have the scope of its caller, if the version knows scopes.
    pub(crate) async fn ops(&self, ops: Vec<Op>) -> ProposeResult {
        self.ops_within(caller::scope(), ops).await
    }

    /// The same for operations of this scope, which belong to no request.
    pub(crate) async fn ops_within(&self, scope: Scope, ops: Vec<Op>) -> ProposeResult {
        dry_run::refuse_proposals()?;
        let version = self.version();
        if let Some(replies) = version.and_then(|version| too_new(&ops, version)) {
            return Ok(Applied { at: LogPosition::NONE, replies });
        }
        let scope = match version.is_some_and(|version| version >= NAMESPACES_VERSION) {
            true => scope,
            false => Scope::All,
        };
        // Only requests are traced, not the leader's own operations.
        let span = trace::current().map(|_| Span::part(SpanKind::Internal, "commit"));
        let answer = self.queue.answered(ops, scope).await;
        if let Some(span) = span {
            committed(span, &answer);
        }
        answer
    }

    /// The cluster's version; `None` if consensus has ended here, in which case a proposal returns the error.
    fn version(&self) -> Option<u32> {
        self.node.with_ledger(Ledger::version)
    }

    /// Applies one operation.
    pub(crate) async fn op(&self, op: impl Into<Op>) -> Result<Reply, ProposeError> {
        Ok(self.op_at(op).await?.1)
    }

    /// Applies one operation and returns its position.
    pub(crate) async fn op_at(
        &self,
        op: impl Into<Op>,
    ) -> Result<(LogPosition, Reply), ProposeError> {
        let Applied { at, mut replies } = self.ops(vec![op.into()]).await?;
        Ok((at, replies.pop().ok_or(ProposeError::Unknown)?))
    }

    /// The reserved lane: proposes a command of its own without waiting for the queue. For time, sessions and digests,
    /// which must get through when everything else is full. The version gate is as for [`ops`](Self::ops).
    pub(crate) async fn command(&self, body: Body) -> Result<(u64, Vec<Reply>), ProposeError> {
        dry_run::refuse_proposals()?;
        let version = self.version();
        if let Some(why) = version.and_then(|version| check_body_version(&body, version).err()) {
            return Ok((LogPosition::NONE.index, vec![Reply::Rejected(why)]));
        }
        propose(&self.node, self.epoch, &self.clock, body).await
    }
}

/// Ends the span of a bundle, which covers the time from the queue to application.
fn committed(mut span: Span, answer: &ProposeResult) {
    match answer {
        Ok(Applied { at, replies }) => {
            span.note("rollout.log_index", at.index);
            span.note("rollout.log_position", u64::from(at.position));
            span.note("rollout.operations", replies.len() as u64);
            span.done();
        }
        Err(error) => span.failed(|| error.to_string()),
    }
}

/// The replies to operations if one of them needs a later version.
fn too_new(ops: &[Op], version: u32) -> Option<Vec<Reply>> {
    let why = ops.iter().find_map(|op| check_version(&op.kind, version).err())?;
    Some(vec![Reply::Rejected(why); ops.len()])
}

/// Proposes a command at the time of `clock`. Returns its index and one reply for each operation.
pub(crate) async fn propose(
    node: &Node,
    epoch: CoordEpoch,
    clock: &LeaderClock,
    body: Body,
) -> Result<(u64, Vec<Reply>), ProposeError> {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let at = clock.now();
    let command = Command { epoch, at, wall_ms: wall.as_millis() as u64, body };
    let result = node.propose(epoch.0, command.encode()).await;
    if result.is_ok() {
        clock.applied(at);
    }
    result
}

struct Merging<F> {
    node: Node,
    epoch: CoordEpoch,
    clock: Arc<LeaderClock>,
    applied: Arc<F>,
    /// A command has come back.
    landed: Arc<Notify>,
    returning: Arc<ReturningCallers>,
}

impl<F: Fn() + Send + Sync + 'static> Merging<F> {
    async fn run(self, mut bundles: mpsc::Receiver<Bundle>) {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let (mut pending, mut wait_policy) = (Pending::default(), WaitPolicy::default());
        loop {
            if pending.is_empty() {
                match bundles.recv().await {
                    Some(bundle) => pending.push(bundle),
                    None => return,
                }
            }
            due(&mut pending, &mut bundles, &in_flight, &self.landed).await;
            if !pending.is_large() && !self.returning.are_back() && wait_policy.should_wait() {
                let come = joined(&mut pending, &mut bundles, &self.returning);
                let in_vain = tokio::time::timeout(WAIT_MAX, come).await.is_err();
                wait_policy.record_wait(in_vain);
            }
            // invariant: this semaphore is never closed.
            let Ok(permit) = in_flight.clone().acquire_owned().await else { return };
            let (merged, ops) = pending.take();
            let body = Body::scoped(ops);
            if merged.is_empty() {
                continue;
            }
            let (node, epoch, clock) = (self.node.clone(), self.epoch, self.clock.clone());
            let (applied, landed) = (self.applied.clone(), self.landed.clone());
            let returning = self.returning.clone();
            tokio::spawn(async move {
                let result = propose(&node, epoch, &clock, body).await;
                returning.answered(merged.len());
                distribute(merged, result);
                drop(permit);
                landed.notify_one();
                applied();
            });
        }
    }
}

/// Waits until the pending bundles should be proposed, together with those that arrive meanwhile: they are large, or
/// no other command is in flight.
async fn due(
    pending: &mut Pending,
    bundles: &mut mpsc::Receiver<Bundle>,
    in_flight: &Semaphore,
    landed: &Notify,
) {
    loop {
        pending.fill(bundles);
        if pending.is_large() || in_flight.available_permits() == IN_FLIGHT_MAX {
            return;
        }
        // Small, with other commands in flight: wait for one of those to return, or for more bundles.
        tokio::select! {
            biased;
            bundle = bundles.recv() => match bundle {
                Some(bundle) => pending.push(bundle),
                // The epoch is over, and no more bundles will arrive.
                None => landed.notified().await,
            },
            () = landed.notified() => {}
        }
    }
}

/// Waits until the expected callers are back or the pending bundles are large. Bundles that arrive meanwhile become
/// pending, even if this future is dropped.
async fn joined(
    pending: &mut Pending,
    bundles: &mut mpsc::Receiver<Bundle>,
    returning: &ReturningCallers,
) {
    loop {
        pending.fill(bundles);
        if pending.is_large() || returning.are_back() {
            return;
        }
        match bundles.recv().await {
            Some(bundle) => pending.push(bundle),
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::pending::tests::claim;
    use super::*;
    use rollout_ledger::Rejection;
    use std::future::poll_fn;
    use std::pin::pin;
    use std::time::Duration;

    #[tokio::test]
    async fn after_the_epoch_pending_bundles_wait_for_commands_in_flight_without_polling() {
        let (queue, mut bundles) = mpsc::channel(16);
        let (in_flight, landed) = (Semaphore::new(IN_FLIGHT_MAX), Notify::new());
        let mut pending = Pending::default();
        pending.push(claim(1));
        drop(queue);
        let in_doubt = in_flight.try_acquire().expect("nothing is under way");
        {
            let mut due = pin!(due(&mut pending, &mut bundles, &in_flight, &landed));
            let mut polls = 0;
            let counted = poll_fn(|cx| {
                polls += 1;
                due.as_mut().poll(cx)
            });
            let waited = tokio::time::timeout(Duration::from_millis(100), counted).await;
            assert!(waited.is_err(), "a command is in doubt");
            // One poll at the start, and one at the end of the wait.
            assert!(polls <= 2, "it was polled {polls} times");
            drop(in_doubt);
            landed.notify_one();
            due.await;
        }
        assert_eq!(pending.take().0.len(), 1);
    }

    #[test]
    fn a_bundle_with_an_operation_of_a_later_version_is_rejected_whole() {
        let ops = claim(1).ops.into_iter().chain(claim(2).ops).collect::<Vec<_>>();
        assert_eq!(too_new(&ops, 1), None);
        // No cluster has version 0, so every operation needs a later version.
        let low = Reply::Rejected(Rejection::VersionLow { needs: 1, version: 0 });
        assert_eq!(too_new(&ops, 0), Some(vec![low; 2]));
    }
}
