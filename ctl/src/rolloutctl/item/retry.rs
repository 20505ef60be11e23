//! `rolloutctl item retry RUN ROW...`: retries failed rows.

use rollout_batch::hint::namespace_flag;
use rollout_proto::{services, v1};
use serde::Serialize;

use super::super::exit::Failure;
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::counted;
use crate::output::{self, Format, Report, u64_string};
use crate::rolloutctl::dry_run::{Checked, Plan, Planned, PlannedRequest, Reader, one, planned};
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Rows named on one command line.
const ROWS_MAX: usize = 10_000;

/// Which rows to try again.
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// The run's name
    #[arg(add = completer::of(Names::Runs))]
    pub(in crate::rolloutctl) run: String,
    /// Row numbers (from 0 in input order); rows that did not fail are left alone
    #[arg(required = true, num_args = 1.., value_name = "ROW")]
    pub(in crate::rolloutctl) rows: Vec<u64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Retried {
    /// For the command that is printed for the user to run next.
    #[serde(skip)]
    namespace: String,
    run: String,
    #[serde(serialize_with = "u64_string")]
    rows: u64,
    paused: bool,
}

impl Report for Retried {
    const KIND: &'static str = "Retried";

    fn table(&self) -> String {
        let Self { namespace, run, rows, paused } = self;
        let verb = if *rows == 1 { "is" } else { "are" };
        let mut text = format!("run {run}: {} {verb} pending again\n", counted(*rows, "row"));
        if *paused {
            let flag = namespace_flag(namespace);
            text.push_str(&format!(
                "the run is paused; to continue: rolloutctl run resume {run}{flag}\n"
            ));
        }
        text
    }
}

impl RetryArgs {
    /// The named rows, each once.
    fn named(&self) -> Result<v1::Rows, Failure> {
        if self.rows.len() > ROWS_MAX {
            let message = format!("over {ROWS_MAX} rows at once; see: rolloutctl run retry --help");
            return Err(Failure::usage(message));
        }
        let mut starts = self.rows.clone();
        starts.sort_unstable();
        starts.dedup();
        let lens = vec![1; starts.len()];
        Ok(v1::Rows { starts, lens })
    }
}

/// The request to retry all failed rows of a run, or those of a list, without its number.
pub(in crate::rolloutctl) fn request(
    namespace: &str,
    run: &str,
    rows: Option<v1::Rows>,
) -> v1::RetryItemsRequest {
    v1::RetryItemsRequest {
        request: None,
        namespace: namespace.to_owned(),
        run: run.to_owned(),
        all_failed: rows.is_none(),
        rows,
    }
}

/// Retries rows and prints how many: all failed ones, or those of a list.
pub(in crate::rolloutctl) async fn retry(
    connect: &ConnectArgs,
    format: Format,
    run: String,
    rows: Option<v1::Rows>,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let wanted = request(&settings.namespace, &run, rows);
    let request = |id| v1::RetryItemsRequest { request: Some(id), ..wanted };
    let answer = numbered(&client, "retry items", again, request, |channel, request| async move {
        services::items(channel).retry_items(request).await
    })
    .await?;
    let (namespace, rows, paused) = (settings.namespace, answer.rows, answer.paused);
    output::emit(format, &Retried { namespace, run, rows, paused })
}

impl Verb for RetryArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Retries the named rows.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let rows = self.named()?;
        retry(&globals.connect, globals.format, self.run, Some(rows), globals.again).await
    }
}

impl Checked for RetryArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        one(&self.run, &request(namespace, &self.run, Some(self.named()?)))
    }
}

impl Planned for RetryArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let rows = counted(self.rows.len() as u64, "row");
        let would = format!("retry {rows} of run {}", self.run);
        reader.run(&self.run, would).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_of_a_paused_run_prints_how_to_resume_it() {
        let namespace = "team-a".to_owned();
        let text = Retried { namespace, run: "eval".into(), rows: 1200, paused: true }.table();
        assert_eq!(
            text,
            "run eval: 1,200 rows are pending again\n\
             the run is paused; to continue: rolloutctl run resume eval --namespace team-a\n"
        );
    }

    #[test]
    fn output_matches_the_golden_file() {
        let namespace = "default".to_owned();
        let report = Retried { namespace, run: "eval".into(), rows: 3, paused: true };
        crate::golden::report("item-retry.txt", &report);
    }
}
