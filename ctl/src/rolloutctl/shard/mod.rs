//! `rolloutctl shard ...`: which trainer of a job reads what.

pub(crate) mod describe;
pub(crate) mod list;
mod shown;
