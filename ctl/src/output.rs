//! Command output: one report, shown as a human-readable table, or as JSON, YAML or names for programs.
//!
//! Invariant: data goes to stdout and messages to stderr. The JSON is a versioned contract (fields are only added
//! within v1), the table is not. Every command prints through here, so each supports every format.
//! Absent: colors and terminal control, so that the same bytes reach a pipe and a terminal.

mod json;
mod names;
mod table;
mod yaml;

pub use json::{API_VERSION, Envelope, hex, rfc3339};
pub use rollout_batch::quantities::{age, bytes, count, counted, duration, u64_string};
pub use table::{Align, Table, leave_out_titles};

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;
use serde_json::Value;

/// How a command prints its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Human-readable columns. Not a stable format
    #[default]
    Table,
    /// More columns
    Wide,
    /// One JSON document, `{"apiVersion", "kind", "asOf", "data"}`; commands that stream print one
    /// per line. Stable within v1
    Json,
    /// The document of `json` on one line: one of many of a command that goes on.
    #[value(skip)]
    JsonLine,
    /// One line of JSON per element of a list
    Jsonl,
    /// The document of `json` as YAML
    Yaml,
    /// Only names, one per line, as commands accept them
    Name,
}

impl Format {
    /// Whether it is human-readable.
    pub fn is_table(self) -> bool {
        matches!(self, Format::Table | Format::Wide)
    }

    /// The format for each of the many reports of a continuing command: a document is then a line.
    pub fn of_many(self) -> Self {
        if self == Format::Json { Format::JsonLine } else { self }
    }
}

pub trait Report: Serialize {
    /// The `kind` of its JSON envelope, for example `ClusterStatus`. That of a list ends in `List`, preceded by the
    /// kind of its items.
    const KIND: &'static str;

    /// The human-readable report, ending in a line feed unless it is empty.
    fn table(&self) -> String;

    /// The same with more columns, if there are more.
    fn wide(&self) -> String {
        self.table()
    }
}

