//! `rolloutctl job rendezvous close JOB...`: refuses new participants of a job.
//!
//! Invariant: repeating it changes nothing. Members of a complete round stay members until they leave.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report, counted};
use crate::rolloutctl::consent;
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, job_name, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which job.
#[derive(Debug, clap::Args)]
pub(crate) struct CloseArgs {
    /// The job's name, or several. Also closes a name that no job uses yet: check the spelling
    #[arg(value_name = "JOB", required = true)]
    pub(in crate::rolloutctl) jobs: Vec<String>,
}

#[derive(Serialize)]
struct Closed {
    job: String,
    closed: bool,
}

impl Report for Closed {
    const KIND: &'static str = "RendezvousClosed";

    fn table(&self) -> String {
        format!("the rendezvous of {} is closed permanently\n", self.job)
    }
}

impl Verb for CloseArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: true, dry_run: planned };

    /// Closes the rendezvous of each job.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.jobs, globals.format, globals.again, async |job, format| {
            consent::confirm(&format!("closing the rendezvous of {job}"), &job, globals.consent)?;
            close(&globals.connect, format, job, globals.again).await
        })
        .await
    }
}

impl Checked for CloseArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.jobs, |job| v1::RendezvousCloseRequest {
            request: None,
            job: job_name(namespace, job),
        })
    }
}

impl Planned for CloseArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.jobs, async |job| plan(reader, job).await).await
    }
}

async fn plan(reader: &Reader, job: &str) -> anyhow::Result<Plan> {
    let namespace = reader.settings.namespace.clone();
    let name = v1::JobName { namespace, job: job.to_owned() };
    let request = v1::RendezvousDescribeRequest { job: Some(name), ..Default::default() };
    let described =
        read(&reader.client, "describe rendezvous", &request, |channel, request| async move {
            services::rendezvous(channel).describe(request).await
        })
        .await;
    let now = match described {
        Ok(answer) => {
            let info = answer.rendezvous.unwrap_or_default();
            let participants = counted(info.participants.into(), "participant");
            format!("{}, round {}, {participants}", info.state, info.round)
        }
        // An unused rendezvous is closed before its first participant joins.
        Err(error) if error.exit_code() == 4 => "it does not exist yet".to_owned(),
        Err(error) => return Err(error.into()),
    };
    Ok(Plan::new(
        format!("close the rendezvous of job {job} permanently: no participant can join"),
        now,
    ))
}

async fn close(
    connect: &ConnectArgs,
    format: Format,
    job: String,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let name = v1::JobName { namespace: settings.namespace, job: job.clone() };
    let request = |id| v1::RendezvousCloseRequest { request: Some(id), job: Some(name) };
    numbered(&client, "close rendezvous", again, request, |channel, request| async move {
        services::rendezvous(channel).close(request).await
    })
    .await?;
    output::emit(format, &Closed { job, closed: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Closed { job: "llama-sft".into(), closed: true };
        crate::golden::report("rendezvous-close.txt", &report);
    }
}
