//! Answers with the log position from their headers.
//!
//! *Invariant:* the epoch of an answer with a position is the epoch that was open at that position. The message was
//! written later, so it may carry a later epoch, but never an earlier one.

use crate::history::LogPosition;
use crate::recorder::By;
use rollout_proto::{AnswerPosition, HasHeader, v1};
use tonic::Response;

/// An answer with its log position.
pub(super) struct Positioned<T> {
    pub(super) answer: T,
    at: Option<AnswerPosition>,
}

impl<T> Positioned<T> {
    /// Keeps the position in the headers.
    pub(super) fn of(response: Response<T>) -> Response<Self> {
        let at = AnswerPosition::of(response.metadata());
        response.map(|answer| Self { answer, at })
    }
}

impl<T: HasHeader> Positioned<T> {
    /// The answer, and how it is recorded.
    pub(super) fn into_parts(self) -> (T, By) {
        let said = self.answer.header().map(|header| header.coord_epoch);
        let epoch = self.at.map(|at| at.coord_epoch).or(said);
        let at = self.at.map(|at| match at.position {
            Some(position) => LogPosition { index: at.index, position },
            None => LogPosition::behind(at.index),
        });
        (self.answer, By { epoch, said, at, ..By::default() })
    }
}

impl<T: HasHeader> HasHeader for Positioned<T> {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        self.answer.header()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(at: Option<AnswerPosition>) -> (v1::StoreApplyResponse, By) {
        let header = Some(v1::ClusterHeader { coord_epoch: 8, ..Default::default() });
        let mut response = Response::new(v1::StoreApplyResponse { header, ..Default::default() });
        if let Some(at) = at {
            let mut headers = response.metadata().clone().into_headers();
            at.write(&mut headers);
            *response.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
        }
        Positioned::of(response).into_inner().into_parts()
    }

    #[test]
    fn an_answer_is_recorded_at_its_position_and_in_the_epoch_that_was_open_there() {
        let at = |position| Some(AnswerPosition { coord_epoch: 7, index: 30, position });
        let (_, write) = answer(at(Some(2)));
        assert_eq!(
            (write.at, write.epoch),
            (Some(LogPosition { index: 30, position: 2 }), Some(7))
        );
        let (_, read) = answer(at(None));
        assert_eq!((read.at, read.epoch), (Some(LogPosition::behind(30)), Some(7)));
        let (_, nowhere) = answer(None);
        assert_eq!((nowhere.at, nowhere.epoch), (None, Some(8)));
        // The epoch in the message itself is kept for comparison.
        assert_eq!((write.said, read.said, nowhere.said), (Some(8), Some(8), Some(8)));
    }
}
