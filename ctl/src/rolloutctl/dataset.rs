//! `rolloutctl dataset ...`: the data that training jobs read.

pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod list;
mod summary;
