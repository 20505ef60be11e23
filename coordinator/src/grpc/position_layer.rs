//! A layer that writes into each answer its position in the log.
//!
//! *Invariant:* an answer has the position that was noted while its request was handled, or none.
//!
//! Absent: what is noted when (`observe::log_position`).

use crate::grpc::middleware::{HttpService, Middleware, MiddlewareFuture};
use crate::observe::log_position;
use futures::FutureExt;

/// Notes the positions of requests' operations in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PositionLayer {
    /// Answers carry their positions.
    InAnswers,
    /// Answers do not carry their positions; only the audit log has them.
    InAuditOnly,
}

impl Middleware for PositionLayer {
    fn handle<S: HttpService<B>, B>(
        &self,
        inner: &mut S,
        request: http::Request<B>,
    ) -> MiddlewareFuture<S, B> {
        let (answer, layer) = (inner.call(request), *self);
        let answered = async move {
            let mut response = answer.await?;
            if layer == PositionLayer::InAnswers
                && let Some(position) = log_position::noted()
            {
                position.write(response.headers_mut());
            }
            Ok(response)
        };
        log_position::noting(answered).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::middleware::MiddlewareLayer;
    use crate::leader::proposer::LogPosition;
    use crate::observe::log_position::{applied, as_of, index_of_operation, of_several_looks};
    use rollout_ledger::{EntryId, Ledger};
    use rollout_proto::{AnswerPosition, ErrorCode, RpcError};
    use std::convert::Infallible;
    use tonic::Status;
    use tonic::metadata::MetadataMap;
    use tower::{Layer, Service};

    /// The position in the answer of a handler that does this.
    async fn position_of(handle: fn() -> http::Response<()>) -> Option<AnswerPosition> {
        position_from(PositionLayer::InAnswers, handle).await
    }

    async fn position_from(
        layer: PositionLayer,
        handle: fn() -> http::Response<()>,
    ) -> Option<AnswerPosition> {
        let inner = tower::service_fn(move |_: http::Request<()>| async move {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(handle())
        });
        let answer = MiddlewareLayer(layer).layer(inner).call(http::Request::new(())).await;
        let headers = answer.expect("an answer").headers().clone();
        AnswerPosition::of(&MetadataMap::from_headers(headers))
    }

    fn ok() -> http::Response<()> {
        http::Response::new(())
    }

    fn ledger(index: u64) -> Ledger {
        let mut ledger = Ledger::new([7; 16]);
        ledger.note(EntryId { index, term: 1 });
        ledger
    }

    const AT: LogPosition = LogPosition { index: 17, position: 2 };
    const APPLIED: AnswerPosition = AnswerPosition { coord_epoch: 3, index: 17, position: Some(2) };

    #[tokio::test]
    async fn the_answer_of_an_operation_has_its_position_and_so_has_its_refusal() {
        let applied = position_of(|| {
            applied(3, AT);
            ok()
        });
        assert_eq!(applied.await, Some(APPLIED));
        let refused = position_of(|| {
            log_position::applied(3, AT);
            Status::from(RpcError::new(ErrorCode::RunSpecConflict, "another spec")).into_http()
        });
        assert_eq!(refused.await, Some(APPLIED));
    }

    #[tokio::test]
    async fn a_read_has_the_index_of_its_last_look_and_does_not_overwrite_an_operation() {
        let read = position_of(|| {
            as_of(&ledger(4));
            as_of(&ledger(6));
            ok()
        });
        assert_eq!(read.await, Some(AnswerPosition { coord_epoch: 0, index: 6, position: None }));
        let read_before_and_after = position_of(|| {
            as_of(&ledger(4));
            applied(3, AT);
            as_of(&ledger(20));
            ok()
        });
        assert_eq!(read_before_and_after.await, Some(APPLIED));
    }

    #[tokio::test]
    async fn a_position_for_the_audit_log_is_noted_and_not_sent() {
        let kept = position_from(PositionLayer::InAuditOnly, || {
            applied(3, AT);
            assert_eq!(index_of_operation(), Some(AT.index));
            ok()
        });
        assert_eq!(kept.await, None);
    }

    #[tokio::test]
    async fn an_answer_without_a_certain_position_has_none() {
        assert_eq!(position_of(ok).await, None);
        let several = position_of(|| {
            as_of(&ledger(4));
            of_several_looks();
            ok()
        });
        assert_eq!(several.await, None);
        let done = position_of(|| {
            as_of(&ledger(4));
            applied(3, AT);
            of_several_looks();
            ok()
        });
        assert_eq!(done.await, Some(APPLIED), "an operation stays where it is");
        // Work outside of requests has no position to note.
        applied(3, AT);
        assert_eq!(index_of_operation(), None);
    }
}
