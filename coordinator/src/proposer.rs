//! Merges what arrives while earlier commands are being made durable into the next one.
//!
//! One operation, one log entry would cost an fsync's wait each; so up to [`IN_FLIGHT_MAX`]
//! commands are under way, and what arrives meanwhile shares the next, within bounds. An idle
//! leader delays nothing: the first operation goes out at once.
//!
//! *Invariant:* operations of one bundle stay together and in order; every bundle gets exactly its
//! own replies, or learns that its outcome is unknown. Commands whose epoch has ended are not
//! proposed.

use rollout_ledger::id::{CoordEpoch, LedgerMs};
use rollout_ledger::{Body, Command, Op, OpKind, Reply, limits};
use rollout_raft::{Node, ProposeError};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc, oneshot};

/// Commands under way at a time.
const IN_FLIGHT_MAX: usize = 4;
/// Rows that one command speaks of, unless a single bundle has more.
const ROWS_MAX: u64 = 4096;
/// Bytes of one command, by estimate, unless a single bundle has more.
const BYTES_MAX: usize = 1 << 20;
/// Bundles that wait. Over it, requests wait to be queued, and streams stop being read.
const QUEUE_MAX: usize = 8192;
/// The most by which a command moves ledger time beyond the last: well below what is refused.
const STEP_MAX_MS: u64 = limits::CLOCK_STEP_MAX_MS / 2;

/// The answer to a bundle: a reply an operation.
pub(crate) type Answer = Result<Vec<Reply>, ProposeError>;

struct Bundle {
    ops: Vec<Op>,
    answer: oneshot::Sender<Answer>,
}

/// Ledger time at a leader: where the log stood, and its own monotonic clock since.
pub(crate) struct LeaderClock {
    base: LedgerMs,
    since: Instant,
    last: AtomicU64,
}

impl LeaderClock {
    pub(crate) fn new(base: LedgerMs) -> Self {
        Self { base, since: Instant::now(), last: AtomicU64::new(base.0) }
    }

    /// Ledger time now. Never goes back, and catches up in small steps after the process stood
    /// still.
    pub(crate) fn now(&self) -> LedgerMs {
        let real = self.base.0 + self.since.elapsed().as_millis() as u64;
        let last = self.last.load(Ordering::Relaxed);
        let now = real.min(last + STEP_MAX_MS).max(last);
        self.last.fetch_max(now, Ordering::Relaxed);
        LedgerMs(now)
    }
}

/// The way into the log for one epoch.
#[derive(Clone)]
pub(crate) struct Proposer {
    node: Node,
    epoch: CoordEpoch,
    clock: Arc<LeaderClock>,
    queue: mpsc::Sender<Bundle>,
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
        let (queue, bundles) = mpsc::channel(QUEUE_MAX);
        let this = Self { node, epoch: CoordEpoch(epoch), clock, queue };
        let merging = Merging {
            node: this.node.clone(),
            epoch: this.epoch,
            clock: this.clock.clone(),
            applied: Arc::new(applied),
        };
        tokio::spawn(merging.run(bundles));
        this
    }

    /// Has operations applied, together and in order, in a command shared with others.
    pub(crate) async fn ops(&self, ops: Vec<Op>) -> Answer {
        let (answer, replies) = oneshot::channel();
        let sent = self.queue.send(Bundle { ops, answer }).await;
        if sent.is_err() {
            return Err(ProposeError::Stopped);
        }
        replies.await.unwrap_or(Err(ProposeError::Unknown))
    }

    /// One operation.
    pub(crate) async fn op(&self, op: impl Into<Op>) -> Result<Reply, ProposeError> {
        let mut replies = self.ops(vec![op.into()]).await?;
        replies.pop().ok_or(ProposeError::Unknown)
    }

    /// The reserved lane: a command of its own that waits for no queue. For time, sessions and
    /// digests, which must get through when everything else is full.
    pub(crate) async fn command(&self, body: Body) -> Result<(u64, Vec<Reply>), ProposeError> {
        let command = stamp(self.epoch, &self.clock, body);
        self.node.propose(self.epoch.0, command.encode()).await
    }
}

pub(crate) fn stamp(epoch: CoordEpoch, clock: &LeaderClock, body: Body) -> Command {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Command { epoch, at: clock.now(), wall_ms: wall.as_millis() as u64, body }
}

struct Merging<F> {
    node: Node,
    epoch: CoordEpoch,
    clock: Arc<LeaderClock>,
    applied: Arc<F>,
}

