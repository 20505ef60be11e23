//! `rolloutctl dataset ...`: what training jobs read.

pub(crate) mod describe;
pub(crate) mod list;
mod shown;
