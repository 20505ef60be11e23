//! Converts the records of this suite into events; see [`crate::history`].

use super::{Event, ReadError, ReportedPosition};
use crate::history::Reader;
use std::io::BufRead;

pub(super) fn events(input: impl BufRead) -> impl Iterator<Item = Result<Event, ReadError>> {
    Reader::new(input).map(|read| {
        let (line, record) = read?;
        let process = i64::try_from(record.process)
            .map_err(|_| ReadError::at(line, format!("process {} is too large", record.process)))?;
        Ok(Event {
            line,
            at: record.time_ns,
            process,
            kind: record.kind,
            f: record.f.into(),
            key: record.key.map(Into::into),
            value: record.value.into(),
            request: record.request_id.map(Into::into),
            position: record.at.map(|at| ReportedPosition {
                at,
                epoch: record.epoch,
                repeated: record.repeated,
            }),
        })
    })
}
