//! `rolloutctl job rendezvous close JOB...`: refuses new participants of a job.
//!
//! Invariant: repeating it changes nothing. Members of a complete round stay members until they leave.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::consent;
use crate::rolloutctl::dry_run::{Checked, PlannedRequest, for_each, job_name, planned};
use crate::rolloutctl::each::each;
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
        each(self.jobs, globals.format, globals.again, async |job, format| {
            consent::ask(&format!("closing the rendezvous of {job}"), &job, globals.consent)?;
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
