//! Answers of metadata services, for fuzz targets only.
//!
//! Invariant: an answer is decoded as in a running worker.
//! Absent: the service, and the effects of an answer.

use super::metadata::MetadataResponse;
use super::{as_label, aws, azure};

/// Reads an answer that a service sent at `date`, as that of each cloud.
pub fn answer(date: &[u8], body: &[u8]) {
    let answer = MetadataResponse::of(date, body);
    drop(aws::interruption(&answer));
    azure::read(&answer);
    drop(as_label(&answer.body));
}
