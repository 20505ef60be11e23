//! Owns: what a member does while it leads: proposals, dispatch, liveness, stealing.
//!
//! Absent: gRPC and HTTP.

pub(crate) mod batch_owners;
pub(crate) mod caller;
pub(crate) mod cluster_version;
pub(crate) mod command_size;
pub(crate) mod convert;
pub(crate) mod dispatch;
pub(crate) mod draining;
pub(crate) mod dry_run;
mod exchange_answer;
pub(crate) mod fair_room;
pub(crate) mod fence;
pub(crate) mod full_disk;
pub(crate) mod header;
pub(crate) mod heartbeat_pace;
pub(crate) mod job_liveness;
pub(crate) mod leader_clock;
pub(crate) mod ledger_read;
pub(crate) mod parked_pulls;
pub(crate) mod pre_v4_namespaces;
pub(crate) mod proposer;
pub(crate) mod reject;
pub(crate) mod retries;
pub(crate) mod revocation;
pub(crate) mod state;
pub(crate) mod stealing;
pub(crate) mod stuck_runs;
pub(crate) mod webhooks;
pub(crate) mod worker_liveness;
pub(crate) mod worker_stream;
