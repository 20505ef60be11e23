//! Everything that a multi-process test needs: a fleet of real processes, each with its own directory and
//! certificate, sharing only the object store.
//!
//! *Invariant:* a fleet ends with its test, whatever happens: processes die with their parent.
//! Absent: fixed sleeps. A test waits for a condition, with a generous limit.

mod batch;
pub mod bench;
mod clocks;
mod cloud;
mod collector;
pub mod commit;
mod disk_usage;
mod events;
mod fleet;
mod freeze;
mod http;
mod links;
mod model_server;
mod participant;
mod played_worker;
mod preload;
mod process;
mod process_usage;
mod python;
mod requests;
mod root;
mod s3;
mod samples;
mod terminal;
pub mod torch;
mod wait;
mod writers;

pub use batch::{Batch, Counts, Executions};
pub use cloud::{FakeCloud, Provider};
pub use collector::{CollectedSpan, Collector};
pub use disk_usage::{files, weight};
pub use events::{check_order, find_event, json_lines, logged_events, place};
pub use fleet::{ApiKey, Baseline, Build, Fleet, FleetOptions, WorkerOptions, free_addr, program};
pub use freeze::Frozen;
pub use http::{counted, metric_value};
pub use links::{Connection, Cut, Link};
pub use model_server::ModelServer;
pub use participant::Participant;
pub use played_worker::{PlayedWorker, dial};
pub use process::{Process, engines, is_alive, output};
pub use process_usage::{Usage, ended_children_cpu_s, resident_bytes};
pub use python::python;
pub use requests::{create_run, latest_checkpoint};
pub use rollout_jepsen::delay::OneWay;
pub use root::runs_as_root;
pub use s3::{Dialect, S3, StoreFaults, UploadCounts};
pub use samples::{not_once, sample_id, sample_ids};
pub use terminal::Terminal;
pub use wait::{eventually, eventually_or_show};
pub use writers::{Writers, Written, longest_gap};
