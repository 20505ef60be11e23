//! `rolloutctl checkpoint label JOB NUMBER LABEL`: a labelled checkpoint is kept, however many follow it.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::request::{RequestName, numbered};

/// Which checkpoint, and what it is called.
#[derive(Debug, clap::Args)]
pub(crate) struct LabelArgs {
    /// The job's name
    pub(in crate::rolloutctl) job: String,
    /// The checkpoint's number
    pub(in crate::rolloutctl) number: u32,
    /// The label
    #[arg(required_unless_present = "remove")]
    pub(in crate::rolloutctl) label: Option<String>,
    /// Remove the label; the checkpoint may then be pruned at once
    #[arg(long, conflicts_with = "label")]
    remove: bool,
}

#[derive(Serialize)]
struct Labelled {
    job: String,
    number: u32,
    label: String,
}

impl Report for Labelled {
    const KIND: &'static str = "CheckpointLabelled";

    fn table(&self) -> String {
        let (job, number) = (&self.job, self.number);
        match self.label.as_str() {
            "" => format!("checkpoint {number} of {job} has no label\n"),
            label => format!("checkpoint {number} of {job} is kept as {label}\n"),
        }
    }
}

/// Labels it.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: LabelArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let job = v1::JobName { namespace: settings.namespace.clone(), job: args.job.clone() };
    let label = args.label.unwrap_or_default();
    let request = |id| v1::LabelCheckpointRequest {
        request: Some(id),
        job: Some(job),
        number: args.number,
        label: label.clone(),
    };
    numbered(&client, "label checkpoint", again, request, |channel, request| async move {
        services::checkpoints(channel).label_checkpoint(request).await
    })
    .await?;
    output::emit(format, &Labelled { job: args.job, number: args.number, label })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Labelled { job: "llama-sft".into(), number: 4, label: "best".into() };
        crate::golden::report("checkpoint-label.txt", &report);
    }
}
