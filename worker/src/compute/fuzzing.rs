//! Answers of metadata services, for fuzz targets alone.
//!
//! Invariant: an answer is read as in a worker that runs.
//! Absent: the service, and what an answer leads to.

use super::metadata::Answer;
use super::{as_label, aws, azure};

/// Reads an answer that a service sent at `date`, as that of each cloud.
pub fn answer(date: &[u8], body: &[u8]) {
    let answer = Answer::of(date, body);
    drop(aws::interruption(&answer));
    azure::read(&answer);
    drop(as_label(&answer.body));
}
