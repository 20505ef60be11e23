//! A configuration file, and its values by the paths of the keys.

use std::path::{Path, PathBuf};

use rollout_config::{former, nearest};
use toml::{Table, Value};

use crate::rolloutctl::Failure;

/// A file that was read.
#[derive(Debug)]
pub(in crate::rolloutctl) struct File {
    pub(in crate::rolloutctl) path: PathBuf,
    pub(in crate::rolloutctl) table: Table,
}

impl File {
    /// Reads and parses it. Sections with a former name get the present one.
    ///
    /// # Errors
    /// Exit status 4 if the file does not exist; 1 if it is not TOML, with the line, or has a section twice.
    pub(in crate::rolloutctl) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            let text = format!("cannot read {}: {error}", path.display());
            match error.kind() {
                std::io::ErrorKind::NotFound => Failure::not_found(text),
                _ => Failure::failed(text),
            }
        })?;
        let mut table: Table = text.parse().map_err(|error: toml::de::Error| {
            let line = nearest::line_of(&text, error.span());
            Failure::failed(format!("{}:{line}: {}", path.display(), error.message()))
        })?;
        former::rename(&mut table)
            .map_err(|error| Failure::failed(format!("{}: {error}", path.display())))?;
        Ok(Self { path: path.to_owned(), table })
    }

    /// The value of a key outside of `[[engine]]`.
    pub(in crate::rolloutctl) fn get(&self, path: &str) -> Option<&Value> {
        get(&self.table, path)
    }

    /// The `[[engine]]` blocks.
    pub(super) fn engines(&self) -> Vec<&Table> {
        let blocks = self.table.get("engine").and_then(Value::as_array);
        blocks.into_iter().flatten().filter_map(Value::as_table).collect()
    }
}

/// The value at a path of at most one section.
pub(super) fn get<'a>(table: &'a Table, path: &str) -> Option<&'a Value> {
    match path.split_once('.') {
        Some((section, key)) => table.get(section)?.as_table()?.get(key),
        None => table.get(path),
    }
}
