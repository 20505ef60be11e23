//! Owns: declaring a run and its input to the cluster.
//!
//! Invariant: each request keeps its ID through every repeat, and the whole sequence may be repeated.
//! Absent: bytes of rows; those are in the store.

use rollout_proto::{Client, ClientError, Session, services, v1};

use super::error::BatchError;
use super::upload::Uploaded;

/// Segments declared in one request; the ledger's bound is 1024.
pub const SEGMENTS_PER_REQUEST: usize = 512;
/// Parts of reused results in one request; a member's bound. A single segment has no more either.
pub const REUSED_PARTS_PER_REQUEST: usize = 64;

/// A folder for the objects of a run that does not exist yet.
pub fn draw_folder(client: &Client, name: &str) -> String {
    rollout_storage::run_folder(name, &client.cluster_id(), rand::random())
}

/// Creates the run with its objects in `folder`, or finds it; an existing run may have them elsewhere.
pub async fn create(
    session: &Session,
    namespace: &str,
    name: &str,
    spec: v1::RunSpec,
    folder: &str,
) -> Result<v1::CreateRunResponse, BatchError> {
    let pending = session.request();
    let request = v1::CreateRunRequest {
        request: Some(pending.id()),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        spec: Some(spec),
        folder: folder.to_owned(),
    };
    let created = session.client().with_leader("create the run", |channel| {
        let request = request.clone();
        async move { services::runs(channel).create_run(request).await }
    });
    created.await.map_err(|error| BatchError::of_submission(name, error))
}

/// Declares all segments, with the reused results of their rows.
pub async fn declare(
    session: &Session,
    run: u32,
    name: &str,
    uploaded: &Uploaded,
    carried: Vec<v1::CarriedPart>,
) -> Result<(), BatchError> {
    for (segments, carried) in requests(&uploaded.segments, carried) {
        let added = add(session, run, segments, carried).await;
        added.map_err(|error| BatchError::of_submission(name, error))?;
    }
    Ok(())
}

/// Declares segments of an open input.
pub async fn add(
    session: &Session,
    run: u32,
    segments: Vec<v1::SegmentDecl>,
    carried: Vec<v1::CarriedPart>,
) -> Result<v1::AddSegmentsResponse, ClientError> {
    let pending = session.request();
    let request = v1::AddSegmentsRequest { request: Some(pending.id()), run, segments, carried };
    let added = session.client().with_leader("add segments", |channel| {
        let request = request.clone();
        async move { services::runs(channel).add_segments(request).await }
    });
    added.await
}

/// Segments with their parts of reused results, as many as fit into one request.
fn requests(
    segments: &[v1::SegmentDecl],
    carried: Vec<v1::CarriedPart>,
) -> Vec<(Vec<v1::SegmentDecl>, Vec<v1::CarriedPart>)> {
    let mut requests: Vec<(Vec<v1::SegmentDecl>, Vec<v1::CarriedPart>)> = Vec::new();
    let mut carried = carried.into_iter().peekable();
    for segment in segments {
        let mut parts = Vec::new();
        while let Some(part) = carried.next_if(|part| part.segment == segment.number) {
            parts.push(part);
        }
        match requests.last_mut() {
            Some((segments, all))
                if segments.len() < SEGMENTS_PER_REQUEST
                    && all.len() + parts.len() <= REUSED_PARTS_PER_REQUEST =>
            {
                segments.push(segment.clone());
                all.extend(parts);
            }
            _ => requests.push((vec![segment.clone()], parts)),
        }
    }
    requests
}

pub async fn close(
    session: &Session,
    run: u32,
    name: &str,
    uploaded: &Uploaded,
) -> Result<(), BatchError> {
    let closed = close_at(session, run, uploaded.scan.rows, uploaded.digest()).await;
    closed.map_err(|error| BatchError::of_submission(name, error))
}

/// Closes an input with this number of rows and this digest.
pub async fn close_at(
    session: &Session,
    run: u32,
    rows: u64,
    digest: [u8; 32],
) -> Result<(), ClientError> {
    let pending = session.request();
    let request = v1::CloseInputRequest {
        request: Some(pending.id()),
        run,
        rows,
        digest: digest.to_vec().into(),
    };
    let closed = session.client().with_leader("close the input", |channel| {
        let request = request.clone();
        async move { services::runs(channel).close_input(request).await }
    });
    closed.await.map(|_| ())
}

/// Every run of a namespace.
pub async fn list(client: &Client, namespace: &str) -> Result<Vec<v1::RunSummary>, ClientError> {
    let request = v1::ListRunsRequest { namespace: namespace.to_owned() };
    let options = rollout_proto::CallOptions::read();
    let listed = client.with_leader_opts("list runs", options, |channel| {
        let request = request.clone();
        async move { services::runs(channel).list_runs(request).await }
    });
    Ok(listed.await?.runs)
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

/// Cancels a run, and returns its state afterward.
pub async fn cancel(
    session: &Session,
    namespace: &str,
    name: &str,
    reason: &str,
) -> Result<v1::RunSummary, ClientError> {
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
    Ok(cancelled.await?.run.unwrap_or_default())
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
