//! Flips a bit in a file of one member while it is down.
//!
//! *Invariant:* the member comes back with its data. If it refused to start, all its files are restored, because
//! recovery may have truncated them after the damage. If it ran, only the bit is flipped back, because the member may
//! have promised more since. The rules of the verdict check that the member never shows wrong data.

use super::{Effect, Nemesis, Undo};
use crate::events::EventKind;
use crate::observe::Observers;
use crate::recorder::Recorder;
use anyhow::{Context, Result};
use rand::Rng;
use rand::seq::IndexedRandom;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Files that a member never reads: RocksDB's own log, its options and its lock.
const UNREAD: &[&str] = &["LOG", "LOCK", "OPTIONS"];

/// A flipped bit in a member's data.
pub(super) struct Flip {
    member: usize,
    /// A copy of all data before the flip.
    copy: PathBuf,
    path: PathBuf,
    offset: u64,
    was: u8,
    is: u8,
}

/// Files that a member reads, grouped by purpose and ordered by name.
fn classes(dir: &Path) -> Result<Vec<Vec<PathBuf>>> {
    let mut classes = std::collections::BTreeMap::<String, Vec<PathBuf>>::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir)? {
            let entry = entry?;
            let (path, metadata) = (entry.path(), entry.metadata()?);
            let name = entry.file_name().to_string_lossy().into_owned();
            if metadata.is_dir() {
                dirs.push(path);
            } else if metadata.len() > 0 && !UNREAD.iter().any(|unread| name.starts_with(unread)) {
                let class = path.extension().map(|ext| ext.to_string_lossy().into_owned());
                let stem = || name.split('-').next().unwrap_or_default().to_owned();
                classes.entry(class.unwrap_or_else(stem)).or_default().push(path);
            }
        }
    }
    classes.values_mut().for_each(|files| files.sort());
    Ok(classes.into_values().collect())
}

fn copy_dir(from: &Path, to: &Path) -> Result<()> {
    std::fs::create_dir_all(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let there = to.join(entry.file_name());
        if entry.metadata()?.is_dir() {
            copy_dir(&entry.path(), &there)?;
        } else {
            std::fs::copy(entry.path(), there)?;
        }
    }
    Ok(())
}

impl Nemesis {
    /// Kills the member, flips a bit of its data, and starts it again.
    pub(super) fn flip(&mut self, member: usize) -> Result<Effect> {
        self.fleet.kill(member);
        let data = self.fleet.data_dir(member);
        let copy = data.with_extension("before");
        if copy.exists() {
            std::fs::remove_dir_all(&copy)?;
        }
        copy_dir(&data, &copy)?;
        let mut classes = classes(&data)?;
        // Prefer log and table files: they hold most of the bytes, and most of what can go wrong.
        if self.rng.random() {
            let bulk = |path: &PathBuf| path.extension().is_some_and(|e| e == "log" || e == "sst");
            classes.retain(|class| class.iter().all(bulk));
        }
        let class = classes.choose(&mut self.rng).context("the member has no files")?;
        let path = class.choose(&mut self.rng).context("the member has no files")?.clone();
        let file = File::options().read(true).write(true).open(&path)?;
        let offset = self.rng.random_range(0..file.metadata()?.len());
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset)?;
        let (was, is) = (byte[0], byte[0] ^ (1 << self.rng.random_range(0..8)));
        file.write_all_at(&[is], offset)?;
        self.fleet.start_member(member)?;
        let shown = path.strip_prefix(self.fleet.dir()).unwrap_or(&path).display();
        let on = format!("{shown} at {offset}");
        let flip = Flip { member, copy, path, offset, was, is };
        Ok(Effect { on, proven: true, undo: Undo::Mend(flip) })
    }

    /// Flips the bit back, if it is still there, and restarts the member.
    pub(super) fn mend(
        &mut self,
        flip: &Flip,
        watch: &Observers,
        recorder: &Recorder,
    ) -> Result<()> {
        let member = flip.member;
        let died = self.fleet.died(member);
        let name = self.fleet.members[member].name.clone();
        let file = flip.path.display().to_string();
        recorder.event(EventKind::Flipped { member: name, file, noticed: died.is_some() });
        let life = self.fleet.members[member].lives.load(Ordering::Relaxed);
        let refused = died.as_ref().is_some_and(|death| death.status.code() == Some(1))
            && watch.life(member) != Some(life);
        if let Some(death) = died {
            self.record_death(&death, recorder);
        }
        self.fleet.kill(member);
        if refused {
            let data = self.fleet.data_dir(member);
            std::fs::remove_dir_all(&data)?;
            std::fs::rename(&flip.copy, &data)?;
            self.fleet.preload.clear_journal(&self.fleet.members[member].name)?;
            return self.fleet.start_member(member);
        }
        // A file that the member has replaced meanwhile does not contain the flipped bit.
        if let Ok(file) = File::options().read(true).write(true).open(&flip.path) {
            let mut byte = [0];
            if file.read_exact_at(&mut byte, flip.offset).is_ok() && byte[0] == flip.is {
                file.write_all_at(&[flip.was], flip.offset)?;
            }
        }
        self.fleet.start_member(member)
    }
}
