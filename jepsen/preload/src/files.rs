//! Owns: the hooks on a file's bytes: open, write, resize, sync, close.
//!
//! Invariant: each hook calls libc's function exactly once and returns its result, unless the disk has an injected
//! fault.
//! Absent: operations on names, except for creating a file through `open`.

use std::ffi::{c_char, c_int, c_void};

use libc::{iovec, mode_t, off_t, size_t, ssize_t};
use rollout_powerloss::Kind;

use crate::disk;
use crate::real::real;
use crate::track;

/// The code shared by all hooks that open a file. `call` is the real function.
fn open_with(
    dirfd: c_int,
    path: *const c_char,
    flags: c_int,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let writes = flags & (libc::O_WRONLY | libc::O_RDWR) != 0;
    let creates = flags & libc::O_CREAT != 0;
    let tracked = if writes || creates { track::tracked_path(dirfd, path) } else { None };
    let Some(tracked) = tracked else { return call() };
    let before = track::stat_path(&tracked);
    let pending = if creates && before.is_none() {
        track::intend(Kind::Create, &tracked, None, None)
    } else {
        None
    };
    let fd = call();
    if let Some(pending) = pending {
        pending.done(fd >= 0);
    }
    if fd >= 0 {
        track::opened(fd, &before, flags & libc::O_TRUNC != 0);
    }
    fd
}

macro_rules! hook_open {
    ($name:ident, $real:literal) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            open_with(libc::AT_FDCWD, path, flags, || {
                real!($real, fn(*const c_char, c_int, mode_t) -> c_int, path, flags, mode)
            })
        }
    };
}

hook_open!(open, "open");
hook_open!(open64, "open64");

macro_rules! hook_openat {
    ($name:ident, $real:literal) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
            open_with(dir, path, flags, || {
                real!(
                    $real,
                    fn(c_int, *const c_char, c_int, mode_t) -> c_int,
                    dir,
                    path,
                    flags,
                    mode
                )
            })
        }
    };
}

hook_openat!(openat, "openat");
hook_openat!(openat64, "openat64");

macro_rules! hook_creat {
    ($name:ident, $real:literal) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            let flags = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
            open_with(libc::AT_FDCWD, path, flags, || {
                real!($real, fn(*const c_char, mode_t) -> c_int, path, mode)
            })
        }
    };
}

hook_creat!(creat, "creat");
hook_creat!(creat64, "creat64");

/// The code shared by all hooks that write.
fn write_with(fd: c_int, offset: Option<off_t>, call: impl FnOnce() -> ssize_t) -> ssize_t {
    if disk::refuses_write(fd) {
        return -1;
    }
    let written = call();
    if written > 0 {
        track::wrote(fd, offset);
    }
    written
}

#[unsafe(no_mangle)]
extern "C" fn write(fd: c_int, bytes: *const c_void, len: size_t) -> ssize_t {
    write_with(fd, None, || {
        real!("write", fn(c_int, *const c_void, size_t) -> ssize_t, fd, bytes, len)
    })
}

#[unsafe(no_mangle)]
extern "C" fn writev(fd: c_int, pieces: *const iovec, count: c_int) -> ssize_t {
    write_with(fd, None, || {
        real!("writev", fn(c_int, *const iovec, c_int) -> ssize_t, fd, pieces, count)
    })
}

macro_rules! hook_pwrite {
    ($name:ident, $real:literal) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(fd: c_int, bytes: *const c_void, len: size_t, at: off_t) -> ssize_t {
            write_with(fd, Some(at), || {
                real!($real, fn(c_int, *const c_void, size_t, off_t) -> ssize_t, fd, bytes, len, at)
            })
        }
    };
}

hook_pwrite!(pwrite, "pwrite");
hook_pwrite!(pwrite64, "pwrite64");

macro_rules! hook_pwritev {
    ($name:ident, $real:literal) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(fd: c_int, pieces: *const iovec, count: c_int, at: off_t) -> ssize_t {
            write_with(fd, Some(at), || {
                real!(
                    $real,
                    fn(c_int, *const iovec, c_int, off_t) -> ssize_t,
                    fd,
                    pieces,
                    count,
                    at
                )
            })
        }
    };
}

hook_pwritev!(pwritev, "pwritev");
hook_pwritev!(pwritev64, "pwritev64");

macro_rules! hook_ftruncate {
    ($name:ident, $real:literal) => {
        #[unsafe(no_mangle)]
        extern "C" fn $name(fd: c_int, len: off_t) -> c_int {
            track::resizing(fd, len);
            real!($real, fn(c_int, off_t) -> c_int, fd, len)
        }
    };
}

hook_ftruncate!(ftruncate, "ftruncate");
hook_ftruncate!(ftruncate64, "ftruncate64");

/// The code shared by both hooks that sync. Only bytes that were there when the sync began are durable after it.
fn sync_with(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if disk::refuses_sync(fd) {
        return -1;
    }
    let Some(before) = track::stat_fd(fd) else { return call() };
    if before.st_mode & libc::S_IFMT == libc::S_IFDIR {
        let number = track::dir_sync_begins();
        let result = call();
        if result == 0 {
            track::dir_synced(number, &before);
        }
        return result;
    }
    let result = call();
    if result == 0 {
        track::synced(&before);
    }
    result
}

#[unsafe(no_mangle)]
extern "C" fn fsync(fd: c_int) -> c_int {
    sync_with(fd, || real!("fsync", fn(c_int) -> c_int, fd))
}

#[unsafe(no_mangle)]
extern "C" fn fdatasync(fd: c_int) -> c_int {
    sync_with(fd, || real!("fdatasync", fn(c_int) -> c_int, fd))
}

#[unsafe(no_mangle)]
extern "C" fn close(fd: c_int) -> c_int {
    track::closed(fd);
    real!("close", fn(c_int) -> c_int, fd)
}
