//! `rolloutctl context`: clusters under names that the user chooses.
//!
//! Invariant: it works without any cluster and changes only the file of contexts. Absent: copies of
//! certificates and keys; a context names files.

pub(super) mod add;
pub(super) mod list;
pub(super) mod remove;
pub(super) mod show;
pub(super) mod use_;

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Failure;
use crate::connect::{Context, Contexts};
use crate::output::Report;

/// A context as it is printed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    name: String,
    current: bool,
    endpoints: Vec<String>,
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure_plaintext: bool,
    dial_map: Vec<String>,
    namespace: Option<String>,
}

impl Line {
    fn new(name: &str, context: &Context, current: Option<&str>) -> Self {
        let context = context.clone();
        Self {
            name: name.to_owned(),
            current: current == Some(name),
            endpoints: context.endpoints,
            ca_file: context.ca_file,
            cert_file: context.cert_file,
            key_file: context.key_file,
            insecure_plaintext: context.insecure_plaintext,
            dial_map: context.dial_map,
            namespace: context.namespace,
        }
    }
}

fn shown(cert: Option<&Path>, plaintext: bool) -> String {
    match (cert, plaintext) {
        (_, true) => "none: plaintext".into(),
        (Some(file), false) => file.display().to_string(),
        (None, false) => "-".into(),
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct ContextReport(Line);

impl Report for ContextReport {
    const KIND: &'static str = "Context";

    fn table(&self) -> String {
        let line = &self.0;
        let file =
            |file: &Option<PathBuf>| file.as_ref().map_or("-".into(), |f| f.display().to_string());
        let rows = [
            ("Name", line.name.clone() + if line.current { " (current)" } else { "" }),
            ("Endpoints", line.endpoints.join(", ")),
            ("Authority", file(&line.ca_file)),
            ("Certificate", shown(line.cert_file.as_deref(), line.insecure_plaintext)),
            ("Key", file(&line.key_file)),
            ("Dial map", line.dial_map.join(", ")),
            ("Namespace", line.namespace.clone().unwrap_or_else(|| "default".into())),
        ];
        let shown = rows.into_iter().filter(|(_, value)| !value.is_empty());
        shown.map(|(title, value)| format!("{title:<12}{value}\n")).collect()
    }
}

/// The file, and its contexts.
fn kept() -> anyhow::Result<(PathBuf, Contexts)> {
    let path = Contexts::path().ok_or_else(|| {
        Failure::failed("there is no directory for contexts: set XDG_CONFIG_HOME or HOME")
    })?;
    let contexts = Contexts::read(&path)?;
    Ok((path, contexts))
}

fn find(contexts: &Contexts, name: &str) -> anyhow::Result<Line> {
    let context = contexts.find(name).map_err(|error| Failure::not_found(error.to_string()))?;
    Ok(Line::new(name, context, contexts.current.as_deref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let context = Context { endpoints: vec!["c1:7420".into()], ..Context::default() };
        crate::golden::report(
            "context-show.txt",
            &ContextReport(Line::new("prod", &context, Some("prod"))),
        );
    }
}
