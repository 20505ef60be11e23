//! Owns: the file `IDENTITY`, which names the owner of a directory's data.
//!
//! Invariant: it is written once, before anything else, and is never changed; a member with a different configuration
//! does not start.
//! Absent: the choice of ids; they are never reused.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::StorageError;
use crate::{decimal, durable};

const FORMAT_VERSION: u32 = 1;

/// The owner of a directory's data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The cluster.
    pub cluster_id: String,
    /// The member's number in that cluster.
    #[serde(with = "decimal")]
    pub member_id: u64,
    /// The member's name, as operators know it.
    pub name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    format_version: u32,
    identity: Identity,
    /// crc32 of the version and the identity's canonical JSON, in hexadecimal.
    crc32: String,
}

impl Identity {
    /// The identity in `root`, or `None` in a directory that has none yet.
    pub fn load(root: &Path) -> Result<Option<Self>, StorageError> {
        let path = Self::path(root);
        let Some(bytes) = durable::read_optional(&path)? else { return Ok(None) };
        let file: File = serde_json::from_slice(&bytes)
            .map_err(|error| StorageError::corrupt(&path, error.to_string()))?;
        if file.crc32 != checksum(&path, file.format_version, &file.identity)? {
            return Err(StorageError::corrupt(&path, "checksum mismatch"));
        }
        if file.format_version != FORMAT_VERSION {
            let what = format!("format version {} is unknown", file.format_version);
            return Err(StorageError::corrupt(&path, what));
        }
        Ok(Some(file.identity))
    }

    /// Writes this identity into `root`, which must have none, or the same one.
    pub fn create(&self, root: &Path) -> Result<(), StorageError> {
        if let Some(found) = Self::load(root)? {
            return found.check(root, self);
        }
        durable::create_dir_all(root)?;
        let path = Self::path(root);
        let crc32 = checksum(&path, FORMAT_VERSION, self)?;
        let file = File { format_version: FORMAT_VERSION, identity: self.clone(), crc32 };
        let mut bytes = serde_json::to_vec_pretty(&file).map_err(encode_error(&path))?;
        bytes.push(b'\n');
        durable::write_atomic(&path, &bytes)
    }

    /// Compares this identity, found in `root`, with the configured one.
    pub fn check(&self, root: &Path, expected: &Self) -> Result<(), StorageError> {
        let (id, expected_id) = (self.member_id.to_string(), expected.member_id.to_string());
        for (what, found, expected) in [
            ("cluster id", &self.cluster_id, &expected.cluster_id),
            ("member id", &id, &expected_id),
            ("member name", &self.name, &expected.name),
        ] {
            if found != expected {
                return Err(StorageError::Mismatch {
                    path: Self::path(root),
                    what,
                    found: found.clone(),
                    expected: expected.clone(),
                });
            }
        }
        Ok(())
    }

    /// The file's path below `root`.
    pub fn path(root: &Path) -> PathBuf {
        root.join("IDENTITY")
    }
}

fn checksum(path: &Path, version: u32, identity: &Identity) -> Result<String, StorageError> {
    let json = serde_json::to_vec(&(version, identity)).map_err(encode_error(path))?;
    Ok(format!("{:08x}", crc32fast::hash(&json)))
}

fn encode_error(path: &Path) -> impl FnOnce(serde_json::Error) -> StorageError {
    let path = path.to_owned();
    move |error| StorageError::Io { path, action: "encode", source: error.into() }
}
