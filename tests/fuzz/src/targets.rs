//! The fuzz targets: one file per target, with its function and its seeds. Mutated seeds reach deeper than random
//! bytes.

pub(crate) mod commands;
pub(crate) mod consensus;
pub(crate) mod credentials;
pub(crate) mod engine;
pub(crate) mod files;
pub(crate) mod images;
pub(crate) mod inputs;
pub(crate) mod objects;
pub(crate) mod records;
pub(crate) mod requests;
pub(crate) mod snapshots;
pub(crate) mod store;

use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The bytes of hexadecimal digits.
fn unhex(text: &str) -> Vec<u8> {
    let nibble = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let pair = |pair: &[u8]| Some(nibble(pair[0])? << 4 | nibble(*pair.get(1)?)?);
    text.as_bytes().chunks(2).map_while(pair).collect()
}

/// Appends bytes, preceded by their two-byte length.
fn push_sized(out: &mut Vec<u8>, bytes: &[u8]) {
    let length = u16::try_from(bytes.len()).expect("a seed is short");
    out.extend(length.to_le_bytes());
    out.extend(bytes);
}

/// Takes bytes that are preceded by their two-byte length.
fn take_sized<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
    *bytes = rest;
    Some(value)
}

/// Bytes preceded by the byte that selects their kind.
fn of(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![kind];
    all.extend(bytes);
    all
}

/// Writes a file of these bytes, replacing the thread's file of that name. The file is in memory if the system offers
/// that, so that a target does not wait for a disk.
fn file_of(name: &str, bytes: &[u8]) -> PathBuf {
    thread_local! {
        static DIR: TempDir = {
            let memory = Path::new("/dev/shm");
            let named = std::env::var_os("TMPDIR").is_some();
            let dir = match memory.is_dir() && !named {
                true => tempfile::tempdir_in(memory),
                false => tempfile::tempdir(),
            };
            dir.expect("a directory")
        };
    }
    let path = DIR.with(|dir| dir.path().join(name));
    std::fs::write(&path, bytes).expect("written");
    path
}
