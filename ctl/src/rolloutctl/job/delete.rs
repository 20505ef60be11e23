//! `rolloutctl job delete JOB...`: a training job with its claims and its checkpoints.
//!
//! Invariant: it deletes nothing without consent, on the terminal or as a flag, nor while the job has trainers.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report, counted};
use crate::rolloutctl::consent::{self, Consent};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, job_name, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::shard::list as jobs;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which job.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    /// The job's name, or several
    #[arg(value_name = "JOB", required = true)]
    pub(in crate::rolloutctl) jobs: Vec<String>,
}

#[derive(Serialize)]
struct Deleted {
    job: String,
}

impl Report for Deleted {
    const KIND: &'static str = "TrainingJobDeleted";

    fn table(&self) -> String {
        format!("job {} is being deleted, and its checkpoints with it\n", self.job)
    }
}

impl Verb for DeleteArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: true, dry_run: planned };

    /// Asks for consent and deletes, for each job.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.jobs, globals.format, globals.again, async |job, format| {
            delete(&globals.connect, format, job, globals.again, globals.consent).await
        })
        .await
    }
}

impl Checked for DeleteArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.jobs, |job| v1::DeleteJobRequest {
            request: None,
            job: job_name(namespace, job),
        })
    }
}

impl Planned for DeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.jobs, async |job| plan(reader, job).await).await
    }
}

async fn plan(reader: &Reader, name: &str) -> anyhow::Result<Plan> {
    let found = jobs::fetch(&reader.client, &reader.settings.namespace, Some(name)).await;
    let now = match found {
        Ok(found) => found.first().map(contents),
        Err(error) if error.exit_code() == 4 => None,
        Err(error) => return Err(error.into()),
    };
    let now = now.unwrap_or_else(|| "it does not exist".to_owned());
    Ok(Plan::new(format!("delete job {name} with its claims and its checkpoints"), now))
}

/// What is deleted with a job.
fn contents(job: &v1::Job) -> String {
    let epochs = counted(job.passes.len() as u64, "epoch");
    let checkpoints = counted(job.checkpoints.into(), "complete checkpoint");
    format!("{epochs} in progress, {checkpoints}")
}

async fn delete(
    connect: &ConnectArgs,
    format: Format,
    job: String,
    again: Option<RequestName>,
    yes: Consent,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let what = format!("deleting job {job} with its checkpoints");
    consent::confirm(&what, &job, yes)?;
    let client = settings.client(None)?;
    let name = v1::JobName { namespace: settings.namespace, job: job.clone() };
    let request = |id| v1::DeleteJobRequest { request: Some(id), job: Some(name) };
    numbered(&client, "delete job", again, request, |channel, request| async move {
        services::shards(channel).delete_job(request).await
    })
    .await?;
    output::emit(format, &Deleted { job })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Deleted { job: "llama-sft".into() };
        crate::golden::report("job-delete.txt", &report);
    }
}
