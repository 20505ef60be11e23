//! Owns: the layout of the journal, a file of fixed size that two processes map.
//!
//! Invariant: an entry is complete before its state says so, so that a process killed between any two instructions
//! leaves a readable journal. One process writes; it claims the journal with its process id.
//! Absent: locks. The writer has its own; the reader runs after the writer is dead.

use std::ffi::CStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path as StdPath, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::shared::{self, Shared};

const MAGIC: u64 = u64::from_le_bytes(*b"rolloutJ");
const FILES: usize = 16 * 1024;
const OPS: usize = 8 * 1024;
const PATH_MAX: usize = 480;

/// A path of bounded length, made absolute but otherwise as the call gave it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Path {
    len: u32,
    bytes: [u8; PATH_MAX],
}

impl Path {
    /// No path.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; PATH_MAX] };

    /// Copies a path; `None` if it is too long.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut path = Self::EMPTY;
        path.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        path.len = bytes.len() as u32;
        Some(path)
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..(self.len as usize).min(PATH_MAX)]
    }

    /// Writes its in-memory bytes to the beginning of `place`.
    pub(crate) fn write_to(&self, place: &mut [u8]) {
        place[..4].copy_from_slice(&self.len.to_ne_bytes());
        place[4..4 + PATH_MAX].copy_from_slice(&self.bytes);
    }

    /// The path for the standard library.
    pub fn to_path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsStr::from_bytes(self.bytes()))
    }
}

/// The beginning of a journal.
#[repr(C)]
pub struct Header {
    magic: AtomicU64,
    /// The process that writes; 0 before one has claimed it.
    pub owner: AtomicU32,
    /// Events that found no room. A journal with such events cannot be used.
    pub overflow: AtomicU32,
    /// The number of the last operation on a name.
    pub sequence: AtomicU64,
    /// Number of file slots that were ever in use; the slots after them never were.
    pub files_used: AtomicU32,
    /// Operation slots that were ever in use.
    pub ops_used: AtomicU32,
    /// The tracked directory; nothing outside of it is tracked.
    pub root: Path,
}

/// The durable length of one file, by its inode.
#[repr(C)]
pub struct FileSlot {
    /// 1 while the slot is in use.
    pub used: AtomicU32,
    /// Writes that began below the fsynced length.
    pub overwritten: AtomicU32,
    pub dev: AtomicU64,
    pub ino: AtomicU64,
    /// The length after the last write.
    pub written: AtomicU64,
    /// The length that is fsynced.
    pub synced: AtomicU64,
}

/// An operation on a name that its directory's fsync has not yet made durable.
#[repr(C)]
pub struct DirOp {
    /// An [`OpState`].
    pub state: AtomicU32,
    /// A [`Kind`].
    pub kind: AtomicU32,
    /// The order of operations.
    pub sequence: AtomicU64,
    /// The device and inode of the directory whose fsync makes it durable.
    pub dir_dev: AtomicU64,
    /// See `dir_dev`.
    pub dir_ino: AtomicU64,
    /// The device and inode of the directory that [`Kind::RemoveDir`] removes; else 0.
    pub removed_dev: AtomicU64,
    /// See `removed_dev`.
    pub removed_ino: AtomicU64,
    /// How many directory fsyncs had begun when it took place: only later ones cover it.
    pub after: AtomicU64,
    /// 1 if [`Journal::saved`] keeps what the operation replaced or removed.
    pub kept: AtomicU32,
    /// The name; for a rename, the old one.
    pub path: std::cell::UnsafeCell<Path>,
    /// For a rename, the new name.
    pub to: std::cell::UnsafeCell<Path>,
}

/// Whether an operation took place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum OpState {
    /// The slot is free.
    Free = 0,
    /// It may or may not have taken place.
    Intent = 1,
    /// It took place and is not durable.
    Pending = 2,
}

/// What an operation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A file or a hard link appeared.
    Create = 1,
    /// A directory appeared.
    MakeDir = 2,
    /// A name moved.
    Rename = 3,
    /// A file's name was removed.
    Unlink = 4,
    /// A directory was removed.
    RemoveDir = 5,
}

impl Kind {
    /// The kind with this number.
    pub fn from_u32(kind: u32) -> Option<Self> {
        [Self::Create, Self::MakeDir, Self::Rename, Self::Unlink, Self::RemoveDir]
            .into_iter()
            .find(|known| *known as u32 == kind)
    }
}

#[repr(C)]
struct Layout {
    header: Header,
    files: [FileSlot; FILES],
    ops: [DirOp; OPS],
}

// SAFETY: integers, and bytes behind the writer's lock.
unsafe impl Shared for Layout {}

/// A mapped journal. It stays mapped for the life of the process.
#[derive(Clone, Copy)]
pub struct Journal {
    layout: &'static Layout,
}

// SAFETY: everything in the layout is atomic, except for the paths of operations, which are written only by the
// holder of the writer's lock, before the state that publishes them.
unsafe impl Send for Journal {}
// SAFETY: as above.
unsafe impl Sync for Journal {}

