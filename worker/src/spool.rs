//! Owns: finished rows on the local disk until the leader has answered for their part, one file a part.
//!
//! Invariant: an appended row survives the death of this process; a synced one survives a power loss. One thread
//! writes files, in order, and another makes them durable, so no disk stalls a heartbeat, and no row waits in memory
//! for another row's fsync. Callers never request an fsync: one follows each row at once, for all that arrived
//! meanwhile.
//! Absent: which rows count; the leader says so when a restarted worker registers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollout_storage::{Spool, SpoolSync, StorageError};
use tokio::sync::{mpsc, oneshot};

use crate::part::{Finished, OpenPart, PartId};

/// Operations that may wait for the disk; a slot waits when there are more.
const QUEUE: usize = 1024;

enum Op {
    Append { part: PartId, row: Finished },
    Sync { part: PartId, done: oneshot::Sender<()> },
    Remove { part: PartId },
}

/// Reports that the disk failed: the process must end, because rows may be lost already.
pub(crate) type DiskFailed = mpsc::Sender<String>;

/// A slot's handle of its spool thread.
#[derive(Debug, Clone)]
pub(crate) struct SpoolHandle {
    ops: mpsc::Sender<Op>,
}

/// A slot's spool as an earlier process left it.
#[derive(Debug)]
pub(crate) struct SlotSpool {
    dir: PathBuf,
    files: BTreeMap<PartId, Spool>,
    /// Its parts, which are to be uploaded.
    pub(crate) parts: Vec<OpenPart>,
}

impl SlotSpool {
    /// Opens the spool in `dir`. A damaged file is set aside: its rows will be executed again.
    pub(crate) fn open(dir: &Path) -> Result<Self, StorageError> {
        let mut spool = Self { dir: dir.to_owned(), files: BTreeMap::new(), parts: Vec::new() };
        let io = |action| {
            let path = dir.to_owned();
            move |source| StorageError::Io { path, action, source }
        };
        std::fs::create_dir_all(dir).map_err(io("create directory"))?;
        for entry in std::fs::read_dir(dir).map_err(io("list"))? {
            let path = entry.map_err(io("list"))?.path();
            let Some(id) = part_of(&path) else { continue };
            match Spool::open(&path) {
                Ok((file, rows)) if rows.is_empty() => file.remove()?,
                Ok((file, rows)) => {
                    let mut part = OpenPart::new(id);
                    rows.into_iter().map(Finished::recovered).for_each(|row| part.push(row));
                    spool.parts.push(part);
                    spool.files.insert(id, file);
                }
                Err(error) if error.is_corrupt() => {
                    let aside = path.with_extension("corrupt");
                    tracing::error!(path = %path.display(), moved_to = %aside.display(),
                        "a spool file is damaged, its rows will be executed again");
                    std::fs::rename(&path, &aside).map_err(io("set aside a damaged file in"))?;
                }
                Err(error) => return Err(error),
            }
        }
        spool.parts.sort_by_key(|part| part.id);
        Ok(spool)
    }

