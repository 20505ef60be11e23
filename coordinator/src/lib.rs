//! The coordinator daemon: one member of the cluster. While it leads, it dispatches rows to workers.
//!
//! It checks each request, converts it to ledger operations, merges these with others that arrive
//! ([`leader::proposer`]), and answers with the reply of `apply`. Nothing here decides which worker gets which rows: the
//! ledger does.
//!
//! *Invariant:* only a leader that has opened its epoch proposes ([`leader::state`]), and it answers heartbeats, pulls
//! and reads only while a quorum confirms its lease.
//!
//! Absent: payloads. Inputs and results pass between clients, workers and the object store, never through a
//! member.

pub mod config;
mod enrollment;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gc;
#[cfg(test)]
mod golden;
mod grpc;
mod http;
mod leader;
mod observe;
mod offline;
mod openai;
mod process;
mod program;
mod server;

pub use config::Config;
pub use program::main;
pub use server::run;
