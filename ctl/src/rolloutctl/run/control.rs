//! The common part of cancel, pause and resume: one request with an ID, repeated until answered.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report, count, counted};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::run_summary::Run;
use crate::rolloutctl::verb::Globals;

/// Which run, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct ControlArgs {
    /// The run's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Runs))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Reason, stored with the run
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

impl ControlArgs {
    /// The request for one run, without its number.
    pub(super) fn request(
        &self,
        namespace: &str,
        name: &str,
        action: v1::RunAction,
    ) -> v1::ControlRunRequest {
        v1::ControlRunRequest {
            request: None,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            action: action as i32,
            reason: self.reason.clone(),
        }
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Controlled(Run);

impl Report for Controlled {
    const KIND: &'static str = "RunSummary";

    fn table(&self) -> String {
        let counts = &self.0.counts;
        format!(
            "run {} is {}: {} of {} done, {} failed, {} running\n",
            self.0.name,
            self.0.state,
            count(counts.done),
            counted(counts.rows, "row"),
            count(counts.failed),
            count(counts.running)
        )
    }
}

/// Sends the action for each run, and prints the run's state afterward.
pub(super) async fn control(
    globals: &Globals,
    args: ControlArgs,
    action: v1::RunAction,
) -> anyhow::Result<()> {
    let Globals { connect, again, .. } = globals;
    for_each_name(args.names.clone(), globals.format, *again, async |name, format| {
        control_one(connect, format, (&args, &name), action, *again).await
    })
    .await
}

async fn control_one(
    connect: &ConnectArgs,
    format: Format,
    (args, name): (&ControlArgs, &str),
    action: v1::RunAction,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let wanted = args.request(&settings.namespace, name, action);
    let request = |id| v1::ControlRunRequest { request: Some(id), ..wanted };
    let answer = numbered(&client, "control run", again, request, |channel, request| async move {
        services::runs(channel).control_run(request).await
    })
    .await?;
    output::emit(format, &Controlled(answer.run.unwrap_or_default().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rolloutctl::run_summary::sample;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Controlled(sample());
        crate::golden::report("run-control.txt", &report);
    }
}
