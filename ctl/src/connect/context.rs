//! Owns: the context file, a cluster's address and credentials in one file.
//!
//! Invariant: paths in it are relative to its own directory, and an unknown key is refused.
//! Absent: secrets; keys are named by path.

use std::path::{Path, PathBuf};

use rollout_batch::submission::config::BatchConfig;
use rollout_config::nearest;
use serde::{Deserialize, Serialize};

/// The cluster settings in a context file or a batch file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Context {
    /// Client addresses, host:port.
    pub endpoints: Vec<String>,
    /// The certificate authority of the members.
    pub ca_file: Option<PathBuf>,
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// Whether TLS is disabled.
    pub insecure_plaintext: bool,
    /// Addresses by member name, NAME=HOST:PORT.
    pub dial_map: Vec<String>,
    /// The namespace of names.
    pub namespace: Option<String>,
}

/// Why a context file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ContextError {
    /// It cannot be read.
    #[error("context {}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// No context has this name.
    #[error("there is no context {name:?}; known are {}", if known.is_empty() { "none" } else { known.as_str() })]
    Unknown {
        name: String,
        /// The existing names.
        known: String,
    },
    /// It is not TOML, or has an unknown key.
    #[error("context {}:{line}: {message}", path.display())]
    Syntax {
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        message: String,
    },
}

impl Context {
    /// Reads a context file; relative paths in it are made relative to its directory.
    pub fn read(path: &Path) -> Result<Self, ContextError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ContextError::Io { path: path.to_owned(), source })?;
        let mut context: Self = toml::from_str(&text).map_err(|error| ContextError::Syntax {
            path: path.to_owned(),
            line: nearest::line_of(&text, error.span()),
            message: nearest::explain_at(&text, error.span(), error.message()),
        })?;
        context.resolve(path.parent().unwrap_or(Path::new("")));
        Ok(context)
    }

    /// A batch file's cluster settings, which flags and environment override.
    pub fn of_batch_file(config: &BatchConfig) -> Self {
        let mut context = Self {
            endpoints: config.cluster.endpoints.clone(),
            ca_file: config.tls.ca_file.clone(),
            cert_file: config.tls.cert_file.clone(),
            key_file: config.tls.key_file.clone(),
            insecure_plaintext: config.tls.insecure_plaintext,
            dial_map: config.cluster.dial_map.clone(),
            namespace: config.cluster.namespace.clone(),
        };
        context.resolve(&config.dir);
        context
    }

    /// Makes relative paths relative to `dir`.
    pub fn resolve(&mut self, dir: &Path) {
        let files = [&mut self.ca_file, &mut self.cert_file, &mut self.key_file];
        for path in files.into_iter().flatten() {
            *path = dir.join(&path);
        }
    }

    /// This context, completed from a weaker one. All TLS settings come from a single one of the two.
    pub fn over(self, weaker: &Self) -> Self {
        let tls = self.has_security();
        let from = if tls { self.clone() } else { weaker.clone() };
        let filled = |strong: Vec<String>, weak: &Vec<String>| {
            if strong.is_empty() { weak.clone() } else { strong }
        };
        Self {
            endpoints: filled(self.endpoints, &weaker.endpoints),
            ca_file: from.ca_file,
            cert_file: from.cert_file,
            key_file: from.key_file,
            insecure_plaintext: from.insecure_plaintext,
            dial_map: filled(self.dial_map, &weaker.dial_map),
            namespace: self.namespace.or_else(|| weaker.namespace.clone()),
        }
    }

    fn has_security(&self) -> bool {
        self.insecure_plaintext
            || self.ca_file.is_some()
            || self.cert_file.is_some()
            || self.key_file.is_some()
    }
}
