//! `rolloutctl errors list`: every code.

use rollout_proto::ErrorCode;
use serde::Serialize;

use crate::output::{self, Report, Table};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which codes.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorRow {
    code: &'static str,
    summary: &'static str,
    retryable: bool,
}

#[derive(Serialize)]
struct ErrorList {
    errors: Vec<ErrorRow>,
}

impl Report for ErrorList {
    const KIND: &'static str = "ErrorList";

    fn table(&self) -> String {
        let mut table = Table::new(&["CODE", "RETRY", "SUMMARY"]);
        for error in &self.errors {
            let retry = if error.retryable { "yes" } else { "no" };
            table.row([error.code.into(), retry.into(), error.summary.into()]);
        }
        table.to_string()
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let mut errors: Vec<ErrorRow> = ErrorCode::ALL
            .iter()
            .map(|code| ErrorRow {
                code: code.code(),
                summary: code.summary(),
                retryable: code.retryable(),
            })
            .collect();
        self.options.apply(&mut errors)?;
        output::emit(globals.format, &ErrorList { errors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let row = |code, retryable| ErrorRow { code, summary: "what it means", retryable };
        let list = ErrorList { errors: vec![row("RO-1001", true), row("RO-1005", false)] };
        crate::golden::report("errors-list.txt", &list);
    }
}
