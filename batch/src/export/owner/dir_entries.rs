//! Owns: the contents of an output directory, and the location of other files relative to it.
//!
//! Invariant: a directory that is moved together with a batch file sees it at the same place.
//! Absent: which run owns the files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::BatchFile;
use crate::input::files;

/// How many names a list shows.
const LISTED: usize = 3;

/// The names in a directory and the lengths of files, in order; hidden ones are omitted. Anything that is not a file
/// has no length.
pub(super) fn entries(dir: &Path) -> io::Result<Vec<(String, Option<u64>)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        match entry.metadata() {
            _ if name.starts_with('.') => {}
            Ok(at) => found.push((name, at.is_file().then_some(at.len()))),
            // Another writer of the same output has removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    found.sort();
    Ok(found)
}

/// The names in `dir` that are, or lead to, a batch file or its input.
pub(super) fn of_batch(dir: &Path, batch: &BatchFile) -> io::Result<BTreeSet<String>> {
    let dir = dir.canonicalize()?;
    let input = files::local(&batch.input, &batch.base).map_err(io::Error::other)?;
    let mut parents: BTreeMap<PathBuf, Option<PathBuf>> = BTreeMap::new();
    let mut names = BTreeSet::new();
    for path in input.iter().chain([&batch.path]) {
        let parent = parent_of(path);
        let whole = parents.entry(parent.to_owned()).or_insert_with(|| parent.canonicalize().ok());
        // A file that has gone meanwhile does not matter.
        let (Some(parent), Some(name)) = (whole, path.file_name()) else { continue };
        let path = parent.join(name);
        let first = path.strip_prefix(&dir).ok().and_then(|below| below.components().next());
        names.extend(first.map(|name| name.as_os_str().to_string_lossy().into_owned()));
    }
    Ok(names)
}

/// The path of a file relative to a directory. Links on the way are followed, the file itself is not.
pub(super) fn from(dir: &Path, file: &Path) -> io::Result<String> {
    let dir = dir.canonicalize()?;
    let file = parent_of(file).canonicalize()?.join(file.file_name().unwrap_or_default());
    let (dir, file): (Vec<_>, Vec<_>) = (dir.components().collect(), file.components().collect());
    let same = dir.iter().zip(&file).take_while(|(a, b)| a == b).count();
    let up = dir[same..].iter().map(|_| Component::ParentDir);
    let path: PathBuf = up.chain(file[same..].iter().copied()).collect();
    Ok(path.to_string_lossy().into_owned())
}

/// The parent of a bare file name is an empty path, which the system does not accept.
fn parent_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The first names, and the number of others.
pub(super) fn list(names: &[&str]) -> String {
    let listed = names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => listed,
        more => format!("{listed} and {more} more"),
    }
}
