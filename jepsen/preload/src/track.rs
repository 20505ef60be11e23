//! Owns: writing the journal.
//!
//! Invariant: only files and names below the journal's root are recorded. `errno` keeps the caller's value. The lock
//! is never held during the call that a hook wraps.
//! Absent: the hooks, and reading the journal.

use std::ffi::{CStr, CString, c_int};
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use rollout_powerloss::{DirOp, FileSlot, JOURNAL_ENV, Journal, JournalPath, Kind, OpState};

/// Descriptors below this remember their slot; higher ones are looked up by inode when they are synced.
const FDS: usize = 65_536;

static TRACKER: OnceLock<Tracker> = OnceLock::new();
static LOCK: Mutex<()> = Mutex::new(());
static FD_TRACKED: [AtomicU32; FDS] = [const { AtomicU32::new(0) }; FDS];
static DIR_SYNCS: AtomicU64 = AtomicU64::new(0);

struct Tracker {
    journal: Journal,
    path: CString,
}

/// Claims the journal that the environment names, if it exists and is not claimed yet.
pub(crate) fn start() {
    let Ok(name) = CString::new(JOURNAL_ENV) else { return };
    // SAFETY: valid C string; no other thread runs yet that could change the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    if value.is_null() {
        return;
    }
    // SAFETY: `getenv` returned a C string; it is copied at once.
    let path = unsafe { CStr::from_ptr(value) }.to_owned();
    // SAFETY: it has no preconditions. A process that wrote without its journal would lose nothing in a power loss,
    // so abort.
    let Ok(journal) = Journal::map(&path) else { unsafe { libc::abort() } };
    let claimed = journal.header().owner.compare_exchange(
        0,
        std::process::id(),
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    if claimed.is_ok() {
        let _ = TRACKER.set(Tracker { journal, path });
    }
}

/// The result of `stat`; `None` if nothing exists.
pub(crate) type Stat = Option<libc::stat>;

/// Restores `errno` when dropped: a hook's own calls must not be visible to the caller.
pub(crate) struct KeepErrno(c_int);

impl KeepErrno {
    pub(crate) fn new() -> Self {
        // SAFETY: the location is valid for this thread.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        // SAFETY: the location is valid for this thread.
        unsafe { *libc::__errno_location() = self.0 };
    }
}

/// The absolute form of a path that a call was given, if it is tracked.
pub(crate) fn tracked_path(dirfd: c_int, path: *const libc::c_char) -> Option<JournalPath> {
    let tracker = TRACKER.get()?;
    if path.is_null() {
        return None;
    }
    let _errno = KeepErrno::new();
    // SAFETY: the caller of the hook passed a C string.
    let given = unsafe { CStr::from_ptr(path) }.to_bytes();
    let mut full = [0u8; 4096];
    let mut len = 0;
    if !given.starts_with(b"/") {
        len = directory_path(dirfd, &mut full)?;
        full[len] = b'/';
        len += 1;
    }
    full.get_mut(len..len + given.len())?.copy_from_slice(given);
    let full = &full[..len + given.len()];
    let root = tracker.journal.header().root.bytes();
    let rest = full.strip_prefix(root)?;
    if !(rest.is_empty() || rest.starts_with(b"/")) {
        return None;
    }
    let found = JournalPath::new(full);
    if found.is_none() {
        overflowed(tracker);
    }
    found
}

/// `stat` of a name, symbolic links not followed.
pub(crate) fn stat_path(path: &JournalPath) -> Stat {
    let _errno = KeepErrno::new();
    let path = CString::new(path.bytes()).ok()?;
    // SAFETY: `stat` is valid for writes and all-zero is one of its values.
    unsafe {
        let mut stat: libc::stat = zeroed();
        (libc::lstat(path.as_ptr(), &mut stat) == 0).then_some(stat)
    }
}

/// `stat` of a descriptor, if anything is tracked.
pub(crate) fn stat_fd(fd: c_int) -> Stat {
    TRACKER.get()?;
    let _errno = KeepErrno::new();
    // SAFETY: as in `stat_path`.
    unsafe {
        let mut stat: libc::stat = zeroed();
        (libc::fstat(fd, &mut stat) == 0).then_some(stat)
    }
}

