//! Looks in the ledger for this member's batches, and starts and ends the tasks for them.
//!
//! *Invariant:* a task goes on only while the ledger assigns its work to this member under its fence. At most
//! [`AT_A_TIME`] tasks run. Work that failed is tried again after a pause that grows, as long as this member has it.
//! Absent: the work (`validation`, `assembly`).

use super::context::Context;
use super::error::WorkError;
use super::{assembly, validation};
use rollout_ledger::id::BatchFence;
use rollout_ledger::{BatchStatus, BatchTask, BatchWork};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How often to look for work, and whether the present work is still this member's.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Tasks at a time. The leader does not assign more.
const AT_A_TIME: usize = 2;
/// The pause before failed work is tried again; it doubles with each failure.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The id of this member, once it belongs to a cluster.
pub(super) type Member = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// The driver of a member.
pub(super) struct Driver {
    context: Arc<Context>,
    member: Member,
    slots: BTreeMap<String, Slot>,
}

/// What a task is for. Another fence or another end needs another task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Purpose {
    fence: BatchFence,
    /// The end for which it writes output; none if it validates.
    ends_as: Option<BatchStatus>,
}

impl Purpose {
    fn of(task: &BatchTask) -> Self {
        let ends_as = match task.work {
            BatchWork::Validate(_) => None,
            BatchWork::Finish(ends_as) => Some(ends_as),
        };
        Self { fence: task.fence, ends_as }
    }
}

/// A batch of this member.
struct Slot {
    purpose: Purpose,
    failures: u32,
    state: State,
}

enum State {
    Running(Running),
    /// The last task failed.
    Waiting(Instant),
}

/// A task, which ends when this is dropped.
struct Running {
    ended: JoinHandle<Result<(), WorkError>>,
    _stop: DropGuard,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ended.abort();
    }
}

impl Driver {
    pub(super) fn new(context: Arc<Context>, member: Member) -> Self {
        Self { context, member, slots: BTreeMap::new() }
    }

    /// Works until it is dropped.
    pub(super) async fn run(mut self) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            self.look().await;
        }
    }

    async fn look(&mut self) {
        let Some(member) = (self.member)() else { return };
        // Before the ledger is read, so that a task that has done its work is not taken for one that failed.
        let ended: Vec<String> = self.ended();
        let tasks = self.context.api.ledger(|l| l.batch_tasks_of(member));
        let own: BTreeMap<&str, Purpose> =
            tasks.iter().map(|task| (&*task.batch, Purpose::of(task))).collect();
        self.slots.retain(|batch, slot| own.get(&**batch) == Some(&slot.purpose));
        for batch in ended {
            if let Some(slot) = self.slots.get_mut(&batch) {
                slot.pause(&batch).await;
            }
        }
        let mut free = AT_A_TIME.saturating_sub(self.running());
        for task in tasks {
            if free == 0 {
                break;
            }
            free -= usize::from(self.start(task));
        }
    }

    /// Batches whose tasks have ended.
    fn ended(&self) -> Vec<String> {
        let ended = self.slots.iter().filter(|(_, slot)| match &slot.state {
            State::Running(running) => running.ended.is_finished(),
            State::Waiting(_) => false,
        });
        ended.map(|(batch, _)| batch.clone()).collect()
    }

    fn running(&self) -> usize {
        self.slots.values().filter(|slot| matches!(slot.state, State::Running(_))).count()
    }

    /// Starts a task, unless it runs or waits.
    fn start(&mut self, task: BatchTask) -> bool {
        let slot = self.slots.get(&task.batch);
        match slot.map(|slot| &slot.state) {
            Some(State::Running(_)) => return false,
            Some(State::Waiting(until)) if *until > Instant::now() => return false,
            Some(State::Waiting(_)) | None => {}
        }
        let failures = slot.map_or(0, |slot| slot.failures);
        let (batch, purpose) = (task.batch.clone(), Purpose::of(&task));
        let stop = CancellationToken::new();
        let ended = tokio::spawn(work(self.context.clone(), task, stop.clone()));
        let running = Running { ended, _stop: stop.drop_guard() };
        self.slots.insert(batch, Slot { purpose, failures, state: State::Running(running) });
        true
    }
}

impl Slot {
    /// The task has ended, and the work is still there.
    async fn pause(&mut self, batch: &str) {
        let State::Running(running) = &mut self.state else { return };
        let why = match (&mut running.ended).await {
            Ok(Ok(())) => "the work is not done".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(error) => error.to_string(),
        };
        let pause = PAUSE.saturating_mul(1 << self.failures.min(6)).min(PAUSE_MAX);
        tracing::warn!(batch, why, ?pause, "the work on a batch failed; it will be tried again");
        self.failures += 1;
        self.state = State::Waiting(Instant::now() + pause);
    }
}

async fn work(
    context: Arc<Context>,
    task: BatchTask,
    stop: CancellationToken,
) -> Result<(), WorkError> {
    let (batch, work) = (task.batch.clone(), task.work);
    tracing::info!(batch, ?work, "working on a batch");
    let begun = Instant::now();
    match work {
        BatchWork::Validate(_) => validation::validate(context, task, stop).await?,
        BatchWork::Finish(ends_as) => assembly::assemble(&context, &task, ends_as).await?,
    }
    tracing::info!(batch, ?work, ms = begun.elapsed().as_millis(), "the work on a batch is done");
    Ok(())
}
