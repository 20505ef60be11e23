//! Owns: completions.jsonl and errors.jsonl.
//!
//! Invariant: a name appears only when all of its bytes are durable; errors.jsonl is there only where a row failed for
//! good, and an older one goes.
//! Absent: what a line says.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use super::{SegmentOutput, Sink};
use crate::batch::error::BatchError;

/// Completions, in the order of the input.
pub const COMPLETIONS: &str = "completions.jsonl";
/// Rows that failed for good, in the order of the input.
pub const ERRORS: &str = "errors.jsonl";

/// Writes both files.
#[derive(Debug)]
pub struct Files {
    dir: PathBuf,
    completions: BufWriter<NamedTempFile>,
    errors: BufWriter<NamedTempFile>,
    failed: u64,
}

impl Files {
    /// Files in `dir`, which is created.
    pub fn create(dir: &Path) -> Result<Self, BatchError> {
        let make = || {
            fs::create_dir_all(dir)?;
            let file = || {
                let mut builder = tempfile::Builder::new();
                readable(builder.prefix(".rollout-")).tempfile_in(dir)
            };
            Ok((file()?, file()?))
        };
        let (completions, errors) = make().map_err(|source| failed(dir, source))?;
        Ok(Self {
            dir: dir.to_owned(),
            completions: BufWriter::with_capacity(1 << 20, completions),
            errors: BufWriter::new(errors),
            failed: 0,
        })
    }

    fn publish(self) -> io::Result<()> {
        let durable = |writer: BufWriter<NamedTempFile>| {
            let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.as_file().sync_all()?;
            Ok::<_, io::Error>(file)
        };
        let (completions, errors) = (durable(self.completions)?, durable(self.errors)?);
        completions.persist(self.dir.join(COMPLETIONS)).map_err(|error| error.error)?;
        let path = self.dir.join(ERRORS);
        if self.failed > 0 {
            errors.persist(&path).map_err(|error| error.error)?;
        } else if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        File::open(&self.dir)?.sync_all()
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

impl Sink for Files {
    fn segment(&mut self, output: &SegmentOutput) -> Result<(), BatchError> {
        self.failed += output.failed;
        self.completions
            .write_all(output.completions.as_bytes())
            .and_then(|()| self.errors.write_all(output.errors.as_bytes()))
            .map_err(|source| failed(&self.dir, source))
    }

    fn finish(self: Box<Self>) -> Result<(), BatchError> {
        let dir = self.dir.clone();
        self.publish().map_err(|source| failed(&dir, source))
    }
}

fn failed(dir: &Path, source: io::Error) -> BatchError {
    BatchError::Output { path: dir.to_owned(), source }
}
