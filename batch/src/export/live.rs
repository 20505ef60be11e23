//! Owns: the leader's list of a run's segments, or of some of them.
//!
//! Invariant: each segment once and in order, even if the run was sealed before or is sealed meanwhile: its manifest
//! then supplies the rest, from the first segment that the leader no longer listed.
//! Absent: runs that are deleted meanwhile. That is an error.

use std::ops::Range;

use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};
use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, services, v1};
use rollout_storage::BlobStore;

use super::results::Results;
use super::sealed;
use crate::submission::error::BatchError;

type Listed = Result<v1::ReadResultsResponse, BatchError>;

enum From<'a> {
    Leader(Box<Results>),
    Manifest(BoxStream<'a, Listed>),
    Nowhere,
}

struct Reading<'a> {
    client: Client,
    store: &'a BlobStore,
    run: v1::RunSummary,
    numbers: Range<u32>,
    from: From<'a>,
}

/// A run's segments, in order.
pub(super) fn segments<'a>(
    client: &Client,
    store: &'a BlobStore,
    run: v1::RunSummary,
) -> impl Stream<Item = Listed> + Send + 'a {
    let numbers = 0..run.segments;
    range(client, store, run, numbers)
}

/// Some of a run's segments, in order.
pub(super) fn range<'a>(
    client: &Client,
    store: &'a BlobStore,
    run: v1::RunSummary,
    numbers: Range<u32>,
) -> impl Stream<Item = Listed> + Send + 'a {
    let from = From::Leader(Box::new(Results::range(client, run.run, numbers.clone())));
    let reading = Reading { client: client.clone(), store, run, numbers, from };
    stream::unfold(reading, |mut reading| async {
        reading.next().await.map(|listed| (listed, reading))
    })
}

impl Reading<'_> {
    async fn next(&mut self) -> Option<Listed> {
        if let From::Leader(results) = &mut self.from {
            let listed = results.next().await;
            let passed = results.listed();
            match listed {
                Err(error) if was_sealed(&error) => {
                    match list_sealed(&self.client, self.store, &self.run).await {
                        Ok(segments) => {
                            let passed = self.numbers.start + passed;
                            let left = self.numbers.end.saturating_sub(passed);
                            let rest = segments.skip(passed as usize).take(left as usize);
                            self.from = From::Manifest(rest.boxed());
                        }
                        Err(error) => return self.fail(error),
                    }
                }
                Err(error) => return self.fail(error),
                Ok(listed) => return listed.map(Ok),
            }
        }
        match &mut self.from {
            From::Manifest(segments) => segments.next().await,
            From::Leader(_) | From::Nowhere => None,
        }
    }

    fn fail(&mut self, error: BatchError) -> Option<Listed> {
        self.from = From::Nowhere;
        Some(Err(error))
    }
}

/// The segments in the manifest.
async fn list_sealed<'a>(
    client: &Client,
    store: &'a BlobStore,
    run: &v1::RunSummary,
) -> Result<BoxStream<'a, Listed>, BatchError> {
    let request = v1::DescribeRunRequest { run: run.run, ..Default::default() };
    let options = CallOptions::read();
    let described = client.with_leader_opts("describe the run", options, |channel| {
        let request = request.clone();
        async move { services::runs(channel).describe_run(request).await }
    });
    let manifest = described.await?.run.and_then(|run| run.manifest).unwrap_or_default();
    let sealed = sealed::manifest(store, &run.name, &manifest).await?;
    Ok(sealed::segments(store, run.name.clone(), sealed.chunks).boxed())
}

fn was_sealed(error: &BatchError) -> bool {
    matches!(error, BatchError::Client(ClientError::Rpc(error)) if error.code == ErrorCode::RunEnded)
}
