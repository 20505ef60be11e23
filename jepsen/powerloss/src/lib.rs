//! Simulates power loss of one process.
//!
//! A process under test runs with the library `rollout-preload`, which keeps a [`Journal`] in shared memory: how much
//! of each file is fsynced, and which names are not yet durable in their directories. The journal outlives SIGKILL.
//! [`lose_power`] then removes from the directory what a power loss would have removed.
//!
//! The simulation is exact for files that only grow. Bytes overwritten in place below the fsynced length stay as they
//! are, which is one of the legal outcomes; [`Report::overwritten`] counts them. Writes through mmap are not tracked.
//! `sync_file_range` does not count as a sync, as its manual says.
//!
//! The library does two more things, each controlled by a file of its own: it shifts the process's wall [`Clock`],
//! and it injects faults into its [`Disk`].

mod clock;
mod disk;
mod journal;
mod shared;
mod undo;

pub use clock::{CLOCK_ENV, Clock};
pub use disk::{DISK_ENV, Disk, DiskFault};
pub use journal::{DirOp, FileSlot, Header, Journal, Kind, OpState, Path as JournalPath};
pub use undo::{Loss, Report, lose_power};

/// The environment variable that names the journal's file to the preloaded library.
pub const JOURNAL_ENV: &str = "ROLLOUT_PRELOAD_JOURNAL";
