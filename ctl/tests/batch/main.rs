//! The command `rollout` against a fake cluster: one process, no replication, real objects.

mod bad_input;
mod cluster;
mod coming_back;
mod command;
mod failed_submissions;
mod foreign_tables;
mod open_input;
mod openai;
mod output;
mod output_owner;
mod packed;
mod proof;
mod revisions;
mod rows;
mod s3;
mod shards;
mod tables;
