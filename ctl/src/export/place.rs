//! Owns: where the files of an output are written.
//!
//! Invariant: a name appears only when all bytes of all files are durable; what an earlier output of the same kind left
//! there goes, and a manifest is there only when all of its files are. What somebody else wrote there stays.
//! Absent: what is in them.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::{NamedTempFile, TempPath};

use super::manifest::Manifest;
use super::names::Names;
use crate::batch::error::BatchError;

/// A directory of this machine, as it is named for an output; a URL, which would become a directory called so, is refused.
pub fn local_dir(text: &str) -> Result<PathBuf, String> {
    match text.contains("://") {
        true => {
            Err("is a URL; files are written to a local directory, and copied on from there".into())
        }
        false => Ok(PathBuf::from(text)),
    }
}

/// Where files are written, or compared.
pub(super) trait Place: Send {
    /// Begins a file of that name.
    fn begin(&mut self, name: &str) -> Result<Box<dyn Writing>, BatchError>;

    /// All files are there: they become visible, the last one last.
    fn publish(self: Box<Self>, names: &Names) -> Result<(), BatchError>;
}

/// A file that is being written.
pub(super) trait Writing: Write + Send {
    /// All of it was written.
    fn end(self: Box<Self>) -> io::Result<()>;
}

/// A directory.
pub(super) struct Directory {
    dir: PathBuf,
    files: Vec<(String, TempPath)>,
}

impl Directory {
    /// Files in `dir`, which is created.
    pub(super) fn create(dir: &Path) -> Result<Self, BatchError> {
        fs::create_dir_all(dir).map_err(|source| failed(dir, source))?;
        Ok(Self { dir: dir.to_owned(), files: Vec::new() })
    }

    fn rename_all(self, names: &Names) -> io::Result<()> {
        // A file of that name which is something else is not ours to remove.
        if let Ok(Some(_)) = Manifest::read(&self.dir) {
            remove(&self.dir.join(Names::MANIFEST))?;
        }
        let directory = File::open(&self.dir)?;
        for (name, file) in self.files {
            if name == Names::MANIFEST {
                directory.sync_all()?;
            }
            file.persist(self.dir.join(name)).map_err(|error| error.error)?;
        }
        for entry in fs::read_dir(&self.dir)? {
            let name = entry?.file_name();
            if name.to_str().is_some_and(|name| names.is_stale(name)) {
                remove(&self.dir.join(name))?;
            }
        }
        directory.sync_all()
    }
}

impl Place for Directory {
    fn begin(&mut self, name: &str) -> Result<Box<dyn Writing>, BatchError> {
        let mut builder = tempfile::Builder::new();
        let made = readable(builder.prefix(".rollout-")).tempfile_in(&self.dir);
        let (file, path) =
            made.map(NamedTempFile::into_parts).map_err(|source| failed(&self.dir, source))?;
        self.files.push((name.to_owned(), path));
        Ok(Box::new(BufWriter::with_capacity(1 << 20, file)))
    }

    fn publish(self: Box<Self>, names: &Names) -> Result<(), BatchError> {
        let dir = self.dir.clone();
        self.rename_all(names).map_err(|source| failed(&dir, source))
    }
}

impl Writing for BufWriter<File> {
    fn end(self: Box<Self>) -> io::Result<()> {
        let file = self.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Results are no secrets: the user's umask decides who reads them, as with any other file.
fn readable<'b, 'p, 's>(
    builder: &'b mut tempfile::Builder<'p, 's>,
) -> &'b mut tempfile::Builder<'p, 's> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666))
    }
    #[cfg(not(unix))]
    builder
}

pub(super) fn failed(path: &Path, source: io::Error) -> BatchError {
    BatchError::Output { path: path.to_owned(), source }
}
