//! `rolloutctl run describe NAME`: progress, spec and the first failed rows.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::counted;
use crate::output::{self, Format, Report, Table, count, hex, u64_string};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::run_summary::Run;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run to describe.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The run's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Runs))]
    names: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RunDescription {
    run: Run,
    spec: Spec,
    failures: Vec<Failure>,
    /// Rows that no slot has and that avoid the slots that failed them.
    #[serde(serialize_with = "u64_string")]
    avoiding_rows: u64,
    /// The source of the answer if there is no leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<Unconfirmed>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    digest: String,
    model: String,
    revision: String,
    task: String,
    engine_options: serde_json::Value,
    sampling: serde_json::Value,
    selector: std::collections::BTreeMap<String, String>,
    require: std::collections::BTreeMap<String, String>,
    priority: u32,
    weight: u32,
    running_rows_max: u32,
    attempt_timeout_seconds: f64,
    /// From its creation; 0: none.
    deadline_seconds: f64,
    /// The URL to notify at its end.
    notify_url: String,
    failures_max: u32,
    attempts_max: u32,
    store_url: String,
    input_name: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Failure {
    #[serde(serialize_with = "u64_string")]
    row: u64,
    class: String,
    code: String,
    message: String,
    attempts: u32,
}

/// A text as JSON, or the text itself if it is not valid JSON.
fn json(text: String) -> serde_json::Value {
    serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text))
}

impl Spec {
    fn new(spec: v1::RunSpec, digest: &[u8]) -> Self {
        let engine = spec.engine.unwrap_or_default();
        Self {
            digest: hex(digest),
            model: engine.model,
            revision: engine.revision,
            task: engine.task,
            engine_options: json(engine.options_json),
            sampling: json(spec.sampling_json),
            selector: spec.selector.into_iter().collect(),
            require: spec.require.into_iter().collect(),
            priority: spec.priority,
            weight: spec.weight,
            running_rows_max: spec.running_rows_max,
            attempt_timeout_seconds: spec.attempt_timeout_ms as f64 / 1000.0,
            deadline_seconds: spec.deadline_ms as f64 / 1000.0,
            notify_url: spec.notify_url,
            failures_max: spec.failures_max,
            attempts_max: spec.attempts_max,
            store_url: spec.store_url,
            input_name: spec.input_name,
        }
    }
}

/// The table of failed rows; empty without any.
fn failed_rows(failures: &[Failure]) -> String {
    if failures.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["ROW", "CLASS", "CODE", "ATTEMPTS", "MESSAGE"]);
    for failure in failures {
        table.row([
            failure.row.to_string(),
            failure.class.clone(),
            failure.code.clone(),
            failure.attempts.to_string(),
            failure.message.clone(),
        ]);
    }
    format!("\nFailed rows (the first {})\n{table}", failures.len())
}

impl Report for RunDescription {
    const KIND: &'static str = "Run";

    fn table(&self) -> String {
        let (run, counts, spec) = (&self.run, &self.run.counts, &self.spec);
        let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let why = run.why();
        let mut text = String::new();
        let mut line = |title: &str, value: String| {
            text.push_str(&format!("{title:<12}{value}\n"));
        };
        line("Run", format!("{} (number {}) in {}", run.name, run.run, run.namespace));
        line(
            "State",
            if why.is_empty() { run.state.into() } else { format!("{}: {why}", run.state) },
        );
        line("Created", run.created_at.clone().unwrap_or_else(|| "-".into()));
        line("Finished", run.finished_at.clone().unwrap_or_else(|| "-".into()));
        let open = if run.input_closed { "closed" } else { "open" };
        let (rows, segments) =
            (counted(counts.rows, "row"), counted(run.segments.into(), "segment"));
        line("Input", format!("{rows} in {segments}, {open}"));
        line(
            "Rows",
            format!(
                "{} of {} done, {} failed ({}% decided), {} running, {} pending, {} waiting",
                count(counts.done),
                count(counts.rows),
                count(counts.failed),
                counts.percent(),
                count(counts.running),
                count(counts.pending),
                count(counts.waiting)
            ),
        );
        if self.avoiding_rows > 0 {
            let rows = counted(self.avoiding_rows, "row");
            line("Avoiding", format!("{rows}: other slots than those that failed them come first"));
        }
        line(
            "Attempts",
            format!(
                "{} retried, {} returned, {} stolen, {} speculative, {} with a reused result",
                count(counts.retries),
                count(counts.returned),
                count(counts.stolen),
                count(counts.duplicated),
                counted(counts.carried, "row")
            ),
        );
        line("Tokens", format!("{} in, {} out", count(counts.tokens_in), count(counts.tokens_out)));
        line("Workers", run.workers.to_string());
        if let Some(notice) = &run.notice {
            line("Notice", format!("{notice} ({})", spec.notify_url));
        }
        line("Model", format!("{} {}", spec.model, spec.revision).trim_end().into());
        line("Sampling", spec.sampling.to_string());
        let labels = spec.selector.iter().map(|(name, value)| format!("{name}={value}"));
        let needs = labels
            .chain(spec.require.iter().map(|(name, condition)| format!("{name} {condition}")));
        line("Needs", or_dash(&needs.collect::<Vec<_>>().join(", ")));
        line("Priority", format!("{} (weight {})", spec.priority, spec.weight));
        line("Store", or_dash(&spec.store_url));
        line("Source", or_dash(&spec.input_name));
        line("Spec", or_dash(&spec.digest));
        text + &failed_rows(&self.failures) + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names, globals.format, None, async |name, format| {
            one(&globals.connect, format, name).await
        })
        .await
    }
}

