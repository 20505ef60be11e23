//! Owns: local files that paths and globs name.
//!
//! Invariant: links to files are followed; links to directories below a `**` are not.
//! Absent: the files' contents.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use super::files::{FILES_MAX, FilesError, InputFile};
use super::glob::{Glob, has_glob};

/// The paths that a path or glob names, relative to `base`, each once.
pub(super) fn find(pattern: &str, base: &Path) -> Result<BTreeSet<PathBuf>, FilesError> {
    let mut paths = BTreeSet::new();
    if has_glob(pattern) {
        let path = Path::new(pattern);
        let root = if path.is_absolute() { PathBuf::from("/") } else { base.to_owned() };
        let parts: Vec<String> = path
            .components()
            .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
            .map(|part| part.as_os_str().to_string_lossy().into_owned())
            .collect();
        walk(&root, &parts, &mut paths)?;
        return Ok(paths);
    }
    let path = base.join(pattern);
    match fs::metadata(&path) {
        Ok(_) => push(path, &mut paths)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(FilesError::Io { path, source }),
    }
    Ok(paths)
}

/// A file with its length.
pub(super) fn file_of(path: PathBuf) -> Result<InputFile, FilesError> {
    let metadata =
        fs::metadata(&path).map_err(|source| FilesError::Io { path: path.clone(), source })?;
    if metadata.is_dir() {
        return Err(FilesError::NotAFile { path });
    }
    Ok(InputFile::local(path, metadata.len()))
}

fn walk(dir: &Path, parts: &[String], found: &mut BTreeSet<PathBuf>) -> Result<(), FilesError> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    if part == "**" {
        walk(dir, rest, found)?;
        for (name, path, kind) in entries(dir)? {
            if name.starts_with('.') {
                continue;
            }
            // Links to directories are not followed here, because they may form a cycle.
            if kind.is_dir() {
                walk(&path, parts, found)?;
            } else if rest.is_empty() && fs::metadata(&path).is_ok_and(|at| at.is_file()) {
                // At the end it matches every file below.
                push(path, found)?;
            }
        }
        return Ok(());
    }
    if !has_glob(part) {
        let path = dir.join(part);
        return match (rest.is_empty(), fs::metadata(&path)) {
            (_, Err(_)) => Ok(()),
            (true, Ok(_)) => push(path, found),
            (false, Ok(metadata)) if metadata.is_dir() => walk(&path, rest, found),
            (false, Ok(_)) => Ok(()),
        };
    }
    let glob = Glob::parse(part)?;
    for (name, path, _) in entries(dir)? {
        if !glob.matches(&name) {
            continue;
        }
        match fs::metadata(&path) {
            Ok(metadata) if rest.is_empty() && metadata.is_file() => push(path, found)?,
            Ok(metadata) if !rest.is_empty() && metadata.is_dir() => walk(&path, rest, found)?,
            _ => {}
        }
    }
    Ok(())
}

fn push(path: PathBuf, found: &mut BTreeSet<PathBuf>) -> Result<(), FilesError> {
    found.insert(path);
    if found.len() > FILES_MAX { Err(FilesError::TooMany) } else { Ok(()) }
}

/// The parent of a bare file name is an empty path, which the system does not accept.
pub(super) fn here(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}

fn entries(dir: &Path) -> Result<Vec<(String, PathBuf, fs::FileType)>, FilesError> {
    let failed = |source| FilesError::Io { path: dir.to_owned(), source };
    let listed = match fs::read_dir(here(dir)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut entries = Vec::new();
    for entry in listed {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        entries.push((entry.file_name().to_string_lossy().into_owned(), entry.path(), kind));
    }
    Ok(entries)
}
