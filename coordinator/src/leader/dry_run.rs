//! Whether the present request is a dry run, which passes every check of its handler and proposes nothing.
//!
//! *Invariant:* a dry run is never proposed. Its handler runs as for the request itself, up to the operation. There
//! the ledger checks the operation, and the handler gets an error in either case, so it does nothing that follows a
//! change.
//!
//! Absent: which requests may be dry runs (`rollout_proto::DRY_RUNS`); how they arrive and are answered
//! (`grpc::dry_run`). Tasks that a handler spawns are outside of its dry run, so no handler of such a request spawns
//! any.

use rollout_proto::{ErrorCode, Outcome, RpcError};
use rollout_raft::ProposeError;
use std::cell::Cell;

tokio::task_local! {
    /// Whether the ledger would grant the request's operation.
    static GRANTED: Cell<bool>;
}

/// Whether this is part of a dry run.
pub(crate) fn is_dry_run() -> bool {
    GRANTED.try_with(|_| ()).is_ok()
}

/// Records that the ledger would grant the operation, and returns the error that ends the handler.
pub(crate) fn granted() -> RpcError {
    let _ = GRANTED.try_with(|granted| granted.set(true));
    RpcError::new(ErrorCode::Internal, "a dry run ends before its operation is proposed")
        .with_outcome(Outcome::NotApplied)
}

/// Refuses to propose anything within a dry run.
pub(crate) fn refuse_proposals() -> Result<(), ProposeError> {
    debug_assert!(!is_dry_run(), "a dry run proposes an operation");
    match is_dry_run() {
        true => Err(ProposeError::Stopped),
        false => Ok(()),
    }
}

/// Runs a handler as a dry run.
///
/// # Errors
/// The handler's refusal.
pub(crate) async fn checking<T, E: From<RpcError>>(
    handler: impl Future<Output = Result<T, E>>,
) -> Result<(), E> {
    let checked = async {
        let answer = handler.await;
        match (GRANTED.with(Cell::get), answer) {
            (true, _) => Ok(()),
            (false, Err(refusal)) => Err(refusal),
            (false, Ok(_)) => {
                let text = "this dry run was answered before its operation was checked";
                Err(RpcError::new(ErrorCode::Internal, text).into())
            }
        }
    };
    GRANTED.scope(Cell::new(false), checked).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dry_run_ends_where_its_operation_would_be_granted() {
        let handler = async {
            assert!(is_dry_run());
            Err::<(), _>(granted())
        };
        let answer = checking(handler).await;
        assert_eq!(answer, Ok(()));
        assert!(!is_dry_run(), "the next request is none");
    }

    #[tokio::test]
    async fn a_dry_run_is_refused_as_its_handler_refuses_it() {
        let refusal = RpcError::new(ErrorCode::RunNotFound, "no run");
        let handler = async { Err::<(), _>(refusal.clone()) };
        let answer = checking(handler).await;
        assert_eq!(answer, Err(refusal));
    }

    #[tokio::test]
    async fn an_answer_without_a_check_is_no_grant() {
        let answer = checking(async { Ok::<_, RpcError>(7) }).await;
        assert_eq!(answer.map_err(|error| error.code), Err(ErrorCode::Internal));
    }
}
