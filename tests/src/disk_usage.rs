//! The files below a directory, and their size.
//!
//! *Invariant:* a file with several names (a snapshot's hard links) counts once.
//! Absent: allocated blocks, because a database preallocates its journal whatever its contents; and RocksDB's own
//! logs (`LOG`, `LOG.old.*`), which have a bound of their own and do not grow with the data.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Every file below a directory, with its length. Files removed meanwhile are left out.
pub fn files(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut all = Vec::new();
    walk(dir, &mut |path, meta| all.push((path.to_owned(), meta.len())));
    all
}

/// The bytes below a directory, by the names of its direct entries, without RocksDB's own logs.
pub fn weight(dir: &Path) -> BTreeMap<String, u64> {
    let mut by_inode: BTreeMap<u64, (String, u64)> = BTreeMap::new();
    walk(dir, &mut |path, meta| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name == "LOG" || name.starts_with("LOG.old.") {
            return;
        }
        let below = path.strip_prefix(dir).ok().and_then(|path| path.iter().next());
        let top = below.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        by_inode.entry(meta.ino()).or_insert((top, meta.len()));
    });
    let mut by_name = BTreeMap::new();
    for (top, bytes) in by_inode.into_values() {
        *by_name.entry(top).or_default() += bytes;
    }
    by_name
}

fn walk(dir: &Path, each: &mut impl FnMut(&Path, &std::fs::Metadata)) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        match entry.metadata() {
            Ok(meta) if meta.is_dir() => walk(&entry.path(), each),
            Ok(meta) => each(&entry.path(), &meta),
            Err(_) => {} // Gone meanwhile.
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_two_names_weighs_once() {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in [("log", 100), ("image", 30)] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
            std::fs::write(dir.path().join(name).join("file"), vec![0; bytes]).unwrap();
        }
        std::fs::hard_link(dir.path().join("image/file"), dir.path().join("image/link")).unwrap();
        for diary in ["LOG", "LOG.old.17"] {
            std::fs::write(dir.path().join("log").join(diary), [0; 1000]).unwrap();
        }
        std::fs::write(dir.path().join("identity"), b"c1").unwrap();
        let weight = weight(dir.path());
        let expected = [("identity", 2), ("image", 30), ("log", 100)];
        assert_eq!(weight, expected.map(|(name, bytes)| (name.to_owned(), bytes)).into());
        assert_eq!(files(dir.path()).len(), 6);
    }
}