impl Journal {
    /// Creates an empty journal for one life of one process, replacing an older one, with the directory for what
    /// is kept. `root` must be absolute, and on the file system of `path`.
    pub fn create(path: &StdPath, root: &StdPath) -> io::Result<()> {
        let root = Path::new(root.as_os_str().as_bytes())
            .filter(|path| path.bytes().starts_with(b"/"))
            .ok_or_else(|| io::Error::other("the root must be absolute and short"))?;
        let saved = Self::saved_dir(path);
        match std::fs::remove_dir_all(&saved) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir(&saved)?,
        }
        let file = std::fs::File::create(path)?;
        // Writing to a hole through a mapping kills the process if the disk is full, at any point. So reserve the
        // space.
        reserve(&file, size_of::<Layout>())?;
        let mut head = vec![0; std::mem::offset_of!(Header, root) + size_of::<Path>()];
        head[..8].copy_from_slice(&MAGIC.to_le_bytes());
        root.write_to(&mut head[std::mem::offset_of!(Header, root)..]);
        std::os::unix::fs::FileExt::write_all_at(&file, &head, 0)
    }

    /// Lets the next life of the process continue with this journal after its writer died: pending operations stay
    /// pending.
    pub fn resume(path: &StdPath) -> io::Result<()> {
        let journal = Self::map(&std::ffi::CString::new(path.as_os_str().as_bytes())?)?;
        for op in journal.ops() {
            // The next life counts its fsyncs from the first.
            op.after.store(0, Ordering::Release);
            // Whether it took place shows when it is undone; until then a later fsync may make it durable.
            let (intent, pending) = (OpState::Intent as u32, OpState::Pending as u32);
            let _ = op.state.compare_exchange(intent, pending, Ordering::AcqRel, Ordering::Acquire);
        }
        journal.header().owner.store(0, Ordering::Release);
        Ok(())
    }

    /// Whether a process has written to this journal since it was created or resumed.
    pub fn claimed(path: &StdPath) -> io::Result<bool> {
        let journal = Self::map(&std::ffi::CString::new(path.as_os_str().as_bytes())?)?;
        Ok(journal.header().owner.load(Ordering::Acquire) != 0)
    }

    pub fn map(path: &CStr) -> io::Result<Self> {
        let layout = shared::map::<Layout>(path)?;
        if layout.header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other("not a journal of this version"));
        }
        Ok(Self { layout })
    }

    pub fn header(&self) -> &'static Header {
        &self.layout.header
    }

    /// File slots that were ever in use.
    pub fn files(&self) -> &'static [FileSlot] {
        let used = self.layout.header.files_used.load(Ordering::Acquire) as usize;
        &self.layout.files[..used.min(FILES)]
    }

    /// Operation slots that were ever in use.
    pub fn ops(&self) -> &'static [DirOp] {
        let used = self.layout.header.ops_used.load(Ordering::Acquire) as usize;
        &self.layout.ops[..used.min(OPS)]
    }

    /// A free file slot; the caller holds the writer's lock.
    pub fn free_file(&self) -> Option<&'static FileSlot> {
        let free = self.files().iter().find(|slot| slot.used.load(Ordering::Acquire) == 0);
        free.or_else(|| grow(&self.layout.files, &self.layout.header.files_used))
    }

    /// A free operation slot; the caller holds the writer's lock.
    pub fn free_op(&self) -> Option<&'static DirOp> {
        let free =
            self.ops().iter().find(|op| op.state.load(Ordering::Acquire) == OpState::Free as u32);
        free.or_else(|| grow(&self.layout.ops, &self.layout.header.ops_used))
    }

    /// The directory for what operations replaced or removed.
    pub fn saved_dir(journal: &StdPath) -> PathBuf {
        let mut name = journal.as_os_str().to_owned();
        name.push(".saved");
        PathBuf::from(name)
    }

    /// Where the operation with this number keeps what it replaced or removed.
    pub fn saved(journal: &StdPath, sequence: u64) -> PathBuf {
        Self::saved_dir(journal).join(sequence.to_string())
    }
}

/// Sets the file's length, and allocates all of its blocks on the disk.
fn reserve(file: &std::fs::File, len: usize) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: a plain system call on a descriptor that `file` keeps open.
    match unsafe { libc::posix_fallocate(std::os::fd::AsRawFd::as_raw_fd(file), 0, len) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

fn grow<T>(slots: &'static [T], used: &AtomicU32) -> Option<&'static T> {
    let slot = slots.get(used.load(Ordering::Acquire) as usize)?;
    used.fetch_add(1, Ordering::AcqRel);
    Some(slot)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_journal_has_all_its_room_from_the_beginning() {
        let dir = std::env::temp_dir().join(format!("rollout-journal-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("journal");
        Journal::create(&path, &dir).unwrap();
        let metadata = path.metadata().unwrap();
        assert_eq!(metadata.len(), size_of::<Layout>() as u64);
        assert!(metadata.blocks() * 512 >= metadata.len(), "{} blocks", metadata.blocks());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
