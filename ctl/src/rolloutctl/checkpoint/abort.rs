//! `rolloutctl job checkpoint abort JOB NUMBER...`: an incomplete checkpoint stays incomplete forever.
//!
//! Invariant: a complete checkpoint stays. What ranks have written of an aborted one is removed.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, job_name, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

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
        format!("checkpoint {} of {} is aborted\n", self.number, self.job)
    }
}

impl Verb for AbortArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let AbortArgs { job, numbers } = self;
        for_each_name(numbers, globals.format, globals.again, async |number, format| {
            abort(&globals.connect, format, (job.clone(), number), globals.again).await
        })
        .await
    }
}

impl Checked for AbortArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.numbers, |number| v1::AbortCheckpointRequest {
            request: None,
            job: job_name(namespace, &self.job),
            number: *number,
        })
    }
}

impl Planned for AbortArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let AbortArgs { job, numbers } = self;
        Plan::of_each(&numbers, async |number| plan(reader, &job, *number).await).await
    }
}

async fn plan(reader: &Reader, job: &str, number: u32) -> anyhow::Result<Plan> {
    let found = super::find(&reader.client, &reader.settings.namespace, job, number).await?;
    Ok(Plan::new(format!("abort checkpoint {number} of {job}"), super::reported(&found)))
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