async fn one(connect: &ConnectArgs, format: Format, name: String) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let request = v1::DescribeRunRequest { namespace: settings.namespace, name, run: 0 };
    let sourced =
        unconfirmed::read_from_any(&client, "describe run", &request, async |channel, request| {
            services::runs(channel).describe_run(request).await
        });
    let SourcedAnswer { answer, unconfirmed } = sourced.await?;
    let failures = answer
        .failures
        .into_iter()
        .map(|failed| Failure {
            row: failed.row,
            class: failed.class,
            code: failed.code,
            message: failed.message,
            attempts: failed.attempts,
        })
        .collect();
    let described = RunDescription {
        run: answer.run.unwrap_or_default().into(),
        spec: Spec::new(answer.spec.unwrap_or_default(), &answer.spec_digest),
        failures,
        avoiding_rows: answer.avoiding_rows,
        unconfirmed,
    };
    output::emit(format, &described)?;
    unconfirmed::end(described.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::run_summary::{Counts, sample};

    fn failures() -> Vec<Failure> {
        let failure = Failure {
            row: 17,
            class: "invalid row".into(),
            code: "bad_prompt".into(),
            message: "no prompt".into(),
            attempts: 1,
        };
        vec![failure]
    }

    #[test]
    fn a_description_shows_spec_and_failed_rows() {
        let spec = v1::RunSpec {
            sampling_json: "{\"max_tokens\":16}".into(),
            selector: [("zone".to_owned(), "a".to_owned())].into(),
            require: [("vllm".to_owned(), ">=0.32".to_owned())].into(),
            weight: 1,
            ..v1::RunSpec::default()
        };
        let report = RunDescription {
            run: sample(),
            spec: Spec::new(spec, &[0xab]),
            failures: failures(),
            avoiding_rows: 2,
            unconfirmed: None,
        };
        crate::golden::report("run-describe.txt", &report);
        let text = report.table();
        assert!(text.contains("Sampling    {\"max_tokens\":16}\n"), "{text}");
        assert!(text.contains("17   invalid row"), "{text}");
        assert!(text.contains("Avoiding    2 rows: other slots than"), "{text}");
        assert!(text.contains("Needs       zone=a, vllm >=0.32\n"), "{text}");
        assert!(text.contains("1,000,000 rows in 0 segments, open\n"), "{text}");
        let mut lost = RunDescription { failures: Vec::new(), ..report };
        lost.run.segments = 1;
        lost.run.counts = Counts { rows: 10, failed: 10, ..Counts::default() };
        let text = lost.table();
        assert!(
            text.contains("Rows        0 of 10 done, 10 failed (100% decided), 0 running"),
            "{text}"
        );
        assert!(text.contains("Input       10 rows in 1 segment, open\n"), "{text}");
        let report = RunDescription { failures: failures(), ..lost };
        let json = output::render(Format::Json, &report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["data"]["spec"]["sampling"]["max_tokens"], 16);
        assert_eq!(value["data"]["failures"][0]["row"], "17");
    }
}
