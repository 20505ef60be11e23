//! Retries for a store that does not answer.
//!
//! *Invariant:* a permanent error is returned after one attempt; a transient one is retried, with growing pauses, for
//! as long as the caller wants.
//! Absent: how long that is. The caller knows.

use std::time::Duration;

use rand::Rng;
use rollout_storage::BlobError;

/// The pause before the second try, after the store client's own retries; each pause is up to twice as long as the one
/// before.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The store's answer, or its last error once the caller no longer wants one.
pub(crate) async fn until_answered<T, Fut>(
    wanted: impl Fn() -> bool,
    ask: impl Fn() -> Fut,
) -> Result<T, BlobError>
where
    Fut: Future<Output = Result<T, BlobError>>,
{
    let mut pause = PAUSE_FIRST;
    loop {
        match ask().await {
            Err(error) if error.retryable() && wanted() => {
                tracing::warn!(%error, "the store does not answer, trying again");
                // Spreads the retries of many ranks that get the same error at once.
                let share = rand::rng().random_range(0.5..=1.0);
                tokio::time::sleep(pause.mul_f64(share)).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    fn unavailable() -> BlobError {
        BlobError::Unavailable { key: "a/b".into(), reason: "503".into() }
    }

    #[tokio::test]
    async fn a_transient_failure_is_retried_until_there_is_an_answer() {
        let asked = Cell::new(0);
        let answer = until_answered(
            || true,
            || async {
                asked.set(asked.get() + 1);
                if asked.get() < 3 { Err(unavailable()) } else { Ok(asked.get()) }
            },
        );
        assert_eq!(answer.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_permanent_refusal_is_not_retried_nor_an_unwanted_request() {
        let asked = Cell::new(0);
        let refused = until_answered(
            || true,
            || async {
                asked.set(asked.get() + 1);
                Err::<(), _>(BlobError::PermissionDenied {
                    key: "a/b".into(),
                    reason: "403".into(),
                })
            },
        );
        assert!(matches!(refused.await, Err(BlobError::PermissionDenied { .. })));
        assert_eq!(asked.get(), 1);
        let given_up = until_answered(
            || asked.get() < 3,
            || async {
                asked.set(asked.get() + 1);
                Err::<(), _>(unavailable())
            },
        );
        assert!(matches!(given_up.await, Err(BlobError::Unavailable { .. })));
        assert_eq!(asked.get(), 3);
    }
}
