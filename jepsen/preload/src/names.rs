//! Owns: the hooks on names: create, link, rename, remove.
//!
//! Invariant: an operation is in the journal before it happens, and what it removes is kept under another name.
//! Absent: file contents.

use std::ffi::{c_char, c_int, c_uint};

use libc::mode_t;
use rollout_powerloss::Kind;

use crate::real::real;
use crate::track::{self, Pending};

/// Runs an operation that returns 0 if it took place.
fn run(pending: Option<Pending>, call: impl FnOnce() -> c_int) -> c_int {
    let result = call();
    if let Some(pending) = pending {
        pending.done(result == 0);
    }
    result
}

fn create(kind: Kind, dir: c_int, path: *const c_char) -> Option<Pending> {
    track::intend(kind, &track::tracked_path(dir, path)?, None, None)
}

fn remove(dir: c_int, path: *const c_char, flags: c_int) -> Option<Pending> {
    let path = track::tracked_path(dir, path)?;
    if flags & libc::AT_REMOVEDIR != 0 {
        return track::intend(Kind::RemoveDir, &path, None, None);
    }
    // What does not exist cannot be kept; the real call will say so.
    track::stat_path(&path)?;
    track::intend(Kind::Unlink, &path, None, Some(&path))
}

fn rename_from_to(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
) -> Option<Pending> {
    let from = track::tracked_path(from_dir, from)?;
    let to = track::tracked_path(to_dir, to)?;
    track::stat_path(&from)?;
    let replaced = track::stat_path(&to)
        .filter(|stat| stat.st_mode & libc::S_IFMT != libc::S_IFDIR)
        .map(|_| &to);
    track::intend(Kind::Rename, &from, Some(&to), replaced)
}

#[unsafe(no_mangle)]
extern "C" fn rename(from: *const c_char, to: *const c_char) -> c_int {
    run(rename_from_to(libc::AT_FDCWD, from, libc::AT_FDCWD, to), || {
        real!("rename", fn(*const c_char, *const c_char) -> c_int, from, to)
    })
}

#[unsafe(no_mangle)]
extern "C" fn renameat(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
) -> c_int {
    run(rename_from_to(from_dir, from, to_dir, to), || {
        real!(
            "renameat",
            fn(c_int, *const c_char, c_int, *const c_char) -> c_int,
            from_dir,
            from,
            to_dir,
            to
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn renameat2(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_uint,
) -> c_int {
    run(rename_from_to(from_dir, from, to_dir, to), || {
        real!(
            "renameat2",
            fn(c_int, *const c_char, c_int, *const c_char, c_uint) -> c_int,
            from_dir,
            from,
            to_dir,
            to,
            flags
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn link(from: *const c_char, to: *const c_char) -> c_int {
    run(create(Kind::Create, libc::AT_FDCWD, to), || {
        real!("link", fn(*const c_char, *const c_char) -> c_int, from, to)
    })
}

#[unsafe(no_mangle)]
extern "C" fn linkat(
    from_dir: c_int,
    from: *const c_char,
    to_dir: c_int,
    to: *const c_char,
    flags: c_int,
) -> c_int {
    run(create(Kind::Create, to_dir, to), || {
        real!(
            "linkat",
            fn(c_int, *const c_char, c_int, *const c_char, c_int) -> c_int,
            from_dir,
            from,
            to_dir,
            to,
            flags
        )
    })
}

#[unsafe(no_mangle)]
extern "C" fn mkdir(path: *const c_char, mode: mode_t) -> c_int {
    run(create(Kind::MakeDir, libc::AT_FDCWD, path), || {
        real!("mkdir", fn(*const c_char, mode_t) -> c_int, path, mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn mkdirat(dir: c_int, path: *const c_char, mode: mode_t) -> c_int {
    run(create(Kind::MakeDir, dir, path), || {
        real!("mkdirat", fn(c_int, *const c_char, mode_t) -> c_int, dir, path, mode)
    })
}

#[unsafe(no_mangle)]
extern "C" fn unlink(path: *const c_char) -> c_int {
    run(remove(libc::AT_FDCWD, path, 0), || real!("unlink", fn(*const c_char) -> c_int, path))
}

#[unsafe(no_mangle)]
extern "C" fn unlinkat(dir: c_int, path: *const c_char, flags: c_int) -> c_int {
    run(remove(dir, path, flags), || {
        real!("unlinkat", fn(c_int, *const c_char, c_int) -> c_int, dir, path, flags)
    })
}

#[unsafe(no_mangle)]
extern "C" fn rmdir(path: *const c_char) -> c_int {
    run(remove(libc::AT_FDCWD, path, libc::AT_REMOVEDIR), || {
        real!("rmdir", fn(*const c_char) -> c_int, path)
    })
}
