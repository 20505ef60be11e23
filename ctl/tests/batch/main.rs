//! The command `rollout` against a cluster that a test plays: one process, no replication, real objects.

mod bad_input;
mod cluster;
mod coming_back;
mod command;
mod open_input;
mod openai;
mod output;
mod packed;
mod proof;
mod revisions;
mod rows;
mod s3;
mod shards;
mod tables;
