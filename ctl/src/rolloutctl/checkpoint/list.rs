//! `rolloutctl checkpoint list [JOB]`.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::shown::Checkpoint;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, bytes, count};

/// Which checkpoints.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only those of this job
    job: Option<String>,
}

#[derive(Serialize)]
struct CheckpointList {
    checkpoints: Vec<Checkpoint>,
}

impl Report for CheckpointList {
    const KIND: &'static str = "CheckpointList";

    fn table(&self) -> String {
        let titles = ["JOB", "NUMBER", "STEP", "STATE", "LINEAGE", "BYTES", "LABEL"];
        let mut table = Table::new(&titles);
        for column in [1, 2, 4, 5] {
            table = table.align(column, Align::Right);
        }
        for checkpoint in &self.checkpoints {
            table.row([
                checkpoint.job.clone(),
                checkpoint.number.to_string(),
                count(checkpoint.step),
                checkpoint.state.to_owned(),
                checkpoint.lineage.to_string(),
                bytes(checkpoint.bytes),
                checkpoint.label.clone(),
            ]);
        }
        table.to_string()
    }
}

/// Prints them.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: ListArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let job = args.job.unwrap_or_default();
    let job = v1::JobName { namespace: settings.namespace.clone(), job };
    let request = v1::ListCheckpointsRequest { job: Some(job) };
    let answer = settings
        .client(None)?
        .with_leader_opts("list checkpoints", CallOptions::read(), |channel| {
            let request = request.clone();
            async move { services::checkpoints(channel).list_checkpoints(request).await }
        })
        .await?;
    let checkpoints = answer.checkpoints.into_iter().map(Checkpoint::from).collect();
    output::emit(format, &CheckpointList { checkpoints })
}

#[cfg(test)]
mod tests {
    use super::super::shown::sample;
    use super::*;

    #[test]
    fn its_output_is_the_one_that_is_kept() {
        let report = CheckpointList { checkpoints: vec![sample()] };
        crate::snapshots::report("checkpoint-list.txt", &report);
    }
}
