//! Where a run's objects are.
//!
//! Invariant: it opens only what the cluster names, with this host's own credentials. Absent: writing.

use rollout_batch::submission::submit;
use rollout_proto::{Client, ClientError, v1};
use rollout_storage::{BlobError, BlobStore};

/// A run, and the store of its objects or the reason why that cannot be opened.
pub(super) struct RunObjects {
    pub(super) described: v1::DescribeRunResponse,
    pub(super) store: Result<BlobStore, BlobError>,
}

impl RunObjects {
    pub(super) async fn of(
        client: &Client,
        namespace: &str,
        run: &str,
    ) -> Result<Self, ClientError> {
        let described = submit::describe(client, namespace, run).await?;
        let store = BlobStore::open(&described.store_url);
        Ok(Self { described, store })
    }
}
