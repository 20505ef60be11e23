//! `rolloutctl barrier abort JOB BARRIER`: a barrier that waits fails, for all who are there and all who come.
//!
//! Invariant: a generation that has ended stays as it is.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::request::{Numbered, RequestName};

/// Which barrier, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct AbortArgs {
    /// The job's name
    pub(in crate::rolloutctl) job: String,
    /// The barrier's name
    pub(in crate::rolloutctl) barrier: String,
    /// Generation to abort; 0 means the waiting one
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

/// Aborts the barrier.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: AbortArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let number = Numbered::new(&client, again).await?;
    let job = v1::JobName { namespace: settings.namespace, job: args.job.clone() };
    let request = v1::BarrierAbortRequest {
        request: Some(number.id()),
        barrier: Some(v1::BarrierName { job: Some(job), barrier: args.barrier.clone() }),
        generation: args.generation,
        reason: args.reason,
    };
    client
        .with_leader("abort barrier", |channel| {
            let request = request.clone();
            async move { services::barrier(channel).abort(request).await }
        })
        .await
        .map_err(|error| number.failed(error))?;
    output::emit(format, &Aborted { job: args.job, barrier: args.barrier })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_output_is_the_one_that_is_kept() {
        let report = Aborted { job: "llama-sft".into(), barrier: "epoch".into() };
        crate::golden::report("barrier-abort.txt", &report);
    }
}
