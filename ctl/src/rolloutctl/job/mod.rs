//! `rolloutctl job ...`: training jobs as a whole. What is in them has nouns of its own: rendezvous, barrier, shard,
//! checkpoint.

pub(crate) mod delete;
