//! `rolloutctl job ...`: training jobs as a whole. Their parts have their own nouns: rendezvous, barrier, shard,
//! checkpoint.

pub(crate) mod delete;