/// A tracked file was opened for writing. `before` is the `stat` of its name before the call.
pub(crate) fn opened(fd: c_int, before: &Stat, truncated: bool) {
    let (Some(tracker), Some(now)) = (TRACKER.get(), stat_fd(fd)) else { return };
    if now.st_mode & libc::S_IFMT != libc::S_IFREG {
        return;
    }
    let lock = lock();
    let known = slot_of(tracker, &now);
    let fresh = before.is_none();
    let slot = match known {
        Some(slot) => slot,
        None => {
            let Some(slot) = tracker.journal.free_file() else { return overflowed(tracker) };
            slot.dev.store(now.st_dev, Ordering::Relaxed);
            slot.ino.store(now.st_ino, Ordering::Relaxed);
            slot.overwritten.store(0, Ordering::Relaxed);
            // Assume that what existed before the process started is durable.
            let synced = before.as_ref().map_or(0, |stat| stat.st_size as u64);
            slot.synced.store(synced, Ordering::Relaxed);
            slot
        }
    };
    if fresh || truncated {
        slot.synced.store(0, Ordering::Relaxed);
    }
    slot.written.store(now.st_size as u64, Ordering::Relaxed);
    slot.used.store(1, Ordering::Release);
    drop(lock);
    if let Some(tracked) = FD_TRACKED.get(fd as usize) {
        tracked.store(1, Ordering::Release);
    }
}

/// A descriptor was closed.
pub(crate) fn closed(fd: c_int) {
    if let Some(tracked) = FD_TRACKED.get(fd as usize) {
        tracked.store(0, Ordering::Release);
    }
}

/// A write ended; `offset` is set if the call named one.
pub(crate) fn wrote(fd: c_int, offset: Option<i64>) {
    if FD_TRACKED.get(fd as usize).is_none_or(|tracked| tracked.load(Ordering::Acquire) == 0) {
        return;
    }
    with_slot(fd, |slot, stat| {
        slot.written.store(stat.st_size as u64, Ordering::Release);
        if offset.is_some_and(|offset| (offset as u64) < slot.synced.load(Ordering::Acquire)) {
            slot.overwritten.fetch_add(1, Ordering::AcqRel);
        }
    });
}

/// A file is about to be truncated or extended: nothing beyond the new length counts as fsynced.
pub(crate) fn resizing(fd: c_int, len: i64) {
    with_slot(fd, |slot, _| {
        slot.synced.fetch_min(len.max(0) as u64, Ordering::AcqRel);
    });
}

/// A file's fsync succeeded; `before` is what `fstat` said when it began.
pub(crate) fn synced(before: &libc::stat) {
    let Some(tracker) = TRACKER.get() else { return };
    let _lock = lock();
    if let Some(slot) = slot_of(tracker, before) {
        slot.synced.fetch_max(before.st_size as u64, Ordering::AcqRel);
    }
}

/// A directory's fsync begins: it covers the operations that took place before. Returns its number.
///
/// Several threads may sync one directory at the same time; each sync covers what took place before it began.
pub(crate) fn dir_sync_begins() -> u64 {
    let _lock = lock();
    DIR_SYNCS.fetch_add(1, Ordering::AcqRel) + 1
}

/// A directory's fsync succeeded: what it covers can no longer be undone.
pub(crate) fn dir_synced(number: u64, dir: &libc::stat) {
    let Some(tracker) = TRACKER.get() else { return };
    let _errno = KeepErrno::new();
    let _lock = lock();
    let covered = |op: &&DirOp| {
        dir_id(op) == (dir.st_dev, dir.st_ino)
            && op.state.load(Ordering::Acquire) == OpState::Pending as u32
            && op.after.load(Ordering::Acquire) < number
    };
    let mut durable: Vec<&DirOp> = live_ops(tracker).filter(covered).collect();
    let mut seen = 0;
    while let Some(op) = durable.get(seen) {
        // A removed directory is never synced: operations pending in it are dropped with it.
        if op.kind.load(Ordering::Acquire) == Kind::RemoveDir as u32 {
            let inside = inside_removed(tracker, op);
            durable.extend(inside);
        }
        seen += 1;
    }
    // In order: whenever the process dies here, the operations left to undo are the latest ones.
    durable.sort_unstable_by_key(|op| op.sequence.load(Ordering::Acquire));
    durable.dedup_by_key(|op| op.sequence.load(Ordering::Acquire));
    for op in durable {
        if op.kind.load(Ordering::Acquire) == Kind::Rename as u32 {
            follow_rename(tracker, op);
        }
        release(tracker, op);
    }
}

