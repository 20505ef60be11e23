//! Owns: the list of files that make up an image, with lengths and blake3 digests.
//!
//! Invariant: files are in the order of their names, and all names are of the form that RocksDB gives its files, so a
//! manifest from a peer can never name a path outside the directory into which it is unpacked.
//! Absent: transfer, and the wire format.

use std::fs::File;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::error::StorageError;

/// The files of one image, by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Manifest {
    /// In the order of names, each name once.
    pub files: Vec<ManifestFile>,
}

/// One file of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestFile {
    /// Its name within the image's directory.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
    /// The blake3 digest of its bytes.
    pub blake3: [u8; 32],
}

impl Manifest {
    /// The sum of the files' lengths, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.len))
    }

    /// Reads and hashes the files in `dir`.
    pub(super) fn compute(dir: &Path) -> Result<Self, StorageError> {
        let mut files = Vec::new();
        for name in database_files(dir)? {
            files.push(describe(dir, name)?);
        }
        Ok(Self { files })
    }
}

/// The names of the files in `dir` that make up a database, in order, without logs and locks.
pub(super) fn database_files(dir: &Path) -> Result<Vec<String>, StorageError> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(StorageError::io(dir, "list"))? {
        let name = entry.map_err(StorageError::io(dir, "list"))?.file_name();
        let name = name.to_string_lossy();
        if is_database_file(&name) {
            names.push(name.into_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Whether a file of this name has a database's content.
pub(super) fn is_database_file(name: &str) -> bool {
    let numbered = |digits: &str| {
        !digits.is_empty() && digits.len() <= 20 && digits.bytes().all(|byte| byte.is_ascii_digit())
    };
    name == "CURRENT"
        || name.strip_prefix("MANIFEST-").is_some_and(numbered)
        || name.strip_prefix("OPTIONS-").is_some_and(numbered)
        || [".sst", ".log", ".blob"]
            .iter()
            .any(|suffix| name.strip_suffix(suffix).is_some_and(numbered))
}

fn describe(dir: &Path, name: String) -> Result<ManifestFile, StorageError> {
    let path = dir.join(&name);
    let mut hasher = blake3::Hasher::new();
    File::open(&path)
        .and_then(|file| hasher.update_reader(file).map(|_| ()))
        .map_err(StorageError::io(&path, "read"))?;
    Ok(ManifestFile { name, len: hasher.count(), blake3: *hasher.finalize().as_bytes() })
}
