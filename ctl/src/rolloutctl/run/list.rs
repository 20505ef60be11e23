//! `rolloutctl run list`.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::output::{self, Align, Report, Table, age, count};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::run_summary::{Run, now_wall_ms};
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
struct RunList {
    runs: Vec<Run>,
    /// The source of the answer if there is no leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<Unconfirmed>,
    #[serde(skip)]
    now_wall_ms: u64,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    all_namespaces: bool,
}

/// Which runs.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    all_namespaces: AllNamespaces,
    #[command(flatten)]
    options: ListOptions,
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
    /// The table, with additional columns; missing cells are omitted.
    fn columns(&self, more: &[&str]) -> String {
        let namespace: &[&str] = if self.all_namespaces { &["NAMESPACE"] } else { &[] };
        let mut table = Table::new(namespace)
            .and(&[
                "NAME", "STATE", "PRIO", "DONE", "ROWS", "DECIDED", "RUNNING", "FAILED", "WORKERS",
                "MODEL", "CREATED", "WHY",
            ])
            .and(more);
        for column in [2, 3, 4, 5, 6, 7, 8] {
            table = table.align(namespace.len() + column, Align::Right);
        }
        for run in &self.runs {
            let rows = count(run.counts.rows) + if run.input_closed { "" } else { "+" };
            let namespace = self.all_namespaces.then(|| run.namespace.clone());
            let cells = [
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
            ];
            table.row(namespace.into_iter().chain(cells));
        }
        table.to_string() + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints every run of the namespace, or of all.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let request =
            v1::ListRunsRequest { namespace: self.all_namespaces.namespace(settings.namespace) };
        let sourced =
            unconfirmed::read_from_any(&client, "list runs", &request, async |channel, request| {
                services::runs(channel).list_runs(request).await
            });
        let SourcedAnswer { answer, unconfirmed } = sourced.await?;
        let mut runs: Vec<Run> = answer.runs.into_iter().map(Run::from).collect();
        newest_first(&mut runs);
        self.options.apply(&mut runs)?;
        let all_namespaces = self.all_namespaces.is_requested();
        let list = RunList { runs, unconfirmed, now_wall_ms: now_wall_ms(), all_namespaces };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

/// Of runs that were created in the same millisecond, the higher number comes first.
fn newest_first(runs: &mut [Run]) {
    runs.sort_by_key(|run| std::cmp::Reverse((run.created_wall_ms, run.run)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::run_summary::sample;

    #[test]
    fn a_run_whose_input_is_open_says_that_more_rows_may_come() {
        let list = RunList {
            runs: vec![sample()],
            unconfirmed: None,
            now_wall_ms: 0,
            all_namespaces: false,
        };
        crate::golden::report("run-list.txt", &list);
        let table = list.table();
        assert!(table.contains("nightly-eval  running"), "{table}");
        assert!(table.contains("1,000,000+      71%"), "{table}");
    }

    #[test]
    fn the_newest_run_comes_first_and_lists_of_several_namespaces_name_them() {
        let run = |name: &str, created_wall_ms, number| Run {
            name: name.into(),
            namespace: "team".into(),
            created_wall_ms,
            run: number,
            ..sample()
        };
        let mut runs = vec![run("old", 1, 1), run("newest", 9, 3), run("new", 9, 2)];
        newest_first(&mut runs);
        let list = RunList { runs, unconfirmed: None, now_wall_ms: 0, all_namespaces: true };
        let table = list.table();
        let names: Vec<&str> =
            table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1)).collect();
        assert_eq!(names, ["newest", "new", "old"]);
        assert!(table.starts_with("NAMESPACE  NAME"), "{table}");
        assert!(table.lines().nth(1).is_some_and(|line| line.starts_with("team")), "{table}");
    }
}
