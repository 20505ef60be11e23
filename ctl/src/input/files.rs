//! Owns: which files an input is: paths and globs, and their order.
//!
//! Invariant: the same tree gives the same list, sorted by path, each file once.
//! Absent: what is in them.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The most files of one input.
pub const FILES_MAX: usize = 100_000;

/// One file of an input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputFile {
    /// Its path, as it is named in messages.
    pub path: PathBuf,
    /// Its length when it was found.
    pub bytes: u64,
}

/// The file that means standard input.
pub const STDIN: &str = "-";

/// Why there is no list of files.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A path or glob finds nothing.
    #[error("input {pattern:?} matches no file (looked in {})", looked_in.display())]
    NoMatch {
        /// What was given.
        pattern: String,
        /// Where relative paths begin.
        looked_in: PathBuf,
    },
    /// A file or directory cannot be read.
    #[error("input {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is a directory, for example.
    #[error("input {}: not a file", path.display())]
    NotAFile {
        /// What was found.
        path: PathBuf,
    },
    /// More files than one input may have.
    #[error("the input has more than {FILES_MAX} files")]
    TooMany,
}

/// The files that paths and globs name, relative to `base`. `*`, `?`, `[a-z]` and `**` have their usual meaning.
pub fn find(patterns: &[String], base: &Path) -> Result<Vec<InputFile>, FilesError> {
    let mut paths = Vec::new();
    for pattern in patterns {
        let before = paths.len();
        if has_glob(pattern) {
            let path = Path::new(pattern);
            let root = if path.is_absolute() { PathBuf::from("/") } else { base.to_owned() };
            let parts: Vec<String> = path
                .components()
                .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
                .map(|part| part.as_os_str().to_string_lossy().into_owned())
                .collect();
            walk(&root, &parts, &mut paths)?;
        } else {
            let path = base.join(pattern);
            match fs::metadata(&path) {
                Ok(_) => paths.push(path),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(FilesError::Io { path, source }),
            }
        }
        if paths.len() == before {
            let looked_in = here(base).to_owned();
            return Err(FilesError::NoMatch { pattern: pattern.clone(), looked_in });
        }
    }
    paths.sort_unstable();
    paths.dedup();
    paths.into_iter().map(file_of).collect()
}

fn file_of(path: PathBuf) -> Result<InputFile, FilesError> {
    let metadata =
        fs::metadata(&path).map_err(|source| FilesError::Io { path: path.clone(), source })?;
    if metadata.is_dir() {
        return Err(FilesError::NotAFile { path });
    }
    Ok(InputFile { path, bytes: metadata.len() })
}

fn has_glob(pattern: &str) -> bool {
    pattern.contains(['*', '?', '['])
}

fn walk(dir: &Path, parts: &[String], found: &mut Vec<PathBuf>) -> Result<(), FilesError> {
    let Some((part, rest)) = parts.split_first() else { return Ok(()) };
    if part == "**" {
        walk(dir, rest, found)?;
        for (name, path, kind) in entries(dir)? {
            // Links are not followed here: they may lead back up.
            if kind.is_dir() && !name.starts_with('.') {
                walk(&path, parts, found)?;
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
    for (name, path, _) in entries(dir)? {
        if !matches(part, &name) {
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

fn push(path: PathBuf, found: &mut Vec<PathBuf>) -> Result<(), FilesError> {
    if found.len() >= FILES_MAX {
        return Err(FilesError::TooMany);
    }
    found.push(path);
    Ok(())
}

/// The parent of a bare file name is an empty path, which the system does not know.
fn here(dir: &Path) -> &Path {
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

/// Whether a name fits one component of a glob. A leading dot has to be written out.
fn matches(pattern: &str, name: &str) -> bool {
    if name.starts_with('.') && !pattern.starts_with('.') {
        return false;
    }
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and how much of the name it takes so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        if pattern.get(p) == Some(&'*') {
            star = Some((p, n));
            p += 1;
        } else if let Some(next) = one(&pattern, p, name[n]) {
            p = next;
            n += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            p = at + 1;
            n = taken + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

/// The place behind the pattern's element at `p`, where it accepts `c`.
fn one(pattern: &[char], p: usize, c: char) -> Option<usize> {
    match *pattern.get(p)? {
        '?' => Some(p + 1),
        '[' => {
            let negated = matches!(pattern.get(p + 1), Some('!' | '^'));
            let first = p + 1 + usize::from(negated);
            // A bracket right behind the opening one is itself meant.
            let end = (first + 1..pattern.len()).find(|at| pattern[*at] == ']')?;
            let (mut at, mut inside) = (first, false);
            while at < end {
                if at + 2 < end && pattern[at + 1] == '-' {
                    inside |= (pattern[at]..=pattern[at + 2]).contains(&c);
                    at += 3;
                } else {
                    inside |= pattern[at] == c;
                    at += 1;
                }
            }
            (inside != negated).then_some(end + 1)
        }
        plain => (plain == c).then_some(p + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        for (pattern, name) in [
            ("*.jsonl", "a.jsonl"),
            ("a*b*c", "aXbYbc"),
            ("?[a-c]", "xb"),
            ("[!x]1", "y1"),
            ("*", "x"),
            ("[]]", "]"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in
            [("*.jsonl", ".a.jsonl"), ("a*b", "abc"), ("[a-c]", "d"), ("?", ""), ("[!x]", "x")]
        {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn files_come_sorted_and_once() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.jsonl", "a.jsonl", "sub/deep/c.jsonl", "sub/d.txt"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let found = |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            find(&patterns, dir.path()).map(|files| {
                let relative = |file: InputFile| {
                    file.path.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned()
                };
                files.into_iter().map(relative).collect::<Vec<_>>()
            })
        };
        assert_eq!(found(&["*.jsonl", "a.jsonl"]).unwrap(), ["a.jsonl", "b.jsonl"]);
        assert_eq!(found(&["**/*.jsonl"]).unwrap(), ["a.jsonl", "b.jsonl", "sub/deep/c.jsonl"]);
        assert_eq!(found(&["sub/*/c.jsonl"]).unwrap(), ["sub/deep/c.jsonl"]);
        let error = found(&["a.jsonl", "none*.jsonl"]).unwrap_err().to_string();
        assert!(error.contains("none*.jsonl"), "{error}");
        assert!(matches!(found(&["sub"]), Err(FilesError::NotAFile { .. })));
    }
}
