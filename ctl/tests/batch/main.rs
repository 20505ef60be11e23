//! The command `rollout` against a fake cluster: one process, no replication, real objects.

mod bad_input;
mod cluster;
mod command;
mod compressed_inputs;
mod failed_submissions;
mod foreign_tables;
mod interruptions;
mod open_input;
mod openai;
mod output;
mod output_owner;
mod proof;
mod revisions;
mod rows;
mod s3;
mod shards;
mod tables;
mod without_batch_file;
