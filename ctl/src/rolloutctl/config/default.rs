//! `rolloutctl config default`: a configuration file with the default of every key.
//!
//! Invariant: every key of the daemon is in it; one that has no default is a comment.
//! Absent: `[[engine]]` blocks, because there may be several and each kind has its own keys; `config schema` has them.

use rollout_config::Key;
use serde::Serialize;

use super::Daemon;
use crate::output::{self, Report};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Whose.
#[derive(Debug, clap::Args)]
pub(crate) struct DefaultArgs {
    /// Daemon whose defaults to print
    #[arg(long, value_enum, default_value = "coordinator")]
    of: Daemon,
}

#[derive(Debug, Serialize)]
struct Line {
    key: &'static str,
    /// In TOML; `null` if there is none.
    default: Option<&'static str>,
    required: bool,
    about: &'static str,
}

#[derive(Debug, Serialize)]
struct Defaults {
    of: &'static str,
    settings: Vec<Line>,
}

impl Defaults {
    fn new(daemon: Daemon) -> Self {
        let plain = daemon.keys().iter().filter(|key| !key.path.contains("[]"));
        let line = |key: &'static Key| Line {
            key: &key.path,
            default: Some(key.default.as_str()).filter(|default| !default.is_empty()),
            required: key.is_needed(),
            about: &key.about,
        };
        Self { of: daemon.program(), settings: plain.map(line).collect() }
    }
}

/// The section of a key, and its name there.
fn section(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

impl Report for Defaults {
    const KIND: &'static str = "ConfigDefault";

    /// The file.
    fn table(&self) -> String {
        // Keys without a section come before the first one.
        let mut sections = vec![""];
        for line in &self.settings {
            let of = section(line.key).0;
            if !sections.contains(&of) {
                sections.push(of);
            }
        }
        let mut text = format!("# {}: default values\n", self.of);
        for of in sections {
            if !of.is_empty() {
                text.push_str(&format!("\n[{of}]\n"));
            }
            for line in self.settings.iter().filter(|line| section(line.key).0 == of) {
                let name = section(line.key).1;
                let needed = if line.required { " (required)" } else { "" };
                text.push_str(&format!("# {}{needed}\n", line.about));
                match line.default {
                    Some(default) => text.push_str(&format!("{name} = {default}\n")),
                    None => text.push_str(&format!("# {name} =\n")),
                }
            }
        }
        text
    }
}

impl Verb for DefaultArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        output::emit(globals.format, &Defaults::new(self.of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_toml_with_every_key_and_its_default() {
        for daemon in [Daemon::Coordinator, Daemon::Worker] {
            let defaults = Defaults::new(daemon);
            let text = defaults.table();
            let table: toml::Table = text.parse().unwrap();
            for line in &defaults.settings {
                let (of, name) = section(line.key);
                assert!(text.contains(&format!("{name} =")), "{}", line.key);
                let mut at = Some(&table);
                for part in of.split('.').filter(|part| !part.is_empty()) {
                    at = at.and_then(|table| table.get(part)).and_then(toml::Value::as_table);
                }
                let found = at.and_then(|table| table.get(name));
                assert_eq!(found.is_some(), line.default.is_some(), "{}", line.key);
            }
        }
    }

    #[test]
    fn output_matches_the_golden_file() {
        crate::golden::report("config-default.txt", &Defaults::new(Daemon::Coordinator));
        crate::golden::report("config-default-worker.txt", &Defaults::new(Daemon::Worker));
    }
}