/// Operations in a directory that is gone for good.
fn inside_removed(tracker: &Tracker, removed: &DirOp) -> Vec<&'static DirOp> {
    let dir = removed_id(removed);
    live_ops(tracker).filter(|op| dir_id(op) == dir).collect()
}

/// A directory was removed. Its inode may be reused at once by another directory, whose fsync would seem to cover
/// what was pending in this one. From now on the number of the removal identifies both.
fn drop_inode(tracker: &Tracker, removed: &DirOp) {
    let (dir, number) = (removed_id(removed), removed.sequence.load(Ordering::Acquire));
    for op in live_ops(tracker).filter(|op| dir_id(op) == dir) {
        op.dir_dev.store(u64::MAX, Ordering::Release);
        op.dir_ino.store(number, Ordering::Release);
    }
    removed.removed_dev.store(u64::MAX, Ordering::Release);
    removed.removed_ino.store(number, Ordering::Release);
}

fn dir_id(op: &DirOp) -> (u64, u64) {
    (op.dir_dev.load(Ordering::Acquire), op.dir_ino.load(Ordering::Acquire))
}

fn removed_id(op: &DirOp) -> (u64, u64) {
    (op.removed_dev.load(Ordering::Acquire), op.removed_ino.load(Ordering::Acquire))
}

/// A rename that will not be undone: earlier operations below the old name are now to be undone below the new one.
fn follow_rename(tracker: &Tracker, rename: &DirOp) {
    // SAFETY: the lock is held, so no other thread writes these.
    let (from, to) = unsafe { (*rename.path.get(), *rename.to.get()) };
    let renamed_at = rename.sequence.load(Ordering::Acquire);
    let moved = |path: &JournalPath| {
        let rest = path.bytes().strip_prefix(from.bytes())?;
        rest.starts_with(b"/").then(|| JournalPath::new(&[to.bytes(), rest].concat()))?
    };
    for op in live_ops(tracker) {
        if op.sequence.load(Ordering::Acquire) >= renamed_at {
            continue;
        }
        // SAFETY: as above; the slot is marked free while its paths change, in case the process dies here.
        unsafe {
            let (path, to) = (moved(&*op.path.get()), moved(&*op.to.get()));
            let state = op.state.swap(OpState::Free as u32, Ordering::AcqRel);
            if let Some(path) = path {
                *op.path.get() = path;
            }
            if let Some(to) = to {
                *op.to.get() = to;
            }
            op.state.store(state, Ordering::Release);
        }
    }
}

/// An operation on a name that is about to happen. `done` must end it.
pub(crate) struct Pending {
    op: &'static DirOp,
}

/// Records an operation before it happens. `replaced` names a file that it takes away.
pub(crate) fn intend(
    kind: Kind,
    path: &JournalPath,
    to: Option<&JournalPath>,
    replaced: Option<&JournalPath>,
) -> Option<Pending> {
    let tracker = TRACKER.get()?;
    let _errno = KeepErrno::new();
    let name = to.unwrap_or(path);
    let parent = Path::new(std::ffi::OsStr::from_bytes(name.bytes())).parent()?;
    let dir = stat_path(&JournalPath::new(parent.as_os_str().as_bytes())?)?;
    let _lock = lock();
    let Some(op) = tracker.journal.free_op() else {
        overflowed(tracker);
        return None;
    };
    let sequence = tracker.journal.header().sequence.fetch_add(1, Ordering::AcqRel) + 1;
    op.kind.store(kind as u32, Ordering::Relaxed);
    op.sequence.store(sequence, Ordering::Relaxed);
    op.dir_dev.store(dir.st_dev, Ordering::Relaxed);
    op.dir_ino.store(dir.st_ino, Ordering::Relaxed);
    let removed = stat_path(path).filter(|_| kind == Kind::RemoveDir);
    let (dev, ino) = removed.map_or((0, 0), |stat| (stat.st_dev, stat.st_ino));
    op.removed_dev.store(dev, Ordering::Relaxed);
    op.removed_ino.store(ino, Ordering::Relaxed);
    // SAFETY: the lock is held and the slot is free, so no other thread reads or writes these.
    unsafe {
        *op.path.get() = *path;
        *op.to.get() = to.copied().unwrap_or(JournalPath::EMPTY);
    }
    let kept = match replaced {
        Some(file) if !keep(tracker, file, sequence) => {
            overflowed(tracker);
            0
        }
        Some(_) => 1,
        None => 0,
    };
    op.kept.store(kept, Ordering::Relaxed);
    op.state.store(OpState::Intent as u32, Ordering::Release);
    Some(Pending { op })
}

