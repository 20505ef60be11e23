//! Owns: how often and at what pauses a request to an object store is repeated.
//!
//! Invariant: only an error that may pass is repeated, and the last error is returned.
//! Absent: repeats within one request, which the store's client makes.

use std::time::Duration;

use backon::{ExponentialBuilder, Retryable as _};
use rollout_storage::BlobError;

/// Five repeats, the last one after 1.6 s.
const PAUSES: ExponentialBuilder = ExponentialBuilder::new()
    .with_min_delay(Duration::from_millis(100))
    .with_factor(2.0)
    .with_max_times(5);

/// Runs a request until it succeeds or has failed for good.
pub(crate) async fn retried<T, F>(request: impl FnMut() -> F) -> Result<T, BlobError>
where
    F: Future<Output = Result<T, BlobError>>,
{
    retried_after(PAUSES, request).await
}

async fn retried_after<T, F>(
    pauses: ExponentialBuilder,
    request: impl FnMut() -> F,
) -> Result<T, BlobError>
where
    F: Future<Output = Result<T, BlobError>>,
{
    request.retry(pauses).when(BlobError::retryable).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passing() -> BlobError {
        BlobError::Unavailable { key: "k".into(), reason: "busy".into() }
    }

    fn lasting() -> BlobError {
        BlobError::Refused { key: "k".into(), reason: "never".into() }
    }

    #[tokio::test]
    async fn only_an_error_that_may_pass_is_repeated_and_five_times_at_most() {
        let pauses = PAUSES.with_min_delay(Duration::from_millis(1));
        let cases: [(fn() -> BlobError, u32); 2] = [(passing, 6), (lasting, 1)];
        for (error, tries) in cases {
            let mut tried = 0;
            let outcome = retried_after(pauses, || {
                tried += 1;
                async move { Err::<(), _>(error()) }
            });
            assert!(outcome.await.is_err());
            assert_eq!(tried, tries);
        }
    }
}
