//! Owns: comparing existing files with what a new export would write.
//!
//! Invariant: every byte of every file is compared. The first difference is reported by line or byte; an unexpected
//! file is a difference too.
//! Absent: repair.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use super::names::Names;
use super::output_sink::{OutputFile, OutputSink};
use crate::submission::error::BatchError;

/// A directory whose files are compared.
pub(super) struct Compare {
    dir: PathBuf,
    run: String,
}

/// A file to compare with the written bytes.
struct Expected {
    path: PathBuf,
    file: BufReader<File>,
    line: u64,
    bytes: u64,
    buffer: Vec<u8>,
}

/// The file differs.
#[derive(Debug, thiserror::Error)]
#[error("{}:{place} differs from the run's parts", path.display())]
struct Differs {
    path: PathBuf,
    place: String,
}

impl Compare {
    pub(super) fn new(dir: &Path, run: &str) -> Self {
        Self { dir: dir.to_owned(), run: run.to_owned() }
    }
}

/// The difference that caused an error.
pub(super) fn difference(run: &str, error: &io::Error) -> Option<BatchError> {
    let differs = error.get_ref()?.downcast_ref::<Differs>()?;
    Some(BatchError::Inconsistent { name: run.to_owned(), message: differs.to_string() })
}

impl OutputSink for Compare {
    fn begin(&mut self, name: &str) -> Result<Box<dyn OutputFile>, BatchError> {
        let path = self.dir.join(name);
        let file = File::open(&path).map_err(|source| BatchError::output(&path, source))?;
        let file = BufReader::with_capacity(1 << 20, file);
        Ok(Box::new(Expected { path, file, line: 1, bytes: 0, buffer: Vec::new() }))
    }

    fn publish(self: Box<Self>, names: &Names) -> Result<(), BatchError> {
        let entries =
            std::fs::read_dir(&self.dir).map_err(|source| BatchError::output(&self.dir, source))?;
        for entry in entries {
            let name = entry.map_err(|source| BatchError::output(&self.dir, source))?.file_name();
            if name.to_str().is_some_and(|name| names.is_stale(name)) {
                let message = format!("{} is not of this run", self.dir.join(name).display());
                return Err(BatchError::Inconsistent { name: self.run, message });
            }
        }
        Ok(())
    }
}

impl Expected {
    fn differs(&self) -> io::Error {
        // A table has no lines.
        let place = match self.path.extension().is_some_and(|ending| ending == "parquet") {
            true => format!(" byte {}", self.bytes),
            false => self.line.to_string(),
        };
        io::Error::other(Differs { path: self.path.clone(), place })
    }
}

impl Write for Expected {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.clear();
        (&mut self.file).take(bytes.len() as u64).read_to_end(&mut self.buffer)?;
        let same = self.buffer.iter().zip(bytes).take_while(|(a, b)| a == b).count();
        self.bytes += same as u64;
        self.line += bytes[..same].iter().filter(|byte| **byte == b'\n').count() as u64;
        if same == bytes.len() { Ok(same) } else { Err(self.differs()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl OutputFile for Expected {
    fn end(mut self: Box<Self>) -> io::Result<()> {
        if self.file.read(&mut [0])? == 0 { Ok(()) } else { Err(self.differs()) }
    }
}
