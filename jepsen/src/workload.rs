//! What clients do while things break: each workload is a file of its own.

pub mod item;
mod submitter;
mod worker;