    /// Takes over another slot's spool; its files are moved and renamed.
    pub(crate) fn adopt(&mut self, other: Self) -> Result<(), StorageError> {
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| StorageError::Io { path, action: "move", source }
        };
        for mut part in other.parts {
            let from = file_of(&other.dir, part.id);
            part.id.number = self.next_number();
            let to = file_of(&self.dir, part.id);
            std::fs::rename(&from, &to).map_err(io(&from))?;
            self.files.insert(part.id, Spool::open(&to)?.0);
            self.parts.push(part);
        }
        Ok(())
    }

    /// A number above those of all files.
    pub(crate) fn next_number(&self) -> u64 {
        self.files.keys().map(|id| id.number + 1).max().unwrap_or(0)
    }

    /// Starts the thread that owns the files. It ends when every handle is dropped.
    pub(crate) fn start(self, failed: DiskFailed) -> std::io::Result<SpoolHandle> {
        let (ops, mut queue) = mpsc::channel(QUEUE);
        let (slow, mut slow_queue) = mpsc::channel(QUEUE);
        let Self { dir, files, parts: _ } = self;
        let mut files: Files = files.into_iter().map(|(id, file)| (id, file.into())).collect();
        let fast_failed = failed.clone();
        std::thread::Builder::new().name("spool".to_owned()).spawn(move || {
            while let Some(op) = queue.blocking_recv() {
                if let Err(error) = work(&dir, &mut files, &slow, op) {
                    // The channel holds one message, and a second one would add nothing.
                    let _ = fast_failed.try_send(error.to_string());
                    return;
                }
            }
        })?;
        std::thread::Builder::new().name("spool-sync".to_owned()).spawn(move || {
            while let Some(op) = slow_queue.blocking_recv() {
                if let Err(error) = work_slowly(op) {
                    let _ = failed.try_send(error.to_string());
                    return;
                }
            }
        })?;
        Ok(SpoolHandle { ops })
    }
}

/// A part's file, and whether a pending fsync covers all of it.
struct SpoolFile {
    file: Spool,
    covered: Arc<AtomicBool>,
}

impl From<Spool> for SpoolFile {
    fn from(file: Spool) -> Self {
        Self { file, covered: Arc::default() }
    }
}

type Files = BTreeMap<PartId, SpoolFile>;

/// Operations that wait for the disk.
enum Slow {
    /// No caller waits for it. It does not cover rows that arrive after it begins.
    Cover {
        file: SpoolSync,
        covered: Arc<AtomicBool>,
    },
    Sync {
        file: SpoolSync,
        done: oneshot::Sender<()>,
    },
    Remove {
        file: Spool,
    },
}

fn work_slowly(op: Slow) -> Result<(), StorageError> {
    match op {
        Slow::Cover { file, covered } => {
            covered.store(false, Ordering::Release);
            file.sync()
        }
        Slow::Sync { file, done } => {
            file.sync()?;
            // The caller is gone if the slot has ended.
            let _ = done.send(());
            Ok(())
        }
        Slow::Remove { file } => file.remove(),
    }
}

fn work(
    dir: &Path,
    files: &mut Files,
    slow: &mpsc::Sender<Slow>,
    op: Op,
) -> Result<(), StorageError> {
    match op {
        Op::Append { part, row } => {
            let kept = match files.entry(part) {
                std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
                std::collections::btree_map::Entry::Vacant(entry) => {
                    entry.insert(Spool::open(&file_of(dir, part))?.0.into())
                }
            };
            kept.file.append(row.as_part_row())?;
            if !kept.covered.swap(true, Ordering::AcqRel) {
                let (file, covered) = (kept.file.start_sync()?, kept.covered.clone());
                // The channel is closed only if the disk failed, which the other thread has reported.
                let _ = slow.blocking_send(Slow::Cover { file, covered });
            }
            Ok(())
        }
        Op::Sync { part, done } => {
            match files.get_mut(&part) {
                // The channel is closed only if the disk failed, which the other thread has reported.
                Some(kept) => {
                    drop(slow.blocking_send(Slow::Sync { file: kept.file.start_sync()?, done }))
                }
                None => drop(done.send(())),
            }
            Ok(())
        }
        Op::Remove { part } => {
            if let Some(kept) = files.remove(&part) {
                let _ = slow.blocking_send(Slow::Remove { file: kept.file });
            }
            Ok(())
        }
    }
}

fn file_of(dir: &Path, part: PartId) -> PathBuf {
    dir.join(format!("{:010}-{:016}.spool", part.run, part.number))
}

fn part_of(path: &Path) -> Option<PartId> {
    let name = path.file_name()?.to_str()?.strip_suffix(".spool")?;
    let (run, number) = name.split_once('-')?;
    Some(PartId { run: run.parse().ok()?, number: number.parse().ok()? })
}

