//! Who waits for something of a training job.
//!
//! *Invariant:* whoever waits has looked at the ledger after it began to listen for changes, so that none is lost; and a
//! wait is a read, which a client repeats at whoever leads by then.

use super::Shared;
use crate::ledger_read::ReadLedger;
use crate::placed;
use rollout_ledger::Ledger;
use rollout_proto::{ErrorCode, RpcError};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// The longest that a wait is held before it is answered that nothing has come.
const WAIT_MAX: Duration = Duration::from_secs(30);
/// Waits held at a time.
const WAITS_MAX: usize = 16_384;
/// How often a wait looks whether this member still leads.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Those who wait at this member.
#[derive(Clone)]
pub(crate) struct TrainingWaits {
    /// Changes whenever a training job does.
    changes: watch::Receiver<u64>,
    room: Arc<Semaphore>,
}

impl TrainingWaits {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let (told, changes) = watch::channel(0);
        tokio::spawn(tell_changes(shared, told));
        Self { changes, room: Arc::new(Semaphore::new(WAITS_MAX)) }
    }

    /// What `find` finds, as soon as it is `enough`, or after a while whatever it finds then.
    pub(super) async fn until<T: Default>(
        &self,
        shared: &Shared,
        wait_ms: u64,
        find: impl Fn(&Ledger) -> T,
        enough: impl Fn(&T) -> bool,
    ) -> Result<T, RpcError> {
        let leading = shared.reading().await?;
        let Ok(_permit) = self.room.clone().try_acquire_owned() else {
            let message = format!("{WAITS_MAX} wait at this member already");
            return Err(RpcError::new(ErrorCode::Overloaded, message));
        };
        let until = tokio::time::Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
        let mut changes = self.changes.clone();
        loop {
            // Before the ledger is looked at: what comes after is told.
            changes.mark_unchanged();
            let found = shared.seen(&find);
            if enough(&found) {
                return Ok(found);
            }
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return Ok(found) },
                () = tokio::time::sleep_until(until) => return Ok(found),
                () = leading.ended.cancelled() => return Ok(found),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
            // A leader that was deposed, or that no majority confirms, may miss what others apply.
            // Where it does not, that is no answer as of the last look.
            placed::of_several_looks();
            shared.leading()?;
        }
    }
}

/// Looks at most once for each entry, for all who wait: they look again only when a job has changed.
async fn tell_changes(shared: Arc<Shared>, told: watch::Sender<u64>) {
    while !told.is_closed() {
        let Some(mut applied) = shared.node.applied_told() else {
            tokio::time::sleep(LOOK_EVERY).await;
            continue;
        };
        loop {
            let now = shared.node.ledger(|l| l.training_changes());
            told.send_if_modified(|known| std::mem::replace(known, now) != now);
            tokio::select! {
                changed = applied.changed() => if changed.is_err() { break },
                () = told.closed() => return,
            }
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
