//! Owns: the file by which the disk below a directory gets into trouble, for one process.
//!
//! Invariant: each call that met the trouble is counted, so that a test can tell whether it had any effect.
//! Absent: what a call in trouble does; that is the library's.

use std::ffi::{CStr, CString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path as StdPath;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::journal::Path;
use crate::shared::{self, Shared};

/// The environment variable that names the file of the disk to the preloaded library.
pub const DISK_ENV: &str = "ROLLOUT_PRELOAD_DISK";

/// What is wrong with a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Each fsync takes so many milliseconds longer.
    SlowSync(u32),
    /// Each fsync fails with EIO, and makes nothing durable.
    SyncFails,
    /// Each write fails with EIO.
    WriteFails,
    /// Each write fails with ENOSPC. Files can still be created, as on many a full disk.
    Full,
    /// Writes succeed, and so many KiB are free to whoever asks how many there are.
    Left(u32),
}

/// The disk below one directory.
#[repr(C)]
pub struct Disk {
    trouble: AtomicU32,
    delay_ms: AtomicU32,
    met: AtomicU64,
    below: Path,
}

// SAFETY: integers and bytes alone; the path is written before the file is mapped.
unsafe impl Shared for Disk {}

impl Disk {
    /// Creates the file of a disk that is well. `below` must be absolute.
    pub fn create(path: &StdPath, below: &StdPath) -> io::Result<()> {
        let below = Path::new(below.as_os_str().as_bytes())
            .filter(|path| path.bytes().starts_with(b"/"))
            .ok_or_else(|| io::Error::other("the directory must be absolute and short"))?;
        let mut bytes = vec![0; size_of::<Self>()];
        below.write_to(&mut bytes[std::mem::offset_of!(Disk, below)..]);
        std::fs::write(path, bytes)
    }

    /// The disk of this file, for the life of the process.
    pub fn open(path: &StdPath) -> io::Result<&'static Self> {
        Self::map(&CString::new(path.as_os_str().as_bytes())?)
    }

    /// As `open`, without a look at names.
    pub fn map(path: &CStr) -> io::Result<&'static Self> {
        shared::map(path)
    }

    /// What is wrong from now on. Counts calls in trouble from 0.
    pub fn set(&self, trouble: Trouble) {
        let (number, delay_ms) = match trouble {
            Trouble::None => (0, 0),
            Trouble::SlowSync(ms) => (1, ms),
            Trouble::SyncFails => (2, 0),
            Trouble::WriteFails => (3, 0),
            Trouble::Full => (4, 0),
            Trouble::Left(kib) => (5, kib),
        };
        self.delay_ms.store(delay_ms, Ordering::Release);
        self.met.store(0, Ordering::Release);
        self.trouble.store(number, Ordering::Release);
    }

    /// What is wrong.
    pub fn trouble(&self) -> Trouble {
        match self.trouble.load(Ordering::Acquire) {
            1 => Trouble::SlowSync(self.delay_ms.load(Ordering::Acquire)),
            2 => Trouble::SyncFails,
            3 => Trouble::WriteFails,
            4 => Trouble::Full,
            5 => Trouble::Left(self.delay_ms.load(Ordering::Acquire)),
            _ => Trouble::None,
        }
    }

    /// Whether a file is on this disk.
    pub fn holds(&self, path: &[u8]) -> bool {
        path.strip_prefix(self.below.bytes()).is_some_and(|rest| rest.starts_with(b"/"))
    }

    /// Whether a name is of this disk: its directory, or something below it.
    pub fn has(&self, path: &[u8]) -> bool {
        path == self.below.bytes() || self.holds(path)
    }

    /// A call met the trouble.
    pub fn count(&self) {
        self.met.fetch_add(1, Ordering::AcqRel);
    }

    /// Calls that met the trouble since it was set.
    pub fn met(&self) -> u64 {
        self.met.load(Ordering::Acquire)
    }
}
