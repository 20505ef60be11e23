//! Owns: the free space of a disk, and how a process ends when there is none.
//!
//! Invariant: [`end_without_space`] runs no destructors, because one may wait for the very disk that is full; nothing
//! is acknowledged after it. The exit status says that the same directory works again once there is room.
//! Absent: how to react while space runs short; the caller decides.

use std::ffi::CString;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Exit status of a process whose own disk is full (EX_IOERR of sysexits.h).
pub const NO_SPACE_EXIT: i32 = 74;

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that an unprivileged user may still write.
    pub free_bytes: u64,
    /// The total size of the file system in bytes, used and free.
    pub all_bytes: u64,
}

/// The space of the file system that has `dir`, or will have it.
pub fn space(dir: &Path) -> io::Result<Space> {
    let there = dir.ancestors().find(|dir| dir.exists()).unwrap_or(Path::new("."));
    let there = if there.as_os_str().is_empty() { Path::new(".") } else { there };
    let path = CString::new(there.as_os_str().as_bytes())?;
    // SAFETY: statvfs is plain data for which zeroes are a valid value.
    let mut found: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL, and `found` outlives the call.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    Ok(Space { free_bytes: bytes(found.f_bavail), all_bytes: bytes(found.f_blocks) })
}

/// Whether the text of an error says that the disk, or the writer's quota on it, is full.
pub fn means_no_space(message: &str) -> bool {
    // The system's texts for ENOSPC and EDQUOT.
    ["No space left on device", "Disk quota exceeded"].iter().any(|words| message.contains(words))
}

/// Logs the reason and ends the process at once, with [`NO_SPACE_EXIT`].
pub fn end_without_space(reason: &dyn std::fmt::Display) -> ! {
    tracing::error!(%reason, "the disk is full: this process stops until there is room");
    // The subscriber may be asynchronous; the reason must not be lost with the process.
    let _ = writeln!(io::stderr(), "rollout: the disk is full, this process stops: {reason}");
    // SAFETY: _exit has no preconditions, and no code of this process runs after it.
    unsafe { libc::_exit(NO_SPACE_EXIT) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StorageError;

    #[test]
    fn a_missing_directory_has_the_space_of_its_parent() {
        let dir = tempfile::tempdir().expect("a directory");
        let there = space(dir.path()).expect("there");
        let later = space(&dir.path().join("a/b")).expect("not yet there");
        assert!(there.all_bytes > 0 && there.free_bytes <= there.all_bytes, "{there:?}");
        assert_eq!(later.all_bytes, there.all_bytes);
    }

    #[test]
    fn a_full_disk_is_distinguished_from_other_errors() {
        let of = |kind: i32| {
            StorageError::io(Path::new("x"), "write")(io::Error::from_raw_os_error(kind))
        };
        assert!(of(libc::ENOSPC).is_no_space() && of(libc::EDQUOT).is_no_space());
        assert!(!of(libc::EIO).is_no_space());
        let rocks =
            |message: &str| StorageError::Rocks { path: "x".into(), message: message.into() };
        // As RocksDB words it.
        let full = "IO error: No space left on device: While appending to file: 000012.log: ...";
        assert!(rocks(full).is_no_space());
        let over = "IO error: Disk quota exceeded: While appending to file: 000012.log: ...";
        assert!(rocks(over).is_no_space());
        assert!(!rocks("IO error: Input/output error: While fsync: 000012.log").is_no_space());
    }
}
