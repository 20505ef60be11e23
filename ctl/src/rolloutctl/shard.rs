//! `rolloutctl job shard ...`: which shards each trainer of a job reads.

pub(crate) mod describe;
pub(crate) mod list;
pub(super) mod summary;
