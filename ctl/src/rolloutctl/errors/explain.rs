//! `rolloutctl errors explain RO-NNNN`: the page of one code.

use rollout_proto::ErrorCode;
use serde::Serialize;

use super::PAGES;
use crate::output::{self, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ErrorPage {
    code: String,
    summary: Option<&'static str>,
    retryable: Option<bool>,
    page: &'static str,
}

impl Report for ErrorPage {
    const KIND: &'static str = "ErrorPage";

    fn table(&self) -> String {
        format!("{}\n", self.page.trim_end())
    }
}

/// Which code.
#[derive(Debug, clap::Args)]
pub(crate) struct ExplainArgs {
    /// The code, such as RO-1001
    #[arg(value_name = "RO-NNNN")]
    code: String,
}

impl Verb for ExplainArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Prints the page of one code, written as `RO-1001`, `ro-1001` or `1001`.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        output::emit(globals.format, &find(&self.code)?)
    }
}

fn find(code: &str) -> Result<ErrorPage, Failure> {
    let upper = code.to_ascii_uppercase();
    let wanted = if upper.starts_with("RO-") { upper } else { format!("RO-{upper}") };
    let Some((_, page)) = PAGES.iter().find(|(code, _)| *code == wanted) else {
        let message = format!("there is no error {wanted}; see: rolloutctl errors list");
        return Err(Failure::not_found(message));
    };
    let code = ErrorCode::ALL.iter().find(|code| code.code() == wanted);
    Ok(ErrorPage {
        code: wanted,
        summary: code.map(|code| code.summary()),
        retryable: code.map(|code| code.retryable()),
        page,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page() {
        for code in ErrorCode::ALL {
            assert!(PAGES.iter().any(|(page, _)| *page == code.code()), "{code} has no page");
        }
    }

    #[test]
    fn a_code_is_found_however_it_is_written() {
        let code = ErrorCode::ALL[0].code();
        for spelling in [code.to_owned(), code.to_lowercase(), code[3..].to_owned()] {
            assert_eq!(find(&spelling).unwrap().code, code);
        }
        assert!(find("RO-0000").is_err());
    }

    #[test]
    fn output_matches_the_golden_file() {
        let page = ErrorPage {
            code: "RO-1001".into(),
            summary: Some("this member does not lead"),
            retryable: Some(true),
            page: "# RO-1001: this member does not lead\n",
        };
        crate::golden::report("errors-explain.txt", &page);
    }
}
