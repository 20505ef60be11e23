//! Owns: where the files of an output are written.
//!
//! Invariant: a name appears only when all bytes of all files are durable. Files of an earlier output of the same kind
//! are removed, and a manifest exists only when all of its files do. Files of other owners stay (`owner`). Partial
//! files of a killed writer are removed when the next one begins and no other is writing there.
//! Absent: the contents of the files.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use super::atomic_file::{TEMPORARY, readable};
use super::manifest::Manifest;
use super::names::Names;
use super::owner::{Claim, Entry};
use crate::submission::error::BatchError;

/// A local directory for an output; a URL, which would become a directory of that name, is refused.
pub fn local_dir(text: &str) -> Result<PathBuf, String> {
    match text.contains("://") {
        true => {
            Err("is a URL; files are written to a local directory, and copied on from there".into())
        }
        false => Ok(PathBuf::from(text)),
    }
}

/// Where files are written or compared.
pub(super) trait OutputSink: Send {
    /// Begins a file of that name.
    fn begin(&mut self, name: &str) -> Result<Box<dyn OutputFile>, BatchError>;

    /// All files are complete: they become visible, the last one last.
    fn publish(self: Box<Self>, names: &Names) -> Result<(), BatchError>;
}

/// A file that is being written.
pub(super) trait OutputFile: Write + Send {
    /// All of it was written.
    fn end(self: Box<Self>) -> io::Result<()>;
}

pub(super) struct Directory {
    /// The claim under which it writes.
    claim: Claim,
    /// A lock shared by all writers of the directory, so that no process mistakes another's partial files for
    /// leftovers.
    _shared: File,
    files: Vec<(String, TempPath)>,
}

impl Directory {
    /// Files in the claimed directory, which is created. A directory of another owner is refused.
    pub(super) fn create(claim: &Claim) -> Result<Self, BatchError> {
        claim.check()?;
        let dir = claim.dir.as_path();
        let opened = fs::create_dir_all(dir).and_then(|()| File::open(dir));
        let shared = opened.map_err(|source| BatchError::output(dir, source))?;
        // Only a process that writes there alone can tell which files are leftovers. On a file system without locks,
        // leftovers stay.
        if shared.try_lock().is_ok() {
            remove_left_behind(dir).map_err(|source| BatchError::output(dir, source))?;
        }
        let _ = shared.lock_shared();
        Ok(Self { claim: claim.clone(), _shared: shared, files: Vec::new() })
    }

    /// The files as they will be named.
    fn entries(&self) -> io::Result<Vec<Entry>> {
        let entry = |(name, file): &(String, TempPath)| {
            Ok(Entry { name: name.clone(), bytes: fs::metadata(file)?.len() })
        };
        self.files.iter().map(entry).collect()
    }

    fn rename_all(self, names: &Names) -> io::Result<()> {
        let dir = self.claim.dir.as_path();
        // A foreign file of that name must not be removed.
        if let Ok(Some(_)) = Manifest::read(dir) {
            remove(&dir.join(Names::MANIFEST))?;
        }
        let directory = File::open(dir)?;
        for (name, file) in self.files {
            if name == Names::MANIFEST {
                directory.sync_all()?;
            }
            file.persist(dir.join(name)).map_err(|error| error.error)?;
        }
        for entry in fs::read_dir(dir)? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(|name| names.is_stale(name)) {
                remove(&dir.join(name))?;
            }
        }
        directory.sync_all()
    }
}

impl OutputSink for Directory {
    fn begin(&mut self, name: &str) -> Result<Box<dyn OutputFile>, BatchError> {
        let mut builder = tempfile::Builder::new();
        let made = readable(builder.prefix(TEMPORARY)).tempfile_in(&self.claim.dir);
        let (file, path) = made
            .map(NamedTempFile::into_parts)
            .map_err(|source| BatchError::output(&self.claim.dir, source))?;
        self.files.push((name.to_owned(), path));
        Ok(Box::new(BufWriter::with_capacity(1 << 20, file)))
    }

    fn publish(self: Box<Self>, names: &Names) -> Result<(), BatchError> {
        let claim = self.claim.clone();
        let entries = self.entries().map_err(|source| BatchError::output(&claim.dir, source))?;
        let record = claim.begin(entries)?;
        self.rename_all(names).map_err(|source| BatchError::output(&claim.dir, source))?;
        claim.end(record);
        Ok(())
    }
}

impl OutputFile for BufWriter<File> {
    fn end(self: Box<Self>) -> io::Result<()> {
        let file = self.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()
    }
}

fn remove_left_behind(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let random = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY));
        let ours =
            random.is_some_and(|r| r.len() == 6 && r.bytes().all(|b| b.is_ascii_alphanumeric()));
        if ours && entry.file_type()?.is_file() {
            remove(&entry.path())?;
        }
    }
    Ok(())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn leftovers_of_a_killed_writer_are_removed_and_other_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let claim = Claim::for_test(dir.path(), "r");
        let mut killed = Directory::create(&claim).unwrap();
        killed.begin("output.jsonl").unwrap().write_all(b"half").unwrap();
        // A killed process removes nothing, and its locks end with it.
        let left = std::mem::take(&mut killed.files);
        left.into_iter().for_each(|(_, file)| file.keep().map(drop).unwrap());
        assert_eq!(names(dir.path()).len(), 1);
        let other = Directory::create(&claim).unwrap();
        assert_eq!(names(dir.path()).len(), 1, "its writer may live");
        drop((killed, other));

        fs::create_dir(dir.path().join(".rollout-folder")).unwrap();
        for theirs in [".rollout-mynotes", ".rollout-a.b-cd", "output.jsonl"] {
            fs::write(dir.path().join(theirs), "mine").unwrap();
        }
        let claim = Claim { overwrite: true, ..claim };
        let mut one = Directory::create(&claim).unwrap();
        let theirs = [".rollout-a.b-cd", ".rollout-folder", ".rollout-mynotes", "output.jsonl"];
        assert_eq!(names(dir.path()), theirs);
        let _writing = one.begin("output.jsonl").unwrap();
        let _other = Directory::create(&claim).unwrap();
        assert_eq!(names(dir.path()).len(), theirs.len() + 1, "it is still being written");
    }
}
