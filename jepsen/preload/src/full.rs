//! Owns: the disk that is full.
//!
//! Where the environment variable [`VARIABLE`] names a directory, writes to files below it fail with ENOSPC while
//! there is a file of the directory's name with `.full` behind it.
//!
//! Invariant: without the variable nothing fails. A write fails as a whole.
//! Absent: quotas, and the creation of files, which a full disk often still allows.

use std::ffi::{CStr, CString, c_int};
use std::sync::OnceLock;

use crate::track::KeepErrno;

const VARIABLE: &CStr = c"ROLLOUT_PRELOAD_FULL";
const PATH_MAX: usize = 4096;

struct Full {
    /// With a slash behind it.
    below: Vec<u8>,
    flag: CString,
}

static FULL: OnceLock<Full> = OnceLock::new();

/// Reads the environment.
pub(crate) fn start() {
    // SAFETY: valid C string; no other thread runs yet that could change the environment.
    let value = unsafe { libc::getenv(VARIABLE.as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: `getenv` returned a C string; it is copied at once.
    let dir = unsafe { CStr::from_ptr(value) }.to_bytes().to_vec();
    let Ok(flag) = CString::new([&dir[..], b".full"].concat()) else { return };
    let _ = FULL.set(Full { below: [&dir[..], b"/"].concat(), flag });
}

/// Whether a write to this descriptor finds no space; `errno` says so then.
pub(crate) fn refuses(fd: c_int) -> bool {
    let Some(full) = FULL.get() else { return false };
    let refused = {
        let _keep = KeepErrno::new();
        full.applies(fd)
    };
    if refused {
        // SAFETY: the location is valid for this thread.
        unsafe { *libc::__errno_location() = libc::ENOSPC };
    }
    refused
}

impl Full {
    fn applies(&self, fd: c_int) -> bool {
        // SAFETY: a valid C string.
        if unsafe { libc::access(self.flag.as_ptr(), libc::F_OK) } != 0 {
            return false;
        }
        let Ok(link) = CString::new(format!("/proc/self/fd/{fd}")) else { return false };
        let mut path = [0u8; PATH_MAX];
        // SAFETY: the buffer is as long as is said.
        let len = unsafe { libc::readlink(link.as_ptr(), path.as_mut_ptr().cast(), PATH_MAX) };
        let Ok(len) = usize::try_from(len) else { return false };
        path[..len].starts_with(&self.below)
    }
}
