//! The position of an answer in the log, as its headers carry it.
//!
//! *Invariant:* a position is exact, or absent. An operation has the index and position at which the ledger decided it.
//! If it was repeated under its request id, it has those of the repeat. A read has the index as of which its whole
//! answer was found.
//!
//! Absent: the code that finds the position of an answer (the coordinator).

use http::{HeaderMap, HeaderValue};
use tonic::metadata::MetadataMap;

use crate::stamp::EPOCH_HEADER;

/// The header of an answer with its position: `INDEX.POSITION` for an operation, `INDEX` for a read, in decimal. The
/// epoch header beside it has the epoch that was open there.
pub const LOG_POSITION_HEADER: &str = "rollout-log-position";

/// The position of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerPosition {
    /// The epoch that was open there. That of the answer's own header may be later.
    pub coord_epoch: u64,
    /// Index of the log entry.
    pub index: u64,
    /// For an operation: its position within the entry's command, from 0. `None` for a read, which is as of the whole
    /// entry.
    pub position: Option<u32>,
}

impl AnswerPosition {
    /// Writes the headers.
    pub fn write(&self, headers: &mut HeaderMap) {
        let text = match self.position {
            Some(position) => format!("{}.{position}", self.index),
            None => self.index.to_string(),
        };
        // A number with a dot is always a valid header value.
        let Ok(value) = HeaderValue::try_from(text) else { return };
        headers.insert(LOG_POSITION_HEADER, value);
        headers.insert(EPOCH_HEADER, self.coord_epoch.into());
    }

    /// The position in the headers of an answer or a refusal; `None` if they have none, or a malformed one.
    pub fn of(metadata: &MetadataMap) -> Option<Self> {
        let text = |name| metadata.get(name).and_then(|value| value.to_str().ok());
        let coord_epoch = text(EPOCH_HEADER)?.parse().ok()?;
        let (index, position) = match text(LOG_POSITION_HEADER)?.split_once('.') {
            Some((index, position)) => (index, Some(position.parse().ok()?)),
            None => (text(LOG_POSITION_HEADER)?, None),
        };
        Some(Self { coord_epoch, index: index.parse().ok()?, position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(headers: HeaderMap) -> Option<AnswerPosition> {
        AnswerPosition::of(&MetadataMap::from_headers(headers))
    }

    #[test]
    fn a_position_reads_back_as_it_was_written() {
        for position in [Some(0), Some(7), None] {
            let at = AnswerPosition { coord_epoch: 3, index: 4711, position };
            let mut headers = HeaderMap::new();
            at.write(&mut headers);
            assert_eq!(of(headers), Some(at));
        }
    }

    #[test]
    fn a_malformed_header_is_no_position() {
        assert_eq!(of(HeaderMap::new()), None);
        for (position, epoch) in [("5.", "1"), (".5", "1"), ("5.x", "1"), ("", "1"), ("5.0", "")] {
            let mut headers = HeaderMap::new();
            headers.insert(LOG_POSITION_HEADER, position.parse().unwrap());
            headers.insert(EPOCH_HEADER, epoch.parse().unwrap());
            assert_eq!(of(headers), None, "{position:?} of {epoch:?}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(LOG_POSITION_HEADER, "5.0".parse().unwrap());
        assert_eq!(of(headers), None, "without its epoch");
    }
}
