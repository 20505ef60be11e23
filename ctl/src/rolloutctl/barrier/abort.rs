//! `rolloutctl job barrier abort JOB BARRIER...`: a waiting barrier fails for all present and future participants.
//!
//! Invariant: a generation that has ended stays as it is.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which barrier, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct AbortArgs {
    /// The job's name
    pub(in crate::rolloutctl) job: String,
    /// The barrier's name, or several
    #[arg(value_name = "BARRIER", required = true)]
    pub(in crate::rolloutctl) barriers: Vec<String>,
    /// Generation to abort: one use of the barrier; 0: the one that waits now. Requires a single
    /// BARRIER
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    generation: u64,
    /// Reason, returned to the waiting participants
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

impl AbortArgs {
    /// Refuses one generation for several barriers.
    fn check(&self) -> Result<(), Failure> {
        match self.generation != 0 && self.barriers.len() > 1 {
            true => Err(Failure::usage("--generation belongs to one barrier: give one")),
            false => Ok(()),
        }
    }

    /// The request for one barrier, without its number.
    fn request(&self, namespace: &str, barrier: &str) -> v1::BarrierAbortRequest {
        let job = v1::JobName { namespace: namespace.to_owned(), job: self.job.clone() };
        v1::BarrierAbortRequest {
            request: None,
            barrier: Some(v1::BarrierName { job: Some(job), barrier: barrier.to_owned() }),
            generation: self.generation,
            reason: self.reason.clone(),
        }
    }
}

#[derive(Serialize)]
struct Aborted {
    job: String,
    barrier: String,
}

impl Report for Aborted {
    const KIND: &'static str = "BarrierAborted";

    fn table(&self) -> String {
        format!("no participant waits at barrier {} of {} any longer\n", self.barrier, self.job)
    }
}

impl Verb for AbortArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        self.check()?;
        for_each_name(
            self.barriers.clone(),
            globals.format,
            globals.again,
            async |barrier, format| {
                abort(&globals.connect, format, (&self, barrier), globals.again).await
            },
        )
        .await
    }
}

impl Checked for AbortArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        self.check()?;
        for_each(&self.barriers, |barrier| self.request(namespace, barrier))
    }
}

impl Planned for AbortArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let AbortArgs { job, barriers, .. } = &self;
        Plan::of_each(barriers, async |barrier| plan(reader, job, barrier).await).await
    }
}

async fn plan(reader: &Reader, job: &str, barrier: &str) -> anyhow::Result<Plan> {
    let namespace = reader.settings.namespace.clone();
    let name = v1::JobName { namespace, job: job.to_owned() };
    let name = v1::BarrierName { job: Some(name), barrier: barrier.to_owned() };
    let request = v1::BarrierDescribeRequest { barrier: Some(name) };
    let answer =
        read(&reader.client, "describe barrier", &request, |channel, request| async move {
            services::barrier(channel).describe(request).await
        })
        .await?;
    let now = answer.generations.last().map_or("it does not exist yet".to_owned(), |last| {
        format!(
            "generation {} is {}: {} of {} arrived",
            last.generation, last.state, last.arrived, last.expected
        )
    });
    Ok(Plan::new(format!("abort barrier {barrier} of {job}, if it waits"), now))
}

async fn abort(
    connect: &ConnectArgs,
    format: Format,
    (args, barrier): (&AbortArgs, String),
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let wanted = args.request(&settings.namespace, &barrier);
    let request = |id| v1::BarrierAbortRequest { request: Some(id), ..wanted };
    numbered(&client, "abort barrier", again, request, |channel, request| async move {
        services::barrier(channel).abort(request).await
    })
    .await?;
    output::emit(format, &Aborted { job: args.job.clone(), barrier })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Aborted { job: "llama-sft".into(), barrier: "epoch".into() };
        crate::golden::report("barrier-abort.txt", &report);
    }
}
