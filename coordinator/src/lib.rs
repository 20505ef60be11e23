//! The coordinator daemon: one member of the cluster. While it leads, it dispatches rows to workers.
//!
//! It checks each request, converts it to ledger operations, merges these with others that arrive ([`proposer`]), and
//! answers with the reply of `apply`. Nothing here decides which worker gets which rows: the ledger does.
//!
//! *Invariant:* only a leader that has opened its epoch proposes ([`leading`]), and it answers heartbeats, pulls and
//! reads only while a quorum confirms its lease.
//!
//! Absent on purpose: payloads. Inputs and results pass between clients, workers and the object store, never through a
//! member.

mod around;
mod audit;
mod body_budget;
mod caller;
mod certificate_times;
mod cluster_version;
mod command_size;
pub mod config;
mod convert;
mod diagnosis;
mod dispatch;
mod draining;
mod enrolment;
mod epoch_gate;
mod event_out;
mod fair_room;
mod fence;
mod forgetting;
mod forgetting_checkpoints;
mod forgetting_orphans;
mod full_disk;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod gauges;
#[cfg(test)]
mod golden;
mod grpc;
mod heartbeat_pace;
mod http;
mod leader_clock;
mod leading;
mod ledger_read;
mod liveness;
mod message_weight;
pub mod offline;
mod open_files;
mod parked;
mod participants;
mod placed;
mod process;
mod proposer;
mod reject;
mod revocation;
mod revoked_certificates;
mod run_stores;
mod server;
mod session_holder;
mod stealing;
mod store_probe;
mod stuck_runs;
mod telemetry;
mod tenancy;
mod traced;
mod tries;
mod webhooks;
mod worker_stream;

pub use config::Config;
pub use process::{exit_status, leave};
pub use server::run;
pub use telemetry::init as init_telemetry;