/// Room for one row in a slot's spool.
pub(crate) struct SpoolRoom<'a> {
    permit: mpsc::Permit<'a, Op>,
}

impl SpoolRoom<'_> {
    /// Appends a row of a part, before any later operation on the spool.
    pub(crate) fn append(self, part: PartId, row: Finished) {
        self.permit.send(Op::Append { part, row });
    }
}

impl SpoolHandle {
    /// Room to append a row; waits if the disk is behind.
    pub(crate) async fn room(&self) -> SpoolRoom<'_> {
        match self.ops.reserve().await {
            Ok(permit) => SpoolRoom { permit },
            Err(_) => std::future::pending().await,
        }
    }

    /// Returns when the part's rows are durable. It never returns if the disk failed: the process ends.
    pub(crate) async fn sync(&self, part: PartId) {
        let (done, synced) = oneshot::channel();
        self.send(Op::Sync { part, done }).await;
        if synced.await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Forgets a part: the leader has answered for it.
    pub(crate) async fn remove(&self, part: PartId) {
        self.send(Op::Remove { part }).await;
    }

    async fn send(&self, op: Op) {
        if self.ops.send(op).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Completion;

    fn row(row: u64) -> Finished {
        let completion = Completion {
            text: "t".into(),
            finish_reason: "stop".into(),
            prompt_tokens: 1,
            completion_tokens: 1,
            extra: String::new(),
        };
        Finished::new(5, row, &completion).unwrap()
    }

    #[tokio::test]
    async fn appended_rows_are_there_after_the_process_died() {
        let dir = tempfile::tempdir().unwrap();
        let (failed, mut failure) = mpsc::channel(1);
        let spool = SlotSpool::open(dir.path()).unwrap().start(failed.clone()).unwrap();
        let (one, two) = (PartId { run: 1, number: 0 }, PartId { run: 2, number: 1 });
        for (part, number) in [(one, 1), (one, 2), (two, 3), (one, 4)] {
            spool.room().await.append(part, row(number));
        }
        spool.sync(one).await;
        spool.remove(two).await;
        spool.sync(one).await;
        drop(spool);

        let again = SlotSpool::open(dir.path()).unwrap();
        assert_eq!(again.next_number(), 1);
        assert_eq!(again.parts.len(), 1);
        assert_eq!(again.parts[0].id, one);
        assert_eq!(again.parts[0].rows, [row(1), row(2), row(4)]);
        assert!(failure.try_recv().is_err());
    }

    #[tokio::test]
    async fn results_on_disk_are_for_this_user_alone() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let (failed, _failure) = mpsc::channel(1);
        let spool = SlotSpool::open(dir.path()).unwrap().start(failed).unwrap();
        let part = PartId { run: 1, number: 0 };
        spool.room().await.append(part, row(1));
        spool.sync(part).await;
        let files: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap).collect();
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].metadata().unwrap().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_disk_that_fails_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let (failed, mut failure) = mpsc::channel(1);
        let spool = SlotSpool::open(dir.path()).unwrap();
        std::fs::remove_dir(dir.path()).unwrap();
        std::fs::write(dir.path(), b"no directory").unwrap();
        let spool = spool.start(failed).unwrap();
        spool.room().await.append(PartId { run: 1, number: 0 }, row(1));
        assert!(failure.recv().await.is_some());
        std::fs::remove_file(dir.path()).unwrap();
    }

    #[test]
    fn a_damaged_file_is_set_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0000000001-0000000000000000.spool");
        let (mut file, _) = Spool::open(&path).unwrap();
        for number in 0..3 {
            file.append(row(number).as_part_row()).unwrap();
        }
        drop(file);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let spool = SlotSpool::open(dir.path()).unwrap();
        assert!(spool.parts.is_empty());
        assert!(path.with_extension("corrupt").exists());
    }
}
