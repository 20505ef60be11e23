//! Notes for each answer its position in the log: that of the request's operation, or the index as of which it was
//! read.
//!
//! *Invariant:* a position is noted only where it is exact: for an operation, when the proposer reports it; for a read,
//! under the ledger lock under which the whole answer is found. A later read does not overwrite an operation's
//! position. A refusal has a position if the ledger decided it or does not contain the requested object. A refusal of a
//! member that no longer leads has none, whatever it read before.
//!
//! Deliberately absent: answers of streams, whose messages carry their own positions; how a position is written
//! (`rollout_proto::AnswerPlace`).

use crate::grpc::around::Around;
use crate::leader::proposer::Place;
use futures::FutureExt;
use futures::future::BoxFuture;
use rollout_ledger::Ledger;
use rollout_proto::AnswerPlace;
use std::cell::Cell;
use tower::Service;

tokio::task_local! {
    static NOTED: Cell<Option<AnswerPlace>>;
}

/// Notes that the answer reports the operation at this place in this epoch. An operation that was not proposed has no
/// place.
pub(crate) fn applied(coord_epoch: u64, at: Place) {
    if at == Place::NOWHERE {
        return;
    }
    let place = AnswerPlace { coord_epoch, index: at.index, position: Some(at.position) };
    // Work outside of requests notes nothing.
    let _ = NOTED.try_with(|noted| noted.set(Some(place)));
}

/// Notes that the answer is read from the ledger as it is now. Call it under the lock under which the answer is read.
pub(crate) fn as_of(ledger: &Ledger) {
    let (coord_epoch, index) = (ledger.epoch().0, ledger.applied().index);
    let place = AnswerPlace { coord_epoch, index, position: None };
    let _ = NOTED.try_with(|noted| {
        if noted.get().is_none_or(|before| before.position.is_none()) {
            noted.set(Some(place));
        }
    });
}

/// Notes that the answer does not come from a single read: it has no place until the next read or operation.
pub(crate) fn of_several_looks() {
    let _ = NOTED.try_with(|noted| noted.set(noted.get().filter(|at| at.position.is_some())));
}

/// The index of the request's operation, if one was applied.
pub(crate) fn index_of_operation() -> Option<u64> {
    let noted = NOTED.try_with(Cell::get).ok().flatten()?;
    noted.position.map(|_| noted.index)
}

/// Notes the places of requests' operations in the log.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Places {
    /// Answers carry their places.
    Told,
    /// Answers do not carry their places; only the audit log has them.
    Kept,
}

impl Around for Places {
    fn around<S, B, R>(
        &self,
        inner: &mut S,
        request: http::Request<B>,
    ) -> BoxFuture<'static, Result<http::Response<R>, S::Error>>
    where
        S: Service<http::Request<B>, Response = http::Response<R>>,
        S::Future: Send + 'static,
        S::Error: 'static,
        R: 'static,
    {
        let (answer, layer) = (inner.call(request), *self);
        let placed = async move {
            let mut response = answer.await?;
            if layer == Places::Told
                && let Some(place) = NOTED.with(Cell::get)
            {
                place.write(response.headers_mut());
            }
            Ok(response)
        };
        NOTED.scope(Cell::new(None), placed).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::around::AroundLayer;
    use rollout_ledger::EntryId;
    use rollout_proto::{ErrorCode, RpcError};
    use std::convert::Infallible;
    use tonic::Status;
    use tonic::metadata::MetadataMap;
    use tower::Layer;

    /// The place in the answer of a handler that does this.
    async fn said(handle: fn() -> http::Response<()>) -> Option<AnswerPlace> {
        said_by(Places::Told, handle).await
    }

    async fn said_by(layer: Places, handle: fn() -> http::Response<()>) -> Option<AnswerPlace> {
        let inner = tower::service_fn(move |_: http::Request<()>| async move {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(handle())
        });
        let answer = AroundLayer(layer).layer(inner).call(http::Request::new(())).await;
        let headers = answer.expect("an answer").headers().clone();
        AnswerPlace::of(&MetadataMap::from_headers(headers))
    }

    fn ok() -> http::Response<()> {
        http::Response::new(())
    }

    fn ledger(index: u64) -> Ledger {
        let mut ledger = Ledger::new([7; 16]);
        ledger.note(EntryId { index, term: 1 });
        ledger
    }

    const AT: Place = Place { index: 17, position: 2 };
    const APPLIED: AnswerPlace = AnswerPlace { coord_epoch: 3, index: 17, position: Some(2) };

    #[tokio::test]
    async fn the_answer_of_an_operation_has_its_place_and_so_has_its_refusal() {
        let applied = said(|| {
            applied(3, AT);
            ok()
        });
        assert_eq!(applied.await, Some(APPLIED));
        let refused = said(|| {
            super::applied(3, AT);
            Status::from(RpcError::new(ErrorCode::RunSpecConflict, "another spec")).into_http()
        });
        assert_eq!(refused.await, Some(APPLIED));
    }

    #[tokio::test]
    async fn a_read_has_the_index_of_its_last_look_and_does_not_overwrite_an_operation() {
        let read = said(|| {
            as_of(&ledger(4));
            as_of(&ledger(6));
            ok()
        });
        assert_eq!(read.await, Some(AnswerPlace { coord_epoch: 0, index: 6, position: None }));
        let read_before_and_after = said(|| {
            as_of(&ledger(4));
            applied(3, AT);
            as_of(&ledger(20));
            ok()
        });
        assert_eq!(read_before_and_after.await, Some(APPLIED));
    }

    #[tokio::test]
    async fn a_place_for_the_audit_log_is_noted_and_not_sent() {
        let kept = said_by(Places::Kept, || {
            applied(3, AT);
            assert_eq!(index_of_operation(), Some(AT.index));
            ok()
        });
        assert_eq!(kept.await, None);
    }

    #[tokio::test]
    async fn an_answer_without_a_certain_place_has_none() {
        assert_eq!(said(ok).await, None);
        let several = said(|| {
            as_of(&ledger(4));
            of_several_looks();
            ok()
        });
        assert_eq!(several.await, None);
        let done = said(|| {
            as_of(&ledger(4));
            applied(3, AT);
            of_several_looks();
            ok()
        });
        assert_eq!(done.await, Some(APPLIED), "an operation stays where it is");
        // Work outside of requests has no place to note.
        applied(3, AT);
        assert_eq!(index_of_operation(), None);
    }
}
