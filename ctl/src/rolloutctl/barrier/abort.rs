//! `rolloutctl barrier abort JOB BARRIER...`: a waiting barrier fails for all present and future participants.
//!
//! Invariant: a generation that has ended stays as it is.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::planned;
use crate::rolloutctl::each::each;
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
    /// Generation to abort, of one barrier; 0 means the waiting one
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    generation: u64,
    /// Reason, returned to the waiting participants
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
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

    /// Aborts each barrier.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let AbortArgs { job, barriers, generation, reason } = self;
        if generation != 0 && barriers.len() > 1 {
            let text = "--generation belongs to one barrier: give one";
            return Err(Failure::usage(text).into());
        }
        each(barriers, globals.format, globals.again, async |barrier, format| {
            let aborted = Aborted { job: job.clone(), barrier };
            abort(&globals.connect, format, aborted, (generation, reason.clone()), globals.again)
                .await
        })
        .await
    }
}

async fn abort(
    connect: &ConnectArgs,
    format: Format,
    aborted: Aborted,
    (generation, reason): (u64, String),
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let Aborted { job, barrier } = &aborted;
    let job = v1::JobName { namespace: settings.namespace, job: job.clone() };
    let request = |id| v1::BarrierAbortRequest {
        request: Some(id),
        barrier: Some(v1::BarrierName { job: Some(job), barrier: barrier.clone() }),
        generation,
        reason,
    };
    numbered(&client, "abort barrier", again, request, |channel, request| async move {
        services::barrier(channel).abort(request).await
    })
    .await?;
    output::emit(format, &aborted)
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
