//! Owns: the files of an input: paths, globs and URLs, and their order.
//!
//! Invariant: the same tree gives the same list, sorted by path, each file once, even if it is named twice.
//! Absent: the files' contents.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollout_storage::BlobError;

use super::object::InputObject;
use super::{local, object};

/// The most files of one input.
pub const FILES_MAX: usize = 100_000;

/// One file of an input.
#[derive(Clone)]
pub struct InputFile {
    /// Its path or URL, as messages show it.
    pub path: PathBuf,
    /// Its length when it was found.
    pub bytes: u64,
    /// Its object, if it is not in a file system.
    pub(super) object: Option<Arc<InputObject>>,
}

impl InputFile {
    /// A file of a file system.
    pub fn local(path: PathBuf, bytes: u64) -> Self {
        Self { path, bytes, object: None }
    }
}

impl fmt::Debug for InputFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} bytes)", self.path.display(), self.bytes)
    }
}

/// The file that means standard input.
pub const STDIN: &str = "-";

/// Why there is no list of files.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// A path or glob matches nothing.
    #[error("input {pattern:?} matches no file (looked in {})", looked_in.display())]
    NoMatch {
        /// The given pattern.
        pattern: String,
        /// The base of relative paths.
        looked_in: PathBuf,
    },
    /// A glob cannot be read.
    #[error(
        "input {pattern:?} is not a valid glob: {reason}; write [[] or [*] for the character itself"
    )]
    BadGlob {
        /// The given pattern, or the component that cannot be read.
        pattern: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A file or directory cannot be read.
    #[error("input {}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        source: io::Error,
    },
    /// A store cannot be listed.
    #[error("input {pattern:?}: {source}")]
    Store {
        /// The given pattern.
        pattern: String,
        source: BlobError,
    },
    /// For example, it is a directory.
    #[error("input {}: not a file", path.display())]
    NotAFile {
        /// The path that was found.
        path: PathBuf,
    },
    /// More files than one input may have.
    #[error(
        "the input has more than {FILES_MAX} files, the most that one may have: put more rows into each, or make several \
         runs of them"
    )]
    TooMany,
}

/// The files that paths, globs and URLs name; paths are relative to `base`. `*`, `?`, `[a-z]` and `**` have their
/// usual meaning; a `**` at the end matches every file below.
pub async fn find(patterns: &[String], base: &Path) -> Result<Vec<InputFile>, FilesError> {
    let mut files = Files::default();
    for pattern in patterns {
        let found = match pattern.split_once("://") {
            Some(("file", path)) => files_of(local::find(path, Path::new("/"))?)?,
            Some(_) => object::find(pattern).await?,
            None => files_of(local::find(pattern, base)?)?,
        };
        if found.is_empty() {
            let looked_in = local::here(base).to_owned();
            return Err(FilesError::NoMatch { pattern: pattern.clone(), looked_in });
        }
        for file in found {
            files.add(file)?;
        }
    }
    Ok(files.0.into_values().collect())
}

/// The local paths among these. A pattern that matches nothing is not an error here.
pub(crate) fn local(patterns: &[String], base: &Path) -> Result<BTreeSet<PathBuf>, FilesError> {
    let mut found = BTreeSet::new();
    for pattern in patterns {
        match pattern.split_once("://") {
            Some(("file", path)) => found.append(&mut local::find(path, Path::new("/"))?),
            Some(_) => {}
            None => found.append(&mut local::find(pattern, base)?),
        }
    }
    Ok(found)
}

fn files_of(paths: BTreeSet<PathBuf>) -> Result<Vec<InputFile>, FilesError> {
    paths.into_iter().map(local::file_of).collect()
}

/// Files by their paths.
#[derive(Default)]
struct Files(BTreeMap<PathBuf, InputFile>);

impl Files {
    /// A file that is already listed stays as it is.
    fn add(&mut self, file: InputFile) -> Result<(), FilesError> {
        self.0.entry(file.path.clone()).or_insert(file);
        if self.0.len() > FILES_MAX { Err(FilesError::TooMany) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn files_come_sorted_and_once() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.jsonl", "a.jsonl", "sub/deep/c.jsonl", "sub/d.txt"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        let found = async |patterns: &[&str]| {
            let patterns: Vec<String> = patterns.iter().map(|p| (*p).to_owned()).collect();
            find(&patterns, dir.path()).await.map(|files| {
                let relative = |file: InputFile| {
                    file.path.strip_prefix(dir.path()).unwrap().to_str().unwrap().to_owned()
                };
                files.into_iter().map(relative).collect::<Vec<_>>()
            })
        };
        assert_eq!(found(&["*.jsonl", "a.jsonl"]).await.unwrap(), ["a.jsonl", "b.jsonl"]);
        assert_eq!(
            found(&["**/*.jsonl"]).await.unwrap(),
            ["a.jsonl", "b.jsonl", "sub/deep/c.jsonl"]
        );
        assert_eq!(found(&["sub/*/c.jsonl"]).await.unwrap(), ["sub/deep/c.jsonl"]);
        assert_eq!(found(&["sub/**"]).await.unwrap(), ["sub/d.txt", "sub/deep/c.jsonl"]);
        assert_eq!(found(&["**/deep/**/**"]).await.unwrap(), ["sub/deep/c.jsonl"]);
        let url = format!("file://{}/a*.jsonl", dir.path().display());
        assert_eq!(found(&[&url, "a.jsonl"]).await.unwrap(), ["a.jsonl"]);
        let error = found(&["a.jsonl", "none*.jsonl"]).await.unwrap_err().to_string();
        assert!(error.contains("none*.jsonl"), "{error}");
        assert!(matches!(found(&["sub"]).await, Err(FilesError::NotAFile { .. })));
    }

    #[test]
    fn a_file_that_is_named_twice_counts_once_toward_the_limit() {
        let mut files = Files::default();
        let mut add = |n: usize| files.add(InputFile::local(PathBuf::from(n.to_string()), 1));
        for n in 0..FILES_MAX {
            add(n).unwrap();
        }
        add(0).unwrap();
        let refused = add(FILES_MAX).unwrap_err();
        assert!(matches!(refused, FilesError::TooMany));
        assert!(refused.to_string().contains("put more rows into each"), "{refused}");
    }

    #[tokio::test]
    async fn a_file_that_more_patterns_name_than_files_may_be_is_one_file() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a.jsonl"), "x").unwrap();
        let patterns = vec!["a.jsonl".to_owned(); FILES_MAX + 1];
        assert_eq!(find(&patterns, dir.path()).await.unwrap().len(), 1);
    }
}
