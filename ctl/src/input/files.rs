//! Owns: which files an input is: paths, globs and URLs, and their order.
//!
//! Invariant: the same tree gives the same list, sorted by path, each file once.
//! Absent: what is in them.

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
    /// Its path or URL, as it is named in messages.
    pub path: PathBuf,
    /// Its length when it was found.
    pub bytes: u64,
    /// Where it is, if not in a file system.
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
    /// A store cannot be listed.
    #[error("input {pattern:?}: {source}")]
    Store {
        /// What was given.
        pattern: String,
        /// The store's answer.
        source: BlobError,
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

/// The files that paths, globs and URLs name; paths are relative to `base`. `*`, `?`, `[a-z]` and `**` have their usual
/// meaning.
pub async fn find(patterns: &[String], base: &Path) -> Result<Vec<InputFile>, FilesError> {
    let (mut paths, mut files) = (Vec::new(), Vec::new());
    for pattern in patterns {
        let before = paths.len() + files.len();
        match pattern.split_once("://") {
            Some(("file", path)) => local::find(path, Path::new("/"), &mut paths)?,
            Some(_) => object::find(pattern, &mut files).await?,
            None => local::find(pattern, base, &mut paths)?,
        }
        if paths.len() + files.len() == before {
            let looked_in = local::here(base).to_owned();
            return Err(FilesError::NoMatch { pattern: pattern.clone(), looked_in });
        }
        if paths.len() + files.len() > FILES_MAX {
            return Err(FilesError::TooMany);
        }
    }
    for path in paths {
        files.push(local::file_of(path)?);
    }
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
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
        let url = format!("file://{}/a*.jsonl", dir.path().display());
        assert_eq!(found(&[&url, "a.jsonl"]).await.unwrap(), ["a.jsonl"]);
        let error = found(&["a.jsonl", "none*.jsonl"]).await.unwrap_err().to_string();
        assert!(error.contains("none*.jsonl"), "{error}");
        assert!(matches!(found(&["sub"]).await, Err(FilesError::NotAFile { .. })));
    }
}
