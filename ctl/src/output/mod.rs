//! What commands print: one report, shown as a table for people or as JSON for programs.
//!
//! Invariant: data goes to stdout and talk to stderr; the JSON is a versioned contract (fields are
//! only added within v1), the table is not. Deliberately absent: colours and terminal control, so
//! that the same bytes reach a pipe and a terminal.

mod format;
mod json;
mod table;

pub use format::{age, bytes, count, duration};
pub use json::{API_VERSION, Envelope, hex, u64_string};
pub use table::{Align, Table};

use std::io::Write as _;

use serde::Serialize;

/// How a command prints its report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Columns for people. Not a stable format.
    #[default]
    Table,
    /// One JSON document, or one a line from what follows: `{"apiVersion", "kind", "data"}`. Stable within v1.
    #[value(alias = "jsonl")]
    Json,
}

/// Something that a command reports.
pub trait Report: Serialize {
    /// The `kind` of its JSON envelope, for example `ClusterStatus`.
    const KIND: &'static str;

    /// The report for people, ending in a line feed where it is not empty.
    fn table(&self) -> String;
}

/// A report in the given format, ready to be written.
///
/// # Errors
/// When the report does not serialize, which no report of ours does.
pub fn render<R: Report>(format: Format, report: &R) -> Result<String, serde_json::Error> {
    match format {
        Format::Table => Ok(report.table()),
        Format::Json => {
            let mut text = serde_json::to_string_pretty(&Envelope::new(R::KIND, report))?;
            text.push('\n');
            Ok(text)
        }
    }
}

/// Writes a report to stdout. A reader that went away (`| head`) is no error.
///
/// # Errors
/// When stdout cannot be written for another reason.
pub fn emit<R: Report>(format: Format, report: &R) -> anyhow::Result<()> {
    write_stdout(&render(format, report)?)
}

/// Writes one line of JSON to stdout: the shape of `bench` and `watch`, which print many documents.
///
/// # Errors
/// When stdout cannot be written for a reason other than a reader that went away.
pub fn emit_line<R: Report>(report: &R) -> anyhow::Result<()> {
    let mut text = serde_json::to_string(&Envelope::new(R::KIND, report))?;
    text.push('\n');
    write_stdout(&text)
}

/// Writes text to stdout and flushes it. A reader that went away (`| head`) is no error.
///
/// # Errors
/// When stdout cannot be written for another reason.
pub fn write_stdout(text: &str) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
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
}
