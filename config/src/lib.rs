//! The settings of both daemons, declared once.
//!
//! A setting is a field of a type in [`coordinator`] or [`worker`]. Its type, doc comment, default and attributes are
//! all that is written about it. The keys that `rolloutctl config` knows, the JSON schemas, the bounds that a daemon
//! checks, and the tables of docs/operating/configuration.md derive from that.
//!
//! *Invariant:* a daemon accepts a key if and only if [`keys`] has it; for one release also in a section under its
//! [`former`] name.
//! Absent: flags and variables themselves (each daemon parses its own; the fields only name them), and
//! checks that need the daemon's host.

pub mod bounds;
pub mod coordinator;
mod daemon;
pub mod former;
mod key;
pub mod nearest;
pub mod page;
mod schema;
mod size;
mod tracing;
pub mod worker;

pub use bounds::SettingError;
pub use daemon::{Daemon, keys, schema};
pub use key::{Key, Kind};
pub use tracing::TracingSettings;
