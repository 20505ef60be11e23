//! Answers with the log position from their headers.
//!
//! *Invariant:* the epoch of an answer with a position is the epoch that was open at that position. The message was
//! written later, so it may carry a later epoch, but never an earlier one.

use crate::history::LogPosition;
use crate::recorder::By;
use rollout_proto::{Answer, AnswerPlace, v1};
use tonic::Response;

/// An answer with its log position.
pub(super) struct Placed<T> {
    pub(super) answer: T,
    place: Option<AnswerPlace>,
}

impl<T> Placed<T> {
    /// Keeps the position in the headers.
    pub(super) fn of(response: Response<T>) -> Response<Self> {
        let place = AnswerPlace::of(response.metadata());
        response.map(|answer| Self { answer, place })
    }
}

impl<T: Answer> Placed<T> {
    /// The answer, and how it is recorded.
    pub(super) fn told(self) -> (T, By) {
        let said = self.answer.header().map(|header| header.coord_epoch);
        let epoch = self.place.map(|place| place.coord_epoch).or(said);
        let at = self.place.map(|place| match place.position {
            Some(position) => LogPosition { index: place.index, position },
            None => LogPosition::behind(place.index),
        });
        (self.answer, By { epoch, said, at, ..By::default() })
    }
}

impl<T: Answer> Answer for Placed<T> {
    fn header(&self) -> Option<&v1::ClusterHeader> {
        self.answer.header()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(place: Option<AnswerPlace>) -> (v1::StoreApplyResponse, By) {
        let header = Some(v1::ClusterHeader { coord_epoch: 8, ..Default::default() });
        let mut response = Response::new(v1::StoreApplyResponse { header, ..Default::default() });
        if let Some(place) = place {
            let mut headers = response.metadata().clone().into_headers();
            place.write(&mut headers);
            *response.metadata_mut() = tonic::metadata::MetadataMap::from_headers(headers);
        }
        Placed::of(response).into_inner().told()
    }

    #[test]
    fn an_answer_is_recorded_at_its_place_and_in_the_epoch_that_was_open_there() {
        let place = |position| Some(AnswerPlace { coord_epoch: 7, index: 30, position });
        let (_, write) = answer(place(Some(2)));
        assert_eq!(
            (write.at, write.epoch),
            (Some(LogPosition { index: 30, position: 2 }), Some(7))
        );
        let (_, read) = answer(place(None));
        assert_eq!((read.at, read.epoch), (Some(LogPosition::behind(30)), Some(7)));
        let (_, nowhere) = answer(None);
        assert_eq!((nowhere.at, nowhere.epoch), (None, Some(8)));
        // The epoch in the message itself is kept for comparison.
        assert_eq!((write.said, read.said, nowhere.said), (Some(8), Some(8), Some(8)));
    }
}
