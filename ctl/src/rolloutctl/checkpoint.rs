//! `rolloutctl job checkpoint ...`: what training jobs recover from.

pub(crate) mod abort;
pub(crate) mod describe;
pub(crate) mod label;
pub(crate) mod list;
pub(crate) mod prune;
pub(super) mod summary;
pub(crate) mod verify;

use rollout_proto::{Client, ClientError, services, v1};

use crate::output::counted;
use crate::rolloutctl::read::read;

/// A checkpoint with its ranks, from the leader; number 0 means the last complete one.
pub(in crate::rolloutctl) async fn find(
    client: &Client,
    namespace: &str,
    job: &str,
    number: u32,
) -> Result<v1::Checkpoint, ClientError> {
    let job = v1::JobName { namespace: namespace.to_owned(), job: job.to_owned() };
    let request = v1::DescribeCheckpointRequest { job: Some(job), number };
    let answer = read(client, "describe checkpoint", &request, |channel, request| async move {
        services::checkpoints(channel).describe_checkpoint(request).await
    })
    .await?;
    Ok(answer.checkpoint.unwrap_or_default())
}

/// Its state, for a plan.
fn reported(found: &v1::Checkpoint) -> String {
    let reported = found.ranks.iter().filter(|rank| rank.reported).count();
    let state = match found.state() {
        v1::CheckpointState::Complete => "complete",
        v1::CheckpointState::Going => "already aborted",
        v1::CheckpointState::Open | v1::CheckpointState::Unspecified => "open",
    };
    let ranks = counted(found.ranks.len() as u64, "rank");
    format!("{state}: {reported} of {ranks} reported")
}
