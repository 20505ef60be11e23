//! Owns: the file of named contexts, `$XDG_CONFIG_HOME/rollout/contexts.toml`.
//!
//! Invariant: it is replaced as a whole or not at all. A context in it has absolute paths, because it is used from any
//! directory.
//! Absent: secrets; keys are named by path.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use rollout_config::nearest;
use serde::{Deserialize, Serialize};

use super::context::{Context, ContextError};

/// Contexts that one file may hold.
const CONTEXTS_MAX: usize = 256;

/// Named contexts, and the current one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Contexts {
    /// The context that is used if none is named.
    pub current: Option<String>,
    /// By name.
    pub context: BTreeMap<String, Context>,
}

impl Contexts {
    /// The path of the file; `None` if the environment has no home directory.
    pub fn path() -> Option<PathBuf> {
        let config = match std::env::var_os("XDG_CONFIG_HOME") {
            Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
            _ => Path::new(&std::env::var_os("HOME")?).join(".config"),
        };
        Some(config.join("rollout").join("contexts.toml"))
    }

    /// Reads the file, which need not exist.
    ///
    /// # Errors
    /// It cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, ContextError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(source) => return Err(ContextError::Io { path: path.to_owned(), source }),
        };
        let mut contexts: Self = toml::from_str(&text).map_err(|error| ContextError::Syntax {
            path: path.to_owned(),
            line: nearest::line_of(&text, error.span()),
            message: nearest::explain_at(&text, error.span(), error.message()),
        })?;
        let dir = path.parent().unwrap_or(Path::new(""));
        contexts.context.values_mut().for_each(|context| context.resolve(dir));
        Ok(contexts)
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// It cannot be written, or has too many contexts.
    pub fn write(&self, path: &Path) -> Result<(), ContextError> {
        let failed = |source| ContextError::Io { path: path.to_owned(), source };
        if self.context.len() > CONTEXTS_MAX {
            let text = format!("more than {CONTEXTS_MAX} contexts");
            return Err(failed(std::io::Error::other(text)));
        }
        let text = toml::to_string(self).map_err(|error| failed(std::io::Error::other(error)))?;
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(dir).map_err(failed)?;
        file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// The context of this name.
    ///
    /// # Errors
    /// There is none; lists the existing ones.
    pub fn find(&self, name: &str) -> Result<&Context, ContextError> {
        self.context.get(name).ok_or_else(|| ContextError::Unknown {
            name: name.to_owned(),
            known: self.context.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}

/// The context that `--context` names, a file or a name in the contexts file at `at`; without the flag, the current
/// context.
pub(super) fn load(wanted: Option<&Path>, at: Option<&Path>) -> Result<Context, ContextError> {
    let contexts = || match at {
        Some(path) => Contexts::read(path),
        None => Ok(Contexts::default()),
    };
    match wanted {
        Some(path) if is_file(path) => Context::read(path),
        Some(name) => Ok(contexts()?.find(&name.to_string_lossy())?.clone()),
        None => {
            let contexts = contexts()?;
            match &contexts.current {
                Some(name) => Ok(contexts.find(name)?.clone()),
                None => Ok(Context::default()),
            }
        }
    }
}

/// A context's name has no slash and no extension.
fn is_file(path: &Path) -> bool {
    path.extension().is_some() || path.components().count() != 1 || path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_are_kept_and_found_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rollout").join("contexts.toml");
        assert_eq!(Contexts::read(&path).unwrap(), Contexts::default());
        let prod = Context {
            endpoints: vec!["c1:7420".into()],
            ca_file: Some("/tls/ca.pem".into()),
            namespace: Some("team".into()),
            ..Context::default()
        };
        let context = BTreeMap::from([("prod".to_owned(), prod.clone())]);
        let contexts = Contexts { current: Some("prod".into()), context };
        contexts.write(&path).unwrap();
        let read = Contexts::read(&path).unwrap();
        assert_eq!(read, contexts);
        assert_eq!(read.find("prod").unwrap(), &prod);
        let error = read.find("staging").unwrap_err().to_string();
        assert!(error.contains("known are prod"), "{error}");
    }

    #[test]
    fn a_context_is_a_file_where_it_looks_like_one() {
        for file in ["a.toml", "dir/a", "/abs", "./prod"] {
            assert!(is_file(Path::new(file)), "{file}");
        }
        assert!(!is_file(Path::new("prod-that-is-no-file-here")));
    }
}
