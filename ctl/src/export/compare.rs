//! Owns: comparing files with what they would be if they were written now.
//!
//! Invariant: every byte of both files is compared, and the first difference is named by its line.
//! Absent: mending.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use super::files::{COMPLETIONS, ERRORS};
use super::{SegmentOutput, Sink};
use crate::batch::error::BatchError;

/// Compares both files.
pub(super) struct Compare {
    run: String,
    completions: Expected,
    errors: Expected,
}

struct Expected {
    path: PathBuf,
    /// None where the file is missing.
    file: Option<BufReader<File>>,
    line: u64,
    buffer: Vec<u8>,
}

impl Compare {
    pub(super) fn open(dir: &Path, run: &str) -> Result<Self, BatchError> {
        Ok(Self {
            run: run.to_owned(),
            completions: Expected::open(dir.join(COMPLETIONS))?,
            errors: Expected::open(dir.join(ERRORS))?,
        })
    }

    fn differs(run: &str, path: &Path, line: u64) -> BatchError {
        let message = format!("{}:{line} differs from the run's parts", path.display());
        BatchError::Inconsistent { name: run.to_owned(), message }
    }
}

impl Expected {
    fn open(path: PathBuf) -> Result<Self, BatchError> {
        let file = match File::open(&path) {
            Ok(file) => Some(BufReader::with_capacity(1 << 20, file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(BatchError::Output { path, source }),
        };
        Ok(Self { path, file, line: 1, buffer: Vec::new() })
    }

    /// True where the file goes on with `text`.
    fn goes_on_with(&mut self, text: &str) -> io::Result<bool> {
        if text.is_empty() {
            return Ok(true);
        }
        self.buffer.clear();
        if let Some(file) = &mut self.file {
            file.take(text.len() as u64).read_to_end(&mut self.buffer)?;
        }
        let same = self.buffer.iter().zip(text.as_bytes()).take_while(|(a, b)| a == b).count();
        let lines = text.as_bytes()[..same].iter().filter(|byte| **byte == b'\n').count();
        self.line += lines as u64;
        Ok(same == text.len())
    }

    fn at_end(&mut self) -> io::Result<bool> {
        match &mut self.file {
            Some(file) => Ok(file.read(&mut [0])? == 0),
            None => Ok(true),
        }
    }
}

impl Sink for Compare {
    fn segment(&mut self, output: &SegmentOutput) -> Result<(), BatchError> {
        for (file, text) in
            [(&mut self.completions, &output.completions), (&mut self.errors, &output.errors)]
        {
            let same = file
                .goes_on_with(text)
                .map_err(|source| BatchError::Output { path: file.path.clone(), source })?;
            if !same {
                return Err(Self::differs(&self.run, &file.path, file.line));
            }
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<(), BatchError> {
        let missing = self.completions.file.is_none();
        for file in [&mut self.completions, &mut self.errors] {
            let end = file
                .at_end()
                .map_err(|source| BatchError::Output { path: file.path.clone(), source })?;
            if !end {
                return Err(Self::differs(&self.run, &file.path, file.line));
            }
        }
        match missing {
            false => Ok(()),
            true => Err(BatchError::Output {
                path: self.completions.path,
                source: io::ErrorKind::NotFound.into(),
            }),
        }
    }
}
