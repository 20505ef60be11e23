//! Owns: turning the files of a killed process into those of a machine that lost power.
//!
//! Invariant: fsynced bytes stay, and so do names whose directory was fsynced afterward. Everything else is removed
//! ([`Loss::Strict`]), or a random suffix of it is ([`Loss::Torn`]).
//! Absent: killing the process, and judging what is left.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering;

use crate::journal::{DirOp, Journal, Kind, OpState};

/// How much is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Everything that was not made durable.
    Strict,
    /// Each file keeps a random length between its fsynced and its written length, and a random number of the last
    /// operations on names is undone, as in a journaling file system.
    Torn {
        /// Repeats the same loss.
        seed: u64,
    },
}

/// What was lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Files that were cut.
    pub cut_files: usize,
    /// Bytes that were cut off them.
    pub cut_bytes: u64,
    /// Operations on names that were undone.
    pub undone: usize,
    /// Writes below the fsynced length, whose old bytes were not restored.
    pub overwritten: u64,
}

/// Removes from the journal's root what its dead writer had not made durable.
///
/// Fails if the process never loaded the library, or did more than the journal could hold: continuing the test would
/// prove nothing.
pub fn lose_power(journal_path: &Path, loss: Loss) -> io::Result<Report> {
    let path = CString::new(journal_path.as_os_str().as_bytes())?;
    let journal = Journal::map(&path)?;
    let header = journal.header();
    if header.owner.load(Ordering::Acquire) == 0 {
        return Err(io::Error::other("no process claimed the journal: was the library loaded?"));
    }
    let overflow = header.overflow.load(Ordering::Acquire);
    if overflow > 0 {
        return Err(io::Error::other(format!("{overflow} events found no room in the journal")));
    }
    let mut dice = Dice(match loss {
        Loss::Strict => 0,
        Loss::Torn { seed } => seed | 1,
    });
    let mut report =
        Report { undone: undo_names(journal, journal_path, &mut dice)?, ..Report::default() };
    let mut synced = HashMap::new();
    for slot in journal.files() {
        if slot.used.load(Ordering::Acquire) == 1 {
            let file = (slot.dev.load(Ordering::Acquire), slot.ino.load(Ordering::Acquire));
            synced.insert(file, slot.synced.load(Ordering::Acquire));
            report.overwritten += u64::from(slot.overwritten.load(Ordering::Acquire));
        }
    }
    let root = header.root.to_path();
    if root.is_dir() {
        cut_files(&root, &synced, &mut dice, &mut report)?;
    }
    Ok(report)
}

fn undo_names(journal: Journal, journal_path: &Path, dice: &mut Dice) -> io::Result<usize> {
    let mut ops: Vec<&DirOp> = journal
        .ops()
        .iter()
        .filter(|op| op.state.load(Ordering::Acquire) != OpState::Free as u32)
        .collect();
    ops.sort_unstable_by_key(|op| op.sequence.load(Ordering::Acquire));
    // A journaling file system writes operations to disk in order.
    let survive = dice.up_to(ops.len() as u64) as usize;
    let mut undone = 0;
    for op in ops[survive..].iter().rev() {
        let failed = |error: io::Error| {
            // SAFETY: as in `undo`.
            let path = unsafe { (*op.path.get()).to_path() };
            let kind = Kind::from_u32(op.kind.load(Ordering::Acquire));
            io::Error::other(format!("cannot undo {kind:?} of {}: {error}", path.display()))
        };
        undone += usize::from(undo(op, journal_path).map_err(failed)?);
    }
    Ok(undone)
}

/// Undoes one operation; false if it never took place.
fn undo(op: &DirOp, journal_path: &Path) -> io::Result<bool> {
    // SAFETY: the writer is dead, and it published the slot after the paths were complete.
    let (path, to) = unsafe { ((*op.path.get()).to_path(), (*op.to.get()).to_path()) };
    let saved = Journal::saved(journal_path, op.sequence.load(Ordering::Acquire));
    let kept = op.kept.load(Ordering::Acquire) == 1;
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    match Kind::from_u32(op.kind.load(Ordering::Acquire)) {
        Some(Kind::Create) if exists(&path) => fs::remove_file(&path)?,
        Some(Kind::MakeDir) if exists(&path) => fs::remove_dir_all(&path)?,
        Some(Kind::Rename) if exists(&to) && !exists(&path) => {
            fs::rename(&to, &path)?;
            if kept {
                fs::rename(&saved, &to)?;
            }
        }
        Some(Kind::Unlink) if !exists(&path) && kept => fs::rename(&saved, &path)?,
        Some(Kind::RemoveDir) if !exists(&path) => fs::create_dir(&path)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn cut_files(
    dir: &Path,
    synced: &HashMap<(u64, u64), u64>,
    dice: &mut Dice,
    report: &mut Report,
) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        if metadata.is_dir() {
            cut_files(&entry.path(), synced, dice, report)?;
            continue;
        }
        // A file that was never opened for writing is as durable as it was before.
        let Some(synced) = synced.get(&(metadata.dev(), metadata.ino())) else { continue };
        let lost = metadata.len().saturating_sub(*synced);
        let keep = *synced + dice.up_to(lost);
        if metadata.is_file() && keep < metadata.len() {
            OpenOptions::new().write(true).open(entry.path())?.set_len(keep)?;
            report.cut_files += 1;
            report.cut_bytes += metadata.len() - keep;
        }
    }
    Ok(())
}

/// A small generator, so that a loss can be repeated. State 0 always answers 0.
struct Dice(u64);

impl Dice {
    /// A number from 0 to `most`, both included.
    fn up_to(&mut self, most: u64) -> u64 {
        if self.0 == 0 || most == 0 {
            return 0;
        }
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % (most + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_loss_also_drops_unsynced_writes_of_an_earlier_process() {
        let dir = std::env::temp_dir().join(format!("rollout-powerloss-{}", std::process::id()));
        let (root, journal_path) = (dir.join("root"), dir.join("journal"));
        fs::create_dir_all(&root).unwrap();
        let file = root.join("file");
        fs::write(&file, [7; 100]).unwrap();
        Journal::create(&journal_path, &root).unwrap();
        // Writes what the library would write in a process that writes 100 bytes and syncs 10.
        let path = CString::new(journal_path.as_os_str().as_bytes()).unwrap();
        let journal = Journal::map(&path).unwrap();
        journal.header().owner.store(1, Ordering::Release);
        let (slot, metadata) = (journal.free_file().unwrap(), file.metadata().unwrap());
        slot.dev.store(metadata.dev(), Ordering::Release);
        slot.ino.store(metadata.ino(), Ordering::Release);
        slot.synced.store(10, Ordering::Release);
        slot.used.store(1, Ordering::Release);
        Journal::resume(&journal_path).unwrap();
        assert!(!Journal::claimed(&journal_path).unwrap(), "the next life has not begun");
        assert!(lose_power(&journal_path, Loss::Strict).is_err());
        journal.header().owner.store(2, Ordering::Release);
        let lost = lose_power(&journal_path, Loss::Strict).unwrap();
        assert_eq!((lost.cut_files, lost.cut_bytes), (1, 90));
        assert_eq!(file.metadata().unwrap().len(), 10);
        fs::remove_dir_all(&dir).unwrap();
    }
}
