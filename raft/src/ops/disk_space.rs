//! Owns: checking twice a second whether this member's disk has room.
//!
//! Invariant: the check runs on a thread of its own: a file system that does not answer blocks nothing else.
//! Absent: the consequences. The coordinator refuses operations that grow the state; a write that finds no room ends
//! the process.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rollout_storage::{Space, space};

use crate::errors::OpenError;

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A state ends only when the room exceeds its mark by this fraction, so that it does not flicker.
const MARGIN: u64 = 16;

/// The state of a member's disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskRoom {
    /// There is room.
    Enough,
    /// There is less than [`crate::RaftConfig::disk_low_bytes`]: an operator should free space.
    Low,
    /// There is less than [`crate::RaftConfig::disk_reserve_bytes`]: nothing that grows is accepted.
    Full,
}

/// The bytes below which there is little room, or none.
#[derive(Debug, Clone, Copy)]
struct Marks {
    low: u64,
    reserve: u64,
}

impl Marks {
    /// The new state of a disk with `free` bytes that was in the state `was`.
    fn judge(self, was: DiskRoom, free: u64) -> DiskRoom {
        let below = |mark: u64, within: DiskRoom| {
            let margin = if was >= within { mark / MARGIN } else { 0 };
            free < mark.saturating_add(margin)
        };
        if below(self.reserve, DiskRoom::Full) {
            DiskRoom::Full
        } else if below(self.low, DiskRoom::Low) {
            DiskRoom::Low
        } else {
            DiskRoom::Enough
        }
    }
}

/// The last measurement.
#[derive(Debug)]
pub(crate) struct DiskSpace {
    marks: Marks,
    room: Mutex<DiskRoom>,
    free_bytes: AtomicU64,
    all_bytes: AtomicU64,
}

impl DiskSpace {
    /// Measures once, and then repeatedly until the last clone is dropped.
    pub(crate) fn watch(
        dir: &Path,
        low_bytes: u64,
        reserve_bytes: u64,
    ) -> Result<Arc<Self>, OpenError> {
        let this = Arc::new(Self {
            marks: Marks { low: low_bytes, reserve: reserve_bytes },
            room: Mutex::new(DiskRoom::Enough),
            free_bytes: AtomicU64::new(0),
            all_bytes: AtomicU64::new(0),
        });
        this.check(dir);
        let (watched, dir) = (Arc::downgrade(&this), dir.to_owned());
        std::thread::Builder::new()
            .name("disk-space".into())
            .spawn(move || keep_looking(&watched, &dir))
            .map_err(|error| OpenError::Start(format!("no thread to watch the disk: {error}")))?;
        Ok(this)
    }

    pub(crate) fn room(&self) -> DiskRoom {
        *self.room.lock()
    }

    /// The space at the last measurement; zeroes if the system does not report it.
    pub(crate) fn space(&self) -> Space {
        Space {
            free_bytes: self.free_bytes.load(Ordering::Relaxed),
            all_bytes: self.all_bytes.load(Ordering::Relaxed),
        }
    }

    fn check(&self, dir: &Path) {
        let found = match space(dir) {
            Ok(found) => found,
            // If the space is unknown, keep the state.
            Err(error) => return tracing::warn!(%error, "cannot read the free space of the disk"),
        };
        self.free_bytes.store(found.free_bytes, Ordering::Relaxed);
        self.all_bytes.store(found.all_bytes, Ordering::Relaxed);
        let mut room = self.room.lock();
        let now = self.marks.judge(*room, found.free_bytes);
        if now == *room {
            return;
        }
        let (was, free_bytes) = (std::mem::replace(&mut *room, now), found.free_bytes);
        drop(room);
        match now {
            DiskRoom::Enough => tracing::info!(?was, free_bytes, "the disk has enough space again"),
            DiskRoom::Low => tracing::warn!(?was, free_bytes, "the disk is low on space"),
            DiskRoom::Full => {
                tracing::error!(?was, free_bytes, "the disk is full except for its reserve");
            }
        }
    }
}

fn keep_looking(watched: &Weak<DiskSpace>, dir: &Path) {
    loop {
        std::thread::sleep(LOOK_EVERY);
        let Some(this) = watched.upgrade() else { return };
        this.check(dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_entered_at_its_mark_and_left_a_little_above_it() {
        use DiskRoom::{Enough, Full, Low};
        let marks = Marks { low: 1600, reserve: 320 };
        let steps = [(1600, Enough), (1599, Low), (1650, Low), (1700, Enough), (319, Full)];
        let mut was = Enough;
        for (free, expected) in steps {
            was = marks.judge(was, free);
            assert_eq!(was, expected, "{free}");
        }
        assert_eq!(marks.judge(Full, 339), Full, "not at its mark alone");
        assert_eq!(marks.judge(Full, 340), Low, "and then there is little room still");
        assert_eq!(marks.judge(Full, 5000), Enough);
        let none = Marks { low: 0, reserve: 0 };
        assert_eq!(none.judge(Full, 0), Enough, "zeroes switch it off");
    }

    #[test]
    fn the_watch_measures_the_disk_when_it_begins() {
        let dir = tempfile::tempdir().expect("a directory");
        let full = DiskSpace::watch(dir.path(), u64::MAX, u64::MAX - 1).expect("watched");
        assert_eq!(full.room(), DiskRoom::Full);
        assert!(full.space().all_bytes > 0);
    }
}
