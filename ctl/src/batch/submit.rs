//! Owns: telling the cluster of a run and its input.
//!
//! Invariant: each request keeps its id through every repeat, and all of it may be repeated as a whole.
//! Absent: bytes of rows; those are in the store.

use rollout_proto::{Client, ClientError, Session, services, v1};

use super::error::BatchError;
use super::upload::Uploaded;

/// Segments declared in one request; a bound of the ledger is 1024.
const SEGMENTS_PER_REQUEST: usize = 512;

/// Creates the run, or finds it.
pub async fn create(
    session: &Session,
    namespace: &str,
    name: &str,
    spec: v1::RunSpec,
) -> Result<v1::CreateRunResponse, BatchError> {
    let pending = session.request();
    let request = v1::CreateRunRequest {
        request: Some(pending.id()),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        spec: Some(spec),
    };
    let created = session.client().with_leader("create the run", |channel| {
        let request = request.clone();
        async move { services::runs(channel).create_run(request).await }
    });
    created.await.map_err(|error| BatchError::of_submission(name, error))
}

/// Declares all segments and closes the input.
pub async fn declare(
    session: &Session,
    run: u32,
    name: &str,
    uploaded: &Uploaded,
) -> Result<(), BatchError> {
    let failed = |error| BatchError::of_submission(name, error);
    for segments in uploaded.segments.chunks(SEGMENTS_PER_REQUEST) {
        let pending = session.request();
        let request = v1::AddSegmentsRequest {
            request: Some(pending.id()),
            run,
            segments: segments.to_vec(),
        };
        let added = session.client().with_leader("add segments", |channel| {
            let request = request.clone();
            async move { services::runs(channel).add_segments(request).await }
        });
        added.await.map_err(failed)?;
    }
    let pending = session.request();
    let request = v1::CloseInputRequest {
        request: Some(pending.id()),
        run,
        rows: uploaded.scan.rows,
        digest: uploaded.digest().to_vec().into(),
    };
    let closed = session.client().with_leader("close the input", |channel| {
        let request = request.clone();
        async move { services::runs(channel).close_input(request).await }
    });
    closed.await.map(|_| ()).map_err(failed)
}

/// What the cluster knows of a run.
pub async fn describe(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<v1::DescribeRunResponse, ClientError> {
    let request =
        v1::DescribeRunRequest { namespace: namespace.to_owned(), name: name.to_owned(), run: 0 };
    let options = rollout_proto::CallOptions::read();
    client
        .with_leader_opts("describe the run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await }
        })
        .await
}

/// Cancels a run.
pub async fn cancel(
    session: &Session,
    namespace: &str,
    name: &str,
    reason: &str,
) -> Result<(), ClientError> {
    let pending = session.request();
    let request = v1::ControlRunRequest {
        request: Some(pending.id()),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        action: v1::RunAction::Cancel as i32,
        reason: reason.to_owned(),
    };
    let cancelled = session.client().with_leader("cancel the run", |channel| {
        let request = request.clone();
        async move { services::runs(channel).control_run(request).await }
    });
    cancelled.await.map(|_| ())
}

/// Workers that are ready, in a namespace.
pub async fn workers_ready(client: &Client, namespace: &str) -> Result<usize, ClientError> {
    let request = v1::ListWorkersRequest { namespace: namespace.to_owned() };
    let options = rollout_proto::CallOptions::read();
    let listed = client
        .with_leader_opts("list workers", options, |channel| {
            let request = request.clone();
            async move { services::cluster(channel).list_workers(request).await }
        })
        .await?;
    Ok(listed.workers.iter().filter(|worker| worker.state == "ready").count())
}
