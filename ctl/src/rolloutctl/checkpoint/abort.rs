//! `rolloutctl checkpoint abort JOB NUMBER`: a checkpoint that is not complete never will be.
//!
//! Invariant: a complete checkpoint stays. What its ranks have written of this one is removed.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::request::{Numbered, RequestName};

/// Which checkpoint.
#[derive(Debug, clap::Args)]
pub(crate) struct AbortArgs {
    /// The job's name
    pub(in crate::rolloutctl) job: String,
    /// The checkpoint's number
    pub(in crate::rolloutctl) number: u32,
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

/// Gives it up.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: AbortArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let number = Numbered::new(&client, again).await?;
    let job = v1::JobName { namespace: settings.namespace.clone(), job: args.job.clone() };
    let request = v1::AbortCheckpointRequest {
        request: Some(number.id()),
        job: Some(job),
        number: args.number,
    };
    client
        .with_leader("abort checkpoint", |channel| {
            let request = request.clone();
            async move { services::checkpoints(channel).abort_checkpoint(request).await }
        })
        .await
        .map_err(|error| number.failed(error))?;
    output::emit(format, &Aborted { job: args.job, number: args.number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_output_is_the_one_that_is_kept() {
        let report = Aborted { job: "llama-sft".into(), number: 4 };
        crate::golden::report("checkpoint-abort.txt", &report);
    }
}
