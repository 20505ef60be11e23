//! Owns: the file through which a test injects faults into one process's disk, below one directory.
//!
//! Invariant: every call that hits the fault is counted, so that a test can tell whether the fault had any effect.
//! Absent: the behavior of a faulty call; the preloaded library implements it.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path as StdPath;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::journal::Path;
use crate::shared::{self, Shared};

/// The environment variable that names the file of the disk to the preloaded library.
pub const DISK_ENV: &str = "ROLLOUT_PRELOAD_DISK";

/// A fault of a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskFault {
    /// No fault.
    None,
    /// Each fsync takes this many milliseconds longer.
    SlowSync(u32),
    /// Each fsync fails with EIO, and makes nothing durable.
    SyncFails,
    /// Each write fails with EIO.
    WriteFails,
    /// Each write fails with ENOSPC. Files can still be created, as on many a full disk.
    Full,
    /// Writes succeed, and the disk reports this many KiB as free.
    Left(u32),
}

/// The disk below one directory.
#[repr(C)]
pub struct Disk {
    fault: AtomicU32,
    delay_ms: AtomicU32,
    met: AtomicU64,
    below: Path,
}

// SAFETY: integers and bytes alone; the path is written before the file is mapped.
unsafe impl Shared for Disk {}

impl Disk {
    /// Creates the file of a disk without a fault. `below` must be absolute.
    pub fn create(path: &StdPath, below: &StdPath) -> io::Result<()> {
        let below = Path::new(below.as_os_str().as_bytes())
            .filter(|path| path.bytes().starts_with(b"/"))
            .ok_or_else(|| io::Error::other("the directory must be absolute and short"))?;
        let mut bytes = vec![0; size_of::<Self>()];
        below.write_to(&mut bytes[std::mem::offset_of!(Disk, below)..]);
        std::fs::write(path, bytes)
    }

    /// Maps the disk of this file for the life of the process.
    pub fn open(path: &StdPath) -> io::Result<&'static Self> {
        Self::map(&CString::new(path.as_os_str().as_bytes())?)
    }

    /// As `open`, for a C string.
    pub fn map(path: &CStr) -> io::Result<&'static Self> {
        shared::map(path)
    }

    /// Sets the fault from now on, and resets the count of calls that hit it.
    pub fn set(&self, fault: DiskFault) {
        let (number, delay_ms) = match fault {
            DiskFault::None => (0, 0),
            DiskFault::SlowSync(ms) => (1, ms),
            DiskFault::SyncFails => (2, 0),
            DiskFault::WriteFails => (3, 0),
            DiskFault::Full => (4, 0),
            DiskFault::Left(kib) => (5, kib),
        };
        self.delay_ms.store(delay_ms, Ordering::Release);
        self.met.store(0, Ordering::Release);
        self.fault.store(number, Ordering::Release);
    }

    pub fn fault(&self) -> DiskFault {
        match self.fault.load(Ordering::Acquire) {
            1 => DiskFault::SlowSync(self.delay_ms.load(Ordering::Acquire)),
            2 => DiskFault::SyncFails,
            3 => DiskFault::WriteFails,
            4 => DiskFault::Full,
            5 => DiskFault::Left(self.delay_ms.load(Ordering::Acquire)),
            _ => DiskFault::None,
        }
    }

    /// Whether a file is on this disk.
    pub fn holds(&self, path: &[u8]) -> bool {
        path.strip_prefix(self.below.bytes()).is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// Whether a name is on this disk: its directory, or something below it.
    pub fn has(&self, path: &[u8]) -> bool {
        path == self.below.bytes() || self.holds(path)
    }

    /// Counts a call that hit the fault.
    pub fn count(&self) {
        self.met.fetch_add(1, Ordering::AcqRel);
    }

    /// Calls that hit the fault since it was set.
    pub fn met(&self) -> u64 {
        self.met.load(Ordering::Acquire)
    }
}
