//! `rolloutctl checkpoint abort JOB NUMBER...`: an incomplete checkpoint stays incomplete forever.
//!
//! Invariant: a complete checkpoint stays. What ranks have written of an aborted one is removed.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::each::each;
use crate::rolloutctl::request::{RequestName, numbered};

/// Which checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct AbortArgs {
    /// The job's name
    pub(in crate::rolloutctl) job: String,
    /// The checkpoint's number, or several
    #[arg(value_name = "NUMBER", required = true)]
    pub(in crate::rolloutctl) numbers: Vec<u32>,
}

#[derive(Serialize)]
struct Aborted {
    job: String,
    number: u32,
}

impl Report for Aborted {
    const KIND: &'static str = "CheckpointAborted";

    fn table(&self) -> String {
        format!("checkpoint {} of {} is given up\n", self.number, self.job)
    }
}

/// Gives each up.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: AbortArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let AbortArgs { job, numbers } = args;
    each(numbers, format, again, async |number, format| {
        abort(connect, format, (job.clone(), number), again).await
    })
    .await
}

async fn abort(
    connect: &ConnectArgs,
    format: Format,
    (job, number): (String, u32),
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let name = v1::JobName { namespace: settings.namespace, job: job.clone() };
    let request = |id| v1::AbortCheckpointRequest { request: Some(id), job: Some(name), number };
    numbered(&client, "abort checkpoint", again, request, |channel, request| async move {
        services::checkpoints(channel).abort_checkpoint(request).await
    })
    .await?;
    output::emit(format, &Aborted { job, number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Aborted { job: "llama-sft".into(), number: 4 };
        crate::golden::report("checkpoint-abort.txt", &report);
    }
}
