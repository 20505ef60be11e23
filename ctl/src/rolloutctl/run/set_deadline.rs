//! `rolloutctl run set-deadline NAME`: changes when an open run ends, complete or not.
//!
//! Invariant: a repeat of the request does not revert a deadline that was set since.

use std::time::Duration;

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::{ConnectArgs, parse_duration};
use crate::output::{self, Format, Report, duration};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run, and its deadline.
#[derive(Debug, clap::Args)]
pub(crate) struct SetDeadlineArgs {
    /// The runs' names
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Runs))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// End the run this long after submission, even if rows remain
    #[arg(
        long,
        value_name = "TIME",
        value_parser = parse_duration,
        required_unless_present = "none"
    )]
    pub(in crate::rolloutctl) deadline: Option<Duration>,
    /// Remove the deadline
    #[arg(long, conflicts_with = "deadline")]
    none: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Deadline {
    name: String,
    /// From the run's submission.
    deadline_seconds: Option<f64>,
}

impl Report for Deadline {
    const KIND: &'static str = "RunDeadline";

    fn table(&self) -> String {
        let name = &self.name;
        match self.deadline_seconds {
            Some(seconds) => {
                let after = duration(seconds);
                format!("run {name} ends at the latest {after} after its submission\n")
            }
            None => format!("run {name} has no deadline\n"),
        }
    }
}

impl Verb for SetDeadlineArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Sets the deadline of each run, and prints it.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        debug_assert!(self.none == self.deadline.is_none(), "the command line requires it");
        for_each_name(self.names.clone(), globals.format, globals.again, async |name, format| {
            set(&globals.connect, format, (&self, name), globals.again).await
        })
        .await
    }
}

impl SetDeadlineArgs {
    /// The request for one run, without its number.
    fn request(&self, namespace: &str, name: &str) -> v1::SetDeadlineRequest {
        v1::SetDeadlineRequest {
            request: None,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            // 0 would mean no deadline.
            deadline_ms: self.deadline.map_or(0, |time| (time.as_millis() as u64).max(1)),
        }
    }
}

impl Checked for SetDeadlineArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.names, |name| self.request(namespace, name))
    }
}

impl Planned for SetDeadlineArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let verb = if self.deadline.is_some() { "set" } else { "remove" };
        let would = |name: &str| format!("{verb} the deadline of run {name}");
        reader.runs(&self.names, would).await
    }
}

async fn set(
    connect: &ConnectArgs,
    format: Format,
    (args, name): (&SetDeadlineArgs, String),
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let wanted = args.request(&settings.namespace, &name);
    let request = |id| v1::SetDeadlineRequest { request: Some(id), ..wanted };
    numbered(&client, "set deadline", again, request, |channel, request| async move {
        services::runs(channel).set_deadline(request).await
    })
    .await?;
    let deadline_seconds = args.deadline.map(|time| time.as_secs_f64());
    output::emit(format, &Deadline { name, deadline_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Deadline { name: "eval".into(), deadline_seconds: Some(7200.0) };
        crate::golden::report("run-set-deadline.txt", &report);
    }

    #[test]
    fn a_removed_deadline_is_reported_as_none() {
        let report = Deadline { name: "eval".into(), deadline_seconds: None };
        assert_eq!(report.table(), "run eval has no deadline\n");
    }
}
