//! Checks that the store has the checkpoint from which a lineage is to begin.
//!
//! *Invariant:* before a recovery that begins a lineage is proposed, every object that its checkpoint names, of all
//! ranks, was checked less than [`HOLDS`] ago ([`checkpoint_manifest`]). A refusal names the missing object and the way
//! out, and changes nothing. Callers that arrive during a check share it. It continues even if they give up, so that a
//! long check does not start again with each retry.
//!
//! Absent: the bytes of objects, which the restoring process compares; and falling back to another
//! checkpoint, which the cluster must not choose by itself.

use super::checkpoint_manifest;
use futures::future::{BoxFuture, FutureExt, Shared};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use rollout_ledger::{CheckpointState, JobName, Ledger, RankReport, TrainingView};
use rollout_proto::{ErrorCode, Outcome, RpcError};
use rollout_storage::BlobStore;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// How long a result stays valid, so that a retry after a lost answer does not check again.
const HOLDS: Duration = Duration::from_secs(30);
/// Ranks of a checkpoint that are checked concurrently.
const RANKS: usize = 8;
/// Checkpoints that are checked concurrently.
const LOOKS: usize = 4;

/// A checkpoint that a lineage is to begin from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Base {
    job: JobName,
    number: u32,
    step: u64,
    /// Each trainer by rank, and its report.
    ranks: Vec<(String, RankReport)>,
    /// Number and step of the newest other complete checkpoint.
    other: Option<(u32, u64)>,
}

impl Base {
    /// The checkpoint, if this recovery begins a lineage and the checkpoint can be its start.
    pub(super) fn of(ledger: &Ledger, job: &JobName, round: u64, from: u32) -> Option<Self> {
        let training = ledger.training(job)?;
        let lineage = training.generation();
        if round != 0 && round <= lineage.round {
            return None;
        }
        let number = if from == 0 { lineage.checkpoint } else { from };
        let found = training.checkpoint(number)?;
        if found.state() != CheckpointState::Complete {
            return None;
        }
        let ranks = found.ranks().map(|(name, report)| Some((name.to_owned(), report?.clone())));
        let (ranks, other) = (ranks.collect::<Option<_>>()?, other_than(&training, number));
        Some(Self { job: job.clone(), number, step: found.step(), ranks, other })
    }

    /// Checks all ranks.
    async fn look(self, store: BlobStore) -> Result<(), RpcError> {
        let JobName { namespace, job } = &self.job;
        let prefix = rollout_storage::checkpoint_prefix(namespace, job, self.number);
        let mut looks = Vec::with_capacity(self.ranks.len());
        for (trainer, report) in &self.ranks {
            looks.push(checkpoint_manifest::check(&store, &prefix, trainer, report));
        }
        let all = futures::stream::iter(looks).buffer_unordered(RANKS).try_collect::<()>();
        all.await.map_err(|error| self.refused(error))
    }

    fn refused(&self, error: RpcError) -> RpcError {
        let Self { job, number, step, .. } = self;
        let what = format!("checkpoint {number} of step {step} cannot start a lineage");
        if error.retryable {
            return RpcError { message: format!("{what}: {}", error.message), ..error };
        }
        let out = match self.other {
            Some((other, step)) => {
                format!(
                    "recover from another complete checkpoint by its number: {other}, of step {step}"
                )
            }
            None => {
                let job = &job.job;
                format!(
                    "no other checkpoint is complete: restore the object, or delete the job (rolloutctl job delete {job})"
                )
            }
        };
        let message = format!("{what}: {}; {out}", error.message);
        RpcError::new(ErrorCode::StoreRefused, message).with_outcome(Outcome::NotApplied)
    }
}

/// Number and step of the newest complete checkpoint other than `number`.
fn other_than(training: &TrainingView<'_>, number: u32) -> Option<(u32, u64)> {
    let complete = training.checkpoints().filter(|c| c.state() == CheckpointState::Complete);
    complete.filter(|c| c.number != number).map(|c| (c.number, c.step())).max()
}

/// When a check ended, and its result.
type CheckResult = (Instant, Result<(), RpcError>);
type PendingCheck = Shared<BoxFuture<'static, CheckResult>>;

/// Checks of a store, in progress or recently ended.
#[derive(Clone)]
pub(super) struct Bases {
    store: BlobStore,
    looks: Arc<Mutex<BTreeMap<(JobName, u32), PendingCheck>>>,
    room: Arc<Semaphore>,
}

