//! `rolloutctl bench`: the cluster's performance, measured from outside.
//!
//! Invariant: real processes, mutual TLS and shipped defaults. Figures go to stdout, one report after another;
//! messages go to stderr. Each benchmark with rows ends by proving that no row was lost or done twice and that all
//! members hold the same state. Absent: per-row work in the load generator, which shares the machine with
//! the cluster: it handles ranges.

pub(crate) mod apply;
pub mod coverage;
mod declare;
pub(crate) mod disk;
mod driver;
pub mod failover;
mod feed;
mod final_check;
pub mod fleet;
pub mod handover;
pub mod ledger;
mod load;
mod measurements;
mod objects;
mod open_files;
mod pauses;
mod ranks;
pub mod rendezvous;
mod slot;
pub mod store;
pub mod submit;
mod target;
mod worker;
