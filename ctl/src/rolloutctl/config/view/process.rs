//! A daemon's flags and environment, as given here or as read from a running process.

use std::collections::BTreeMap;

use crate::rolloutctl::Failure;

/// Flags by name, each with its values in order, and variables.
#[derive(Debug, Clone, Default)]
pub(super) struct Started {
    pub(super) flags: BTreeMap<String, Vec<String>>,
    pub(super) env: BTreeMap<String, String>,
}

impl Started {
    /// These flags, and the environment of this process.
    pub(super) fn here(flags: &[String]) -> Self {
        // Unrelated variables may not be valid text.
        let env = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        Self { flags: parse(flags), env: env.collect() }
    }

    /// The flags and environment of a running process.
    ///
    /// # Errors
    /// Exit status 4 if there is no such process, 1 if it belongs to another user.
    pub(super) fn of_process(pid: u32) -> Result<Self, Failure> {
        let read = |what: &str| {
            let path = format!("/proc/{pid}/{what}");
            let bytes = std::fs::read(&path).map_err(|error| {
                let text = format!("cannot read {path}: {error}");
                match error.kind() {
                    std::io::ErrorKind::NotFound => Failure::not_found(text),
                    _ => Failure::failed(text),
                }
            })?;
            let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
            Ok(parts.map(|part| String::from_utf8_lossy(part).into_owned()).collect::<Vec<_>>())
        };
        let command = read("cmdline")?;
        let env = read("environ")?.into_iter().filter_map(|entry| {
            entry.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        });
        Ok(Self { flags: parse(command.get(1..).unwrap_or_default()), env: env.collect() })
    }
}

/// `--flag value`, `--flag=value`, and flags alone.
fn parse(arguments: &[String]) -> BTreeMap<String, Vec<String>> {
    let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut rest = arguments.iter().peekable();
    while let Some(argument) = rest.next() {
        if !argument.starts_with("--") {
            continue;
        }
        let (name, value) = match argument.split_once('=') {
            Some((name, value)) => (name, value.to_owned()),
            None => {
                let value = rest.next_if(|next| !next.starts_with("--")).cloned();
                (argument.as_str(), value.unwrap_or_default())
            }
        };
        flags.entry(name.to_owned()).or_default().push(value);
    }
    flags
}
