//! Owns: the hooks that make a disk slow, full, or faulty.
//!
//! If the environment names a disk file (see `rollout_powerloss::Disk`), calls that write or sync below its directory
//! hit the fault that the file describes, which may change at any time. The fault may also set how much free space
//! the disk reports.
//!
//! Invariant: without the variable nothing fails; with it, an unusable file aborts the process. A write fails as a
//! whole; a sync that fails has synced nothing.
//! Absent: quotas, reads that fail, and file creation, which a full disk often still allows.

use std::ffi::{CStr, CString, c_char, c_int};
use std::sync::OnceLock;

use rollout_powerloss::{DISK_ENV, Disk, DiskFault};

use crate::real::real;
use crate::track::KeepErrno;

const PATH_MAX: usize = 4096;

static DISK: OnceLock<&'static Disk> = OnceLock::new();

/// Maps the file that the environment names.
pub(crate) fn start() {
    let Ok(name) = CString::new(DISK_ENV) else { return };
    // SAFETY: valid C strings; no other thread runs yet that could change the environment.
    let path = unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() {
            return;
        }
        CStr::from_ptr(value)
    };
    match Disk::map(path) {
        Ok(disk) => drop(DISK.set(disk)),
        // SAFETY: it has no preconditions.
        Err(_) => unsafe { libc::abort() },
    }
}

/// Whether a write to this descriptor fails; if so, sets `errno`.
pub(crate) fn refuses_write(fd: c_int) -> bool {
    let Some(disk) = DISK.get() else { return false };
    match disk.fault() {
        DiskFault::WriteFails => fails(disk, fd, libc::EIO),
        DiskFault::Full => fails(disk, fd, libc::ENOSPC),
        DiskFault::None | DiskFault::SlowSync(_) | DiskFault::SyncFails | DiskFault::Left(_) => {
            false
        }
    }
}

/// Whether a sync of this descriptor fails; if so, sets `errno`. A slow sync waits here.
pub(crate) fn refuses_sync(fd: c_int) -> bool {
    let Some(disk) = DISK.get() else { return false };
    match disk.fault() {
        DiskFault::SyncFails => fails(disk, fd, libc::EIO),
        DiskFault::SlowSync(ms) if on(disk, fd) => {
            let _keep = KeepErrno::new();
            disk.count();
            std::thread::sleep(std::time::Duration::from_millis(ms.into()));
            false
        }
        _ => false,
    }
}

/// The free bytes that the file system reports, if the fault overrides the real value.
fn left(path: *const c_char) -> Option<u64> {
    let disk = DISK.get()?;
    let left = match disk.fault() {
        DiskFault::Full => 0,
        DiskFault::Left(kib) => u64::from(kib) << 10,
        _ => return None,
    };
    // SAFETY: the hook's caller gave a C string.
    let found = !path.is_null() && disk.has(unsafe { CStr::from_ptr(path) }.to_bytes());
    found.then(|| {
        disk.count();
        left
    })
}

macro_rules! hook_statvfs {
    ($name:ident, $real:literal, $kind:ty) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, into: *mut $kind) -> c_int {
            let result = real!($real, fn(*const c_char, *mut $kind) -> c_int, path, into);
            if let Some(bytes) = left(path).filter(|_| result == 0) {
                // SAFETY: the real call has just written to it.
                let found = unsafe { &mut *into };
                found.f_bavail = bytes / found.f_frsize.max(1);
                found.f_bfree = found.f_bavail;
            }
            result
        }
    };
}

hook_statvfs!(statvfs, "statvfs", libc::statvfs);
hook_statvfs!(statvfs64, "statvfs64", libc::statvfs64);

fn fails(disk: &Disk, fd: c_int, errno: c_int) -> bool {
    let found = on(disk, fd);
    if found {
        disk.count();
        // SAFETY: the location is valid for this thread.
        unsafe { *libc::__errno_location() = errno };
    }
    found
}

fn on(disk: &Disk, fd: c_int) -> bool {
    let _keep = KeepErrno::new();
    let Ok(link) = CString::new(format!("/proc/self/fd/{fd}")) else { return false };
    let mut path = [0u8; PATH_MAX];
    // SAFETY: the buffer has the stated length.
    let len = unsafe { libc::readlink(link.as_ptr(), path.as_mut_ptr().cast(), PATH_MAX) };
    usize::try_from(len).is_ok_and(|len| disk.holds(&path[..len]))
}
