//! Owns: the file through which a test sets a process's wall clock, and in which the process reports the time it last
//! read.
//!
//! Invariant: a new setting takes effect at the next clock read of every process that maps the file.
//! Absent: monotonic clocks, which no process can set.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::shared::{self, Shared};

/// The environment variable that names the file of the clock to the preloaded library.
pub const CLOCK_ENV: &str = "ROLLOUT_PRELOAD_CLOCK";

/// A wall clock that a test may set.
#[repr(C)]
pub struct Clock {
    ahead_ns: AtomicI64,
    read_ns: AtomicI64,
}

// SAFETY: atomic integers alone.
unsafe impl Shared for Clock {}

impl Clock {
    /// Creates the file of a clock that agrees with the real one.
    pub fn create(path: &Path) -> io::Result<()> {
        std::fs::write(path, [0; size_of::<Self>()])
    }

    /// Maps the clock of this file for the life of the process.
    pub fn open(path: &Path) -> io::Result<&'static Self> {
        Self::map(&CString::new(path.as_os_str().as_bytes())?)
    }

    /// As `open`, for a C string.
    pub fn map(path: &CStr) -> io::Result<&'static Self> {
        shared::map(path)
    }

    /// How far it is ahead of the real clock, in nanoseconds; negative: behind.
    pub fn ahead_ns(&self) -> i64 {
        i64::from_le(self.ahead_ns.load(Ordering::Relaxed))
    }

    /// Sets it this many seconds ahead of the real clock; negative: behind.
    pub fn set_ahead_s(&self, seconds: i64) {
        self.ahead_ns.store((seconds * 1_000_000_000).to_le(), Ordering::Relaxed);
    }

    /// Records the time that the process read, in nanoseconds since 1970.
    pub fn record_read(&self, now_ns: i64) {
        self.read_ns.store(now_ns.to_le(), Ordering::Relaxed);
    }

    /// The time that a process read last, in nanoseconds since 1970; 0 before the first read.
    pub fn read_ns(&self) -> i64 {
        i64::from_le(self.read_ns.load(Ordering::Relaxed))
    }
}
