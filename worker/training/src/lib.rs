//! What a process of a training job needs from the cluster: a place in the job, shards to read, checkpoints to write
//! and to start from; and a mock model that shows whether all of it works.
//!
//! *Invariant:* a report to the cluster is true of the trainer's state at the step that it names: a shard is finished
//! once its samples are in, and a report names only durable objects.
//!
//! Absent: reading samples, and what a model is. Python has both; it calls this crate through its
//! extension.

mod error;
pub mod mock;
mod outage;
mod reader;
mod restore;
mod trainer;
mod writer;

pub use error::TrainError;
pub use reader::ShardReader;
pub use restore::{Restored, restore_rank, verify};
pub use trainer::{Recovered, Recovery, Trainer, TrainerOptions, draw_instance};
pub use writer::{CheckpointWriter, Files, Writing, Written};