impl<F: Fn() + Send + Sync + 'static> Merging<F> {
    async fn run(self, mut bundles: mpsc::Receiver<Bundle>) {
        let in_flight = Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let mut spare = None;
        loop {
            let first = match spare.take() {
                Some(bundle) => bundle,
                None => match bundles.recv().await {
                    Some(bundle) => bundle,
                    None => return,
                },
            };
            // invariant: nobody closes this semaphore.
            let Ok(permit) = in_flight.clone().acquire_owned().await else { return };
            let (merged, ops) = gather(first, &mut bundles, &mut spare);
            let command = stamp(self.epoch, &self.clock, Body::Ops(ops)).encode();
            let (node, epoch, applied) = (self.node.clone(), self.epoch.0, self.applied.clone());
            tokio::spawn(async move {
                let result = node.propose(epoch, command).await;
                drop(permit);
                distribute(merged, result.map(|(_, replies)| replies));
                applied();
            });
        }
    }
}

/// How much of a command's bounds an operation takes: rows, and bytes by estimate.
fn weight(op: &Op) -> (u64, usize) {
    match &op.kind {
        OpKind::Claim { rows_max, .. } => (u64::from(*rows_max), 16),
        OpKind::Complete { sets, .. } => {
            let ranges: usize = sets.iter().map(|s| s.rows.ranges().len()).sum();
            (sets.iter().map(|s| s.rows.len()).sum(), 64 + 16 * sets.len() + 10 * ranges)
        }
        OpKind::AddSegments { segments, .. } => (0, 48 * segments.len()),
        OpKind::Fail { held, message, .. } => (held.rows.len(), 64 + message.len()),
        OpKind::Nack { held, .. } => (held.iter().map(|h| h.rows.len()).sum(), 32 * held.len()),
        OpKind::CreateRun { spec, .. } => (0, 1024 + spec.sampling_json.len()),
        OpKind::Register(r) => (0, 1024 + 32 * r.held.len()),
        _ => (0, 64),
    }
}

type Waiting = (usize, oneshot::Sender<Answer>);

/// Takes what is queued, up to a command's bounds.
fn gather(
    first: Bundle,
    bundles: &mut mpsc::Receiver<Bundle>,
    spare: &mut Option<Bundle>,
) -> (Vec<Waiting>, Vec<Op>) {
    let (mut rows, mut bytes) = (0, 0);
    let mut merged = Vec::new();
    let mut ops = Vec::new();
    let mut next = Some(first);
    while let Some(bundle) = next.take() {
        let (r, b) = bundle.ops.iter().map(weight).fold((0, 0), |a, w| (a.0 + w.0, a.1 + w.1));
        let full = rows + r > ROWS_MAX
            || bytes + b > BYTES_MAX
            || ops.len() + bundle.ops.len() > limits::OPS_PER_COMMAND_MAX;
        if full && !merged.is_empty() {
            *spare = Some(bundle);
            break;
        }
        (rows, bytes) = (rows + r, bytes + b);
        merged.push((bundle.ops.len(), bundle.answer));
        ops.extend(bundle.ops);
        next = bundles.try_recv().ok();
    }
    (merged, ops)
}

fn distribute(merged: Vec<Waiting>, result: Answer) {
    match result {
        Ok(replies) => {
            let mut replies = replies.into_iter();
            for (count, answer) in merged {
                let _ = answer.send(Ok(replies.by_ref().take(count).collect()));
            }
        }
        Err(error) => {
            for (_, answer) in merged {
                let _ = answer.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{SessionId, SlotNo, SlotRef};

    fn claim(rows_max: u32) -> Bundle {
        let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        let ops = vec![OpKind::Claim { slot, seq: 1, rows_max }.into()];
        Bundle { ops, answer: oneshot::channel().0 }
    }

    #[test]
    fn what_waits_is_merged_up_to_the_bound_and_the_rest_keeps_its_place() {
        let (queue, mut bundles) = mpsc::channel(16);
        for rows in [2000, 1000, 500] {
            queue.try_send(claim(rows)).ok();
        }
        let mut spare = None;
        let (merged, ops) = gather(claim(1000), &mut bundles, &mut spare);
        assert_eq!((merged.len(), ops.len()), (3, 3));
        assert!(spare.is_some(), "the fourth waits for the next command");
        let (merged, _) = gather(claim(1), &mut bundles, &mut spare);
        assert_eq!(merged.len(), 1);
    }

    #[test]
    fn a_bundle_over_the_bound_goes_alone() {
        let (_queue, mut bundles) = mpsc::channel(1);
        let (merged, _) = gather(claim(10_000), &mut bundles, &mut None);
        assert_eq!(merged.len(), 1);
    }

    #[test]
    fn a_leader_clock_catches_up_in_small_steps() {
        let mut clock = LeaderClock::new(LedgerMs(5));
        clock.since = Instant::now() - std::time::Duration::from_secs(300);
        assert_eq!(clock.now(), LedgerMs(5 + STEP_MAX_MS));
        assert_eq!(clock.now(), LedgerMs(5 + 2 * STEP_MAX_MS));
    }
}
