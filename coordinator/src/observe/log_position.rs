//! Notes for each request its position in the log, for its answer and its audit line: that of the request's operation,
//! or the index as of which the answer was read.
//!
//! *Invariant:* a position is noted only where it is exact: for an operation, when the proposer reports it; for a read,
//! under the ledger lock under which the whole answer is found. A later read does not overwrite an operation's
//! position. A refusal has a position if the ledger decided it or does not contain the requested object. A refusal of a
//! member that no longer leads has none, whatever it read before.
//!
//! Absent: answers of streams, whose messages carry their own positions; how a position is written
//! (`rollout_proto::AnswerPosition`); the layer that writes it (`grpc::position_layer`).

use crate::leader::proposer::LogPosition;
use rollout_ledger::Ledger;
use rollout_proto::AnswerPosition;
use std::cell::Cell;

tokio::task_local! {
    static NOTED: Cell<Option<AnswerPosition>>;
}

/// Runs a request whose position is noted.
pub(crate) async fn noting<F: Future>(request: F) -> F::Output {
    NOTED.scope(Cell::new(None), request).await
}

/// The noted position, if there is one.
pub(crate) fn noted() -> Option<AnswerPosition> {
    NOTED.try_with(Cell::get).ok().flatten()
}

/// Notes that the answer reports the operation at this position in this epoch. An operation that was not proposed has
/// no position.
pub(crate) fn applied(coord_epoch: u64, at: LogPosition) {
    if at == LogPosition::NONE {
        return;
    }
    let position = AnswerPosition { coord_epoch, index: at.index, position: Some(at.position) };
    // Work outside of requests notes nothing.
    let _ = NOTED.try_with(|noted| noted.set(Some(position)));
}

/// Notes that the answer is read from the ledger as it is now. Call it under the lock under which the answer is read.
pub(crate) fn as_of(ledger: &Ledger) {
    let (coord_epoch, index) = (ledger.epoch().0, ledger.applied().index);
    let position = AnswerPosition { coord_epoch, index, position: None };
    let _ = NOTED.try_with(|noted| {
        if noted.get().is_none_or(|before| before.position.is_none()) {
            noted.set(Some(position));
        }
    });
}

/// Notes that the answer does not come from a single read: it has no position until the next read or operation.
pub(crate) fn of_several_looks() {
    let _ = NOTED.try_with(|noted| noted.set(noted.get().filter(|at| at.position.is_some())));
}

/// The index of the request's operation, if one was applied.
pub(crate) fn index_of_operation() -> Option<u64> {
    let noted = noted()?;
    noted.position.map(|_| noted.index)
}
