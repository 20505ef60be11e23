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

pub(crate) use grpc::around;
mod observe;
pub(crate) use observe::audit;
pub(crate) use grpc::body_budget;
pub(crate) use grpc::caller;
pub(crate) use observe::certificate_times;
mod leader;
pub(crate) use leader::cluster_version;
pub(crate) use leader::command_size;
pub mod config;
pub(crate) use grpc::convert;
pub(crate) use observe::diagnosis;
pub(crate) use leader::dispatch;
pub(crate) use leader::draining;
mod enrolment;
pub(crate) use grpc::epoch_gate;
pub(crate) use grpc::event_out;
pub(crate) use grpc::fair_room;
pub(crate) use leader::fence;
mod gc;
pub(crate) use gc::runs as forgetting;
pub(crate) use gc::checkpoints as forgetting_checkpoints;
pub(crate) use gc::orphans as forgetting_orphans;
pub(crate) use leader::full_disk;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
pub(crate) use observe::gauges;
#[cfg(test)]
mod golden;
mod grpc;
pub(crate) use leader::heartbeat_pace;
pub(crate) use observe::http;
pub(crate) use leader::leader_clock;
pub(crate) use leader::state as leading;
pub(crate) use leader::ledger_read;
pub(crate) use leader::liveness;
pub(crate) use grpc::message_weight;
pub mod offline;
pub(crate) use observe::open_files;
pub(crate) use leader::parked;
pub(crate) use leader::participants;
pub(crate) use grpc::placed;
mod process;
pub(crate) use leader::proposer;
pub(crate) use grpc::reject;
pub(crate) use leader::revocation;
pub(crate) use grpc::revoked_certificates;
pub(crate) use gc::run_stores;
mod server;
pub(crate) use grpc::session_holder;
pub(crate) use leader::stealing;
pub(crate) use grpc::store_probe;
pub(crate) use leader::stuck_runs;
pub(crate) use observe::telemetry;
pub(crate) use leader::tenancy;
pub(crate) use grpc::traced;
pub(crate) use gc::tries;
pub(crate) use leader::webhooks;
pub(crate) use leader::worker_stream;

pub use config::Config;
pub use process::{exit_status, leave};
pub use server::run;
pub use telemetry::init as init_telemetry;
