//! Owns: training jobs: participants, barriers, shared stores, datasets, shards and checkpoints.

pub(crate) mod barrier;
pub(crate) mod barrier_ops;
pub(crate) mod checkpoint;
pub(crate) mod checkpoint_ops;
pub(crate) mod dataset;
pub(crate) mod job;
pub(crate) mod job_ops;
pub(crate) mod job_view;
pub(crate) mod pass;
pub(crate) mod rendezvous;
pub(crate) mod round_access;
pub(crate) mod shard;
pub(crate) mod shard_order;
pub(crate) mod shard_ring;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod store_ops;
pub(crate) mod trainer;
pub(crate) mod training_image;
pub(crate) mod training_view;