impl Pending {
    /// Says whether the operation took place.
    pub(crate) fn done(self, happened: bool) {
        let Some(tracker) = TRACKER.get() else { return };
        let _errno = KeepErrno::new();
        let _lock = lock();
        if !happened {
            return release(tracker, self.op);
        }
        if self.op.kind.load(Ordering::Acquire) == Kind::RemoveDir as u32 {
            drop_inode(tracker, self.op);
        }
        self.op.after.store(DIR_SYNCS.load(Ordering::Acquire), Ordering::Release);
        self.op.state.store(OpState::Pending as u32, Ordering::Release);
    }
}

/// Frees an operation's slot, and removes what it kept. The caller holds the lock.
fn release(tracker: &Tracker, op: &DirOp) {
    let sequence = op.sequence.load(Ordering::Acquire);
    let kept = op.kept.load(Ordering::Acquire) == 1;
    op.state.store(OpState::Free as u32, Ordering::Release);
    let Some(saved) = saved(tracker, sequence).filter(|_| kept) else { return };
    // SAFETY: plain system calls on a valid C string; `stat` is valid for writes.
    unsafe {
        let mut stat: libc::stat = zeroed();
        let last = libc::lstat(saved.as_ptr(), &mut stat) == 0 && stat.st_nlink == 1;
        if let Some(slot) = slot_of(tracker, &stat).filter(|_| last) {
            // The inode is freed, and its number may be reused for another file.
            slot.used.store(0, Ordering::Release);
        }
        libc::syscall(libc::SYS_unlinkat, libc::AT_FDCWD, saved.as_ptr(), 0);
    }
}

/// Keeps a file that is about to lose its name.
fn keep(tracker: &Tracker, file: &JournalPath, sequence: u64) -> bool {
    let (Ok(file), Some(saved)) = (CString::new(file.bytes()), saved(tracker, sequence)) else {
        return false;
    };
    // SAFETY: a plain system call on valid C strings.
    let linked = unsafe {
        libc::syscall(
            libc::SYS_linkat,
            libc::AT_FDCWD,
            file.as_ptr(),
            libc::AT_FDCWD,
            saved.as_ptr(),
            0,
        )
    };
    linked == 0
}

fn saved(tracker: &Tracker, sequence: u64) -> Option<CString> {
    let journal = Path::new(std::ffi::OsStr::from_bytes(tracker.path.to_bytes()));
    CString::new(Journal::saved(journal, sequence).into_os_string().as_bytes()).ok()
}

/// Operations that are not yet durable. The caller holds the lock.
fn live_ops(tracker: &Tracker) -> impl Iterator<Item = &'static DirOp> {
    let free = OpState::Free as u32;
    tracker.journal.ops().iter().filter(move |op| op.state.load(Ordering::Acquire) != free)
}

fn with_slot(fd: c_int, each: impl FnOnce(&FileSlot, &libc::stat)) {
    let (Some(tracker), Some(stat)) = (TRACKER.get(), stat_fd(fd)) else { return };
    let _lock = lock();
    if let Some(slot) = slot_of(tracker, &stat) {
        each(slot, &stat);
    }
}

/// The slot of a file. The caller holds the lock.
fn slot_of(tracker: &Tracker, stat: &libc::stat) -> Option<&'static FileSlot> {
    tracker.journal.files().iter().find(|slot| {
        slot.used.load(Ordering::Acquire) == 1
            && slot.ino.load(Ordering::Acquire) == stat.st_ino
            && slot.dev.load(Ordering::Acquire) == stat.st_dev
    })
}

fn lock() -> MutexGuard<'static, ()> {
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

fn overflowed(tracker: &Tracker) {
    tracker.journal.header().overflow.fetch_add(1, Ordering::AcqRel);
}

/// The directory that a relative path starts from.
fn directory_path(dirfd: c_int, into: &mut [u8; 4096]) -> Option<usize> {
    let link = if dirfd == libc::AT_FDCWD {
        CString::from(c"/proc/self/cwd")
    } else {
        CString::new(format!("/proc/self/fd/{dirfd}")).ok()?
    };
    // SAFETY: the buffer is valid for the length given, which leaves room for a slash.
    let len = unsafe { libc::readlink(link.as_ptr(), into.as_mut_ptr().cast(), into.len() - 1) };
    usize::try_from(len).ok()
}
