//! `rolloutctl errors list|explain`: the pages of docs/errors, built in.
//!
//! Invariant: it works without a cluster and without the documentation installed. Absent: a second copy
//! of the texts.

pub(super) mod explain;
pub(super) mod list;

include!(concat!(env!("OUT_DIR"), "/error_pages.rs"));
