//! Owns: mapping a file of exactly one type's size into memory that processes share.
//!
//! Invariant: it uses raw system calls only, so it works inside a library that replaces `open`. A mapping is never
//! removed.
//! Absent: creating files.

use std::ffi::CStr;
use std::io;

/// A type for which any bytes are a valid value, and which is changed only through shared references.
///
/// # Safety
/// Both must hold for all its fields.
pub(crate) unsafe trait Shared: 'static {}

/// Maps a file that has exactly the size of `T`.
pub(crate) fn map<T: Shared>(path: &CStr) -> io::Result<&'static T> {
    // SAFETY: plain system calls on a valid C string; the descriptor is closed below.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_openat,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::O_RDWR | libc::O_CLOEXEC,
            0,
        )
    } as libc::c_int;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    let len = size_of::<T>();
    // SAFETY: `stat` is valid for writes and all-zero is one of its values.
    let (sized, mapped) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        let sized = libc::fstat(fd, &raw mut stat) == 0 && stat.st_size as u64 == len as u64;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let mapped = libc::mmap(std::ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0);
        libc::syscall(libc::SYS_close, fd);
        (sized, mapped)
    };
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if !sized {
        return Err(io::Error::other("not a file of this version"));
    }
    // SAFETY: the mapping has the type's size, page alignment, and is never removed; any bytes are a value of it.
    Ok(unsafe { &*mapped.cast::<T>() })
}
