//! `rolloutctl run list`.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::{Run, now_wall_ms};
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, age, count};
use crate::rolloutctl::unconfirmed::{self, Unconfirmed};

#[derive(Serialize)]
struct RunList {
    runs: Vec<Run>,
    /// Of whom it is, where nobody leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<Unconfirmed>,
    #[serde(skip)]
    now_wall_ms: u64,
}

impl Report for RunList {
    const KIND: &'static str = "RunList";

    fn table(&self) -> String {
        self.columns(&[])
    }

    fn wide(&self) -> String {
        self.columns(&["NUMBER", "RETRIED", "RETURNED", "STOLEN", "TOKENS IN", "TOKENS OUT"])
    }
}

impl RunList {
    /// The table, with what else is wanted to know; cells without a column are left out.
    fn columns(&self, more: &[&str]) -> String {
        let mut table = Table::new(&[
            "NAME", "STATE", "PRIO", "DONE", "ROWS", "DECIDED", "RUNNING", "FAILED", "WORKERS",
            "MODEL", "CREATED", "WHY",
        ])
        .and(more);
        for column in [2, 3, 4, 5, 6, 7, 8] {
            table = table.align(column, Align::Right);
        }
        for run in &self.runs {
            let rows = count(run.counts.rows) + if run.input_closed { "" } else { "+" };
            table.row([
                run.name.clone(),
                run.state.into(),
                run.priority.to_string(),
                count(run.counts.done),
                rows,
                format!("{}%", run.counts.percent()),
                count(run.counts.running),
                count(run.counts.failed),
                run.workers.to_string(),
                run.model.clone(),
                age(run.created_wall_ms, self.now_wall_ms),
                run.why(),
                run.run.to_string(),
                count(run.counts.retries),
                count(run.counts.returned),
                count(run.counts.stolen),
                count(run.counts.tokens_in),
                count(run.counts.tokens_out),
            ]);
        }
        table.to_string() + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

/// Prints every run of the namespace.
pub(crate) async fn run(connect: &ConnectArgs, format: Format) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let request = v1::ListRunsRequest { namespace: settings.namespace };
    let asked = unconfirmed::ask(&client, "list runs", &request, async |channel, request| {
        services::runs(channel).list_runs(request).await
    });
    let asked = asked.await?;
    let (runs, unconfirmed) = (asked.answer.runs, asked.unconfirmed);
    let list = RunList {
        runs: runs.into_iter().map(Run::from).collect(),
        unconfirmed,
        now_wall_ms: now_wall_ms(),
    };
    output::emit(format, &list)?;
    unconfirmed::end(list.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn a_run_whose_input_is_open_says_that_more_rows_may_come() {
        let list = RunList { runs: vec![sample()], unconfirmed: None, now_wall_ms: 0 };
        crate::golden::report("run-list.txt", &list);
        let table = list.table();
        assert!(table.contains("nightly-eval  running"), "{table}");
        assert!(table.contains("1,000,000+      71%"), "{table}");
    }
}