/// Why a report cannot be printed as requested.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// It does not serialize, which never happens to this program's reports.
    #[error("cannot print the report: {0}")]
    Serialize(#[from] serde_json::Error),
    /// `-o name` for a report without names.
    #[error("a report of kind {0} has no names: use a format other than `-o name`")]
    NoNames(&'static str),
}

/// A report in the given format, ready to be written.
///
/// # Errors
/// The report has no names and names were requested.
pub fn render<R: Report>(format: Format, report: &R) -> Result<String, RenderError> {
    Ok(match format {
        Format::Table => report.table(),
        Format::Wide => report.wide(),
        Format::Json => serde_json::to_string_pretty(&Envelope::new(R::KIND, report))? + "\n",
        Format::JsonLine => serde_json::to_string(&Envelope::new(R::KIND, report))? + "\n",
        Format::Yaml => yaml::document(&serde_json::to_value(Envelope::new(R::KIND, report))?),
        Format::Jsonl => json_lines(R::KIND, &serde_json::to_value(report)?)?,
        Format::Name => {
            let data = serde_json::to_value(report)?;
            let names = names::names(&data).ok_or(RenderError::NoNames(R::KIND))?;
            names.into_iter().map(|name| name + "\n").collect()
        }
    })
}

/// One line per item of a list; a single line for anything else.
fn json_lines(kind: &'static str, data: &Value) -> Result<String, serde_json::Error> {
    let line = |kind: &str, data: &Value| {
        serde_json::to_string(&Envelope::new(kind, data)).map(|line| line + "\n")
    };
    match (kind.strip_suffix("List"), names::listed(data)) {
        (Some(of), Some(list)) => list.iter().map(|each| line(of, each)).collect(),
        _ => line(kind, data),
    }
}

/// Writes a report to stdout. A reader that went away (`| head`) is not an error.
///
/// # Errors
/// Stdout cannot be written for another reason, or the report has no names and names were requested.
pub fn emit<R: Report>(format: Format, report: &R) -> anyhow::Result<()> {
    write_stdout(&render(format, report)?)
}

/// Writes one of the many reports of a continuing command: one document per line, or YAML documents one after another.
///
/// # Errors
/// As [`emit`].
pub fn emit_next<R: Report>(format: Format, report: &R) -> anyhow::Result<()> {
    match format.of_many() {
        Format::Yaml => write_stdout(&("---\n".to_owned() + &render(format, report)?)),
        format => emit(format, report),
    }
}

/// Set permanently once the reader of stdout has gone.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// Whether a write has found that the reader of stdout went away (`| head`): a command that only prints can then stop.
pub fn reader_is_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// Writes text to stdout and flushes it. A reader that went away (`| head`) is not an error; see [`reader_is_gone`].
///
/// # Errors
/// Stdout cannot be written for another reason.
pub fn write_stdout(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {
            READER_GONE.store(true, Ordering::Relaxed);
            Ok(())
        }
        other => Ok(other?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Sample {
        #[serde(serialize_with = "u64_string")]
        applied_index: u64,
        silent_seconds: f64,
        leader: Option<String>,
    }

    impl Report for Sample {
        const KIND: &'static str = "Sample";

        fn table(&self) -> String {
            let mut table = Table::new(&["APPLIED", "SILENT"]).align(0, Align::Right);
            table.row([self.applied_index.to_string(), duration(self.silent_seconds)]);
            table.to_string()
        }
    }

    const SAMPLE: Sample =
        Sample { applied_index: 17_237_436_991_929_493_444, silent_seconds: 1.5, leader: None };

    #[test]
    fn json_keeps_every_digit_of_an_index_and_never_omits_null() {
        let text = render(Format::Json, &SAMPLE).unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["apiVersion"], "rollout/v1");
        assert_eq!(value["kind"], "Sample");
        assert_eq!(value["data"]["appliedIndex"], "17237436991929493444");
        assert_eq!(value["data"]["silentSeconds"], 1.5);
        assert!(value["data"].as_object().unwrap().contains_key("leader"));
    }

    #[test]
    fn a_table_lines_up_and_has_no_trailing_space() {
        assert_eq!(
            render(Format::Table, &SAMPLE).unwrap(),
            "             APPLIED  SILENT\n17237436991929493444  1.5s\n"
        );
    }

    #[derive(Serialize)]
    struct SampleList {
        samples: Vec<Named>,
    }

    #[derive(Serialize)]
    struct Named {
        name: &'static str,
    }

    impl Report for SampleList {
        const KIND: &'static str = "SampleList";

        fn table(&self) -> String {
            String::new()
        }
    }

    #[test]
    fn a_list_is_one_line_per_item_and_its_names_are_what_commands_accept() {
        let list = SampleList { samples: vec![Named { name: "a" }, Named { name: "b" }] };
        let lines = render(Format::Jsonl, &list).unwrap();
        let kinds: Vec<serde_json::Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(kinds.len(), 2);
        assert_eq!((&kinds[1]["kind"], &kinds[1]["data"]["name"]), (&"Sample".into(), &"b".into()));
        assert_eq!(render(Format::Name, &list).unwrap(), "a\nb\n");
        assert!(matches!(render(Format::Name, &SAMPLE), Err(RenderError::NoNames("Sample"))));
        let whole = render(Format::Json.of_many(), &list).unwrap();
        let value: serde_json::Value = serde_json::from_str(&whole).unwrap();
        assert_eq!((whole.lines().count(), &value["kind"]), (1, &"SampleList".into()));
        assert_eq!(value["data"]["samples"][1]["name"], "b");
        assert_eq!(Format::Jsonl.of_many(), Format::Jsonl);
        let yaml = render(Format::Yaml, &SAMPLE).unwrap();
        assert!(yaml.contains("  appliedIndex: \"17237436991929493444\"\n"), "{yaml}");
        assert_eq!(render(Format::Wide, &SAMPLE).unwrap(), SAMPLE.table());
    }
}
