//! Requests that tests send directly, not through a command.
//!
//! *Invariant:* a cluster accepts each of them, unless the test's arguments are wrong.

use anyhow::{Context, Result};
use rollout_proto::{Client, services, v1};

/// Creates an empty run in namespace `default` for a model that no worker here has.
pub fn create_run(request: v1::RequestId, name: &str) -> v1::CreateRunRequest {
    v1::CreateRunRequest {
        request: Some(request),
        namespace: "default".into(),
        name: name.into(),
        spec: Some(v1::RunSpec {
            engine: Some(v1::EngineSpec { model: "m".into(), ..Default::default() }),
            weight: 1,
            attempts_max: 1,
            ..Default::default()
        }),
        folder: String::new(),
    }
}

/// The last complete checkpoint of a job in the default namespace.
///
/// # Errors
/// If the cluster cannot be reached, or the job has no complete checkpoint.
pub async fn latest_checkpoint(client: &Client, job: &str) -> Result<v1::Checkpoint> {
    let name = v1::JobName { namespace: String::new(), job: job.into() };
    let request = v1::LatestCheckpointRequest { job: Some(name) };
    let answer = client
        .with_leader("look for a checkpoint", |channel| {
            let request = request.clone();
            async move { services::checkpoints(channel).latest_checkpoint(request).await }
        })
        .await?;
    answer.checkpoint.context("a complete checkpoint")
}
