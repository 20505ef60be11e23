//! Owns: small files of an output directory that are written as a whole: the run that it names, and its owner.
//!
//! Invariant: a reader sees all bytes of such a file or no file, and they are durable when the write returns.
//! Absent: files of results (`output_sink`).

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// The prefix of a temporary file's name; six letters and digits follow.
pub(super) const TEMPORARY: &str = ".rollout-";

/// Which existing file a write may replace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replace {
    /// One of the same name.
    Any,
    /// None: of several writers one succeeds.
    Nothing,
}

/// Writes a file in `dir`, which is created. Returns false if the name exists and may not be replaced.
pub fn write(dir: &Path, name: &str, text: &str, replace: Replace) -> io::Result<bool> {
    fs::create_dir_all(dir)?;
    let directory = File::open(dir)?;
    // A process that removes temporary files of killed writers holds this lock exclusively, so it cannot remove this
    // file.
    let _ = directory.lock_shared();
    let mut builder = tempfile::Builder::new();
    let mut file = readable(builder.prefix(TEMPORARY)).tempfile_in(dir)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    let path = dir.join(name);
    let written = match replace {
        Replace::Any => file.persist(&path).map(|_| true).map_err(|error| error.error),
        Replace::Nothing => match file.persist_noclobber(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(_) => create(&path, text),
        },
    };
    let written = written?;
    directory.sync_all()?;
    Ok(written)
}

/// For file systems without links, which cannot give a complete file a name only if the name is free.
fn create(path: &Path, text: &str) -> io::Result<bool> {
    match File::options().write(true).create_new(true).open(path) {
        Ok(mut file) => {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            Ok(true)
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    }
}

/// Results are not secret: the user's umask decides who may read them, as with any other file.
pub(super) fn readable<'b, 'p, 's>(
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_several_first_writers_wins_and_leaves_only_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("a/b");
        for (text, replace, written, kept) in [
            ("one", Replace::Nothing, true, "one"),
            ("two", Replace::Nothing, false, "one"),
            ("three", Replace::Any, true, "three"),
        ] {
            assert_eq!(write(&deep, "name", text, replace).unwrap(), written, "{text}");
            assert_eq!(fs::read_to_string(deep.join("name")).unwrap(), kept);
        }
        assert!(!create(&deep.join("name"), "four").unwrap());
        assert!(create(&deep.join("other"), "five").unwrap());
        assert_eq!(fs::read_dir(&deep).unwrap().count(), 2);
    }
}