impl Bases {
    pub(super) fn new(store: BlobStore) -> Self {
        Self { store, looks: Arc::default(), room: Arc::new(Semaphore::new(LOOKS)) }
    }

    /// Refuses a checkpoint if any of its objects is missing.
    pub(super) async fn check(&self, base: Base) -> Result<(), RpcError> {
        loop {
            let (ended, found) = self.look(&base).await;
            // A check without callers may have ended long ago. Then its result is not used, and a new check starts.
            if ended.elapsed() < HOLDS {
                return found;
            }
        }
    }

    fn look(&self, base: &Base) -> PendingCheck {
        let mut looks = self.looks.lock();
        // Poll each check: if all its callers are gone, no one else notices that it has ended.
        looks.retain(|_, look| match look.clone().now_or_never() {
            Some((ended, Ok(()))) => ended.elapsed() < HOLDS,
            Some((_, Err(_))) => false,
            None => true,
        });
        let key = (base.job.clone(), base.number);
        looks.entry(key).or_insert_with(|| self.begin(base.clone())).clone()
    }

    fn begin(&self, base: Base) -> PendingCheck {
        let (store, room) = (self.store.clone(), self.room.clone());
        let looking = tokio::spawn(async move {
            let _room = room.acquire_owned().await;
            let found = base.look(store).await;
            (Instant::now(), found)
        });
        let ended = looking.map(|ended| {
            ended.unwrap_or_else(|error| {
                let message = format!("the check of the checkpoint failed: {error}");
                (Instant::now(), Err(RpcError::new(ErrorCode::Internal, message)))
            })
        });
        ended.boxed().shared()
    }
}

#[cfg(test)]
mod tests {
    use super::super::checkpoint_manifest::tests::written;
    use super::*;

    /// A checkpoint of one rank, its objects, and the checks of their store.
    async fn base(name: &str) -> (Base, Vec<String>, Bases) {
        let url = format!("memory://{name}-{}", std::process::id());
        let store = BlobStore::open(&url).unwrap();
        let (keys, report) = written(&store).await;
        let job = JobName { namespace: "default".into(), job: "sft".into() };
        let ranks = vec![("t0".to_owned(), report)];
        let base = Base { job, number: 1, step: 7, ranks, other: Some((3, 20)) };
        (base, keys, Bases::new(store))
    }

    #[tokio::test]
    async fn a_lineage_does_not_begin_while_an_object_of_its_checkpoint_is_missing() {
        let (base, keys, bases) = base("bases-gone").await;
        bases.store.delete(&keys[1]).await.unwrap();
        let error = bases.check(base.clone()).await.unwrap_err();
        assert_eq!((error.code, error.outcome), (ErrorCode::StoreRefused, Outcome::NotApplied));
        let says = |error: &RpcError, what: &str| {
            assert!(error.message.contains(what), "{what}: {error:?}");
        };
        says(&error, "checkpoint 1 of step 7 cannot start a lineage");
        says(&error, &keys[1]);
        says(&error, "another complete checkpoint by its number: 3, of step 20");
        let error = bases.check(Base { other: None, ..base.clone() }).await.unwrap_err();
        says(&error, "rolloutctl job delete sft");
        // A store that does not answer is not damage: the caller retries.
        let error = base.refused(RpcError::new(ErrorCode::StoreUnavailable, "busy"));
        assert!(error.retryable && error.code == ErrorCode::StoreUnavailable, "{error:?}");
        bases.store.put(&keys[1], b"optimizer"[..].into()).await.unwrap();
        bases.check(base).await.unwrap();
    }

    #[tokio::test]
    async fn concurrent_callers_share_a_check_that_ends_even_if_they_leave() {
        let (base, keys, bases) = base("bases-one").await;
        let room = bases.room.clone().acquire_many_owned(LOOKS as u32).await.unwrap();
        let look = bases.look(&base);
        assert!(look.ptr_eq(&bases.look(&base)), "two looks at one checkpoint");
        let other = Base { number: 2, ..base.clone() };
        assert!(!look.ptr_eq(&bases.look(&other)), "one look at two checkpoints");
        drop(look);
        drop(room);
        // The permits are free again once the checks have ended, even without callers.
        while bases.room.available_permits() < LOOKS || bases.looks.lock().len() < 2 {
            tokio::task::yield_now().await;
        }
        bases.check(base.clone()).await.unwrap();
        // The result stays valid for a while, without another check.
        bases.store.delete(&keys[0]).await.unwrap();
        bases.check(base).await.unwrap();
        assert!(bases.check(other).await.is_err(), "of another checkpoint nothing is there");
    }
}
