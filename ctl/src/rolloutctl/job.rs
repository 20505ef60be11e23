//! `rolloutctl job ...`: training jobs as a whole. The verbs of their parts are in `rendezvous`, `barrier`, `shard` and
//! `checkpoint`.

pub(crate) mod delete;
pub(crate) mod describe;
pub(crate) mod list;
mod summary;
