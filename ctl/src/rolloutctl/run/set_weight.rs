//! `rolloutctl run set-weight NAME`: changes the weight of an open run among runs of its priority.
//!
//! Invariant: a repeat of the request does not revert a weight that was set since. Absent: the bounds of a
//! weight, which the cluster checks.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run, and its weight.
#[derive(Debug, clap::Args)]
pub(crate) struct SetWeightArgs {
    /// The runs' names
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Runs))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Weight among runs of the same priority, 1 to 100: a run of weight 3 gets three rows for each row of a run of
    /// weight 1
    #[arg(long, value_name = "N")]
    weight: u32,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Weight {
    name: String,
    weight: u32,
}

impl Report for Weight {
    const KIND: &'static str = "RunWeight";

    fn table(&self) -> String {
        format!("run {} has weight {}\n", self.name, self.weight)
    }
}

impl Verb for SetWeightArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Sets the weight of each run, and prints it.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names.clone(), globals.format, globals.again, async |name, format| {
            set(&globals.connect, format, (&self, name), globals.again).await
        })
        .await
    }
}

impl SetWeightArgs {
    /// The request for one run, without its number.
    fn request(&self, namespace: &str, name: &str) -> v1::SetWeightRequest {
        v1::SetWeightRequest {
            request: None,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            weight: self.weight,
        }
    }
}

impl Checked for SetWeightArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.names, |name| self.request(namespace, name))
    }
}

impl Planned for SetWeightArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let weight = self.weight;
        let would = |name: &str| format!("set the weight of run {name} to {weight}");
        reader.runs(&self.names, would).await
    }
}

async fn set(
    connect: &ConnectArgs,
    format: Format,
    (args, name): (&SetWeightArgs, String),
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let wanted = args.request(&settings.namespace, &name);
    let request = |id| v1::SetWeightRequest { request: Some(id), ..wanted };
    numbered(&client, "set weight", again, request, |channel, request| async move {
        services::runs(channel).set_weight(request).await
    })
    .await?;
    output::emit(format, &Weight { name, weight: args.weight })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Weight { name: "eval".into(), weight: 3 };
        crate::golden::report("run-set-weight.txt", &report);
    }
}
