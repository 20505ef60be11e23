//! Reading the file's text.
//!
//! Invariant: a file may use a field only if it is a key of its table, and for an engine, of its kind.

use std::path::PathBuf;

use toml::{Table, Value};

use super::Config;
use crate::key::{self, Key};
use crate::nearest::{self, nearest};
use crate::{SettingError, bounds, former};

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not TOML, or a value has the wrong type.
    #[error("{origin}: {message}")]
    Parse {
        /// The file, or the origin of the text.
        origin: String,
        /// The position and the problem.
        message: String,
    },
    #[error("{origin}: unknown key {key}{}", meant(nearest.as_deref(), allowed))]
    UnknownKey {
        /// The file, or the origin of the text.
        origin: String,
        /// The key with its path.
        key: String,
        /// The most similar known key.
        nearest: Option<String>,
        /// The known keys of its table.
        allowed: Vec<String>,
    },
    /// A value is missing or out of bounds.
    #[error(transparent)]
    Invalid(#[from] SettingError),
}

impl ConfigError {
    /// A value that is missing or out of bounds: its key, what is wrong, and what would be valid.
    pub fn invalid(key: &str, reason: impl Into<String>) -> Self {
        Self::Invalid(bounds::SettingError::new(key, reason))
    }
}

fn meant(nearest: Option<&str>, allowed: &[String]) -> String {
    match nearest {
        Some(nearest) => format!(", did you mean {nearest}?"),
        None => format!("; known are {}", allowed.join(", ")),
    }
}

impl Config {
    /// Parses a file's text, without the checks that need the complete configuration.
    ///
    /// # Errors
    /// Text that is not TOML, an unknown key, a value of a wrong type.
    pub fn parse(text: &str, origin: &str) -> Result<Self, ConfigError> {
        let parse = |error: toml::de::Error| {
            let line = nearest::line_of(text, error.span());
            let why = nearest::explain_at(text, error.span(), error.message());
            ConfigError::Parse { origin: origin.to_owned(), message: format!("line {line}: {why}") }
        };
        let mut table: Table = text.parse().map_err(parse)?;
        former::rename(&mut table).map_err(|error| ConfigError::Parse {
            origin: origin.to_owned(),
            message: error.to_string(),
        })?;
        check_keys(&table, origin)?;
        toml::from_str(text).map_err(parse)
    }
}

/// Refuses the first unknown key.
fn check_keys(file: &Table, origin: &str) -> Result<(), ConfigError> {
    let keys = key::keys_of::<Config>();
    let mut root: Vec<&str> = keys.iter().map(Key::root).collect();
    root.dedup();
    check_table(file, "", &root, origin)?;
    for (name, value) in file {
        let of_section = |prefix: &str, kind: Option<&str>| {
            let own = keys.iter().filter(|key| kind.is_none_or(|kind| key.has(kind)));
            own.filter_map(|key| key.path.strip_prefix(prefix)).collect::<Vec<_>>()
        };
        match value {
            Value::Table(block) => {
                let allowed = of_section(&format!("{name}."), None);
                // A map has no keys of its own.
                if !allowed.is_empty() {
                    check_table(block, &format!("{name}."), &allowed, origin)?;
                }
            }
            Value::Array(blocks) => {
                for block in blocks.iter().filter_map(Value::as_table) {
                    let kind = block.get("kind").and_then(Value::as_str).unwrap_or_default();
                    let allowed = of_section(&format!("{name}[]."), Some(kind));
                    check_table(block, &format!("{name}."), &allowed, origin)?;
                }
            }
            _ => {}
        }
    }
    Ok(())
}

fn check_table(
    table: &Table,
    prefix: &str,
    allowed: &[&str],
    origin: &str,
) -> Result<(), ConfigError> {
    let Some(key) = table.keys().find(|key| !allowed.contains(&key.as_str())) else {
        return Ok(());
    };
    let nearest = nearest(key, allowed.iter().copied()).map(|allowed| format!("{prefix}{allowed}"));
    let key = format!("{prefix}{key}");
    let allowed = allowed.iter().map(|allowed| (*allowed).to_owned()).collect();
    Err(ConfigError::UnknownKey { origin: origin.to_owned(), key, nearest, allowed })
}
