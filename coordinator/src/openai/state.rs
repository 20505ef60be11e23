//! Owns: what the handlers of the API share, and what they need of the cluster.
//!
//! Invariant: a handler that reads the ledger for an answer calls [`ApiState::read`] before, so that the answer
//! contains everything that was acknowledged before the request. A handler that changes the ledger proposes an
//! operation that names its object by an id, so that a repeat of the operation changes nothing.
//! Absent: how a follower reaches the leader (`forward`).

use crate::openai::auth::KeyCaller;
use crate::openai::error::ApiError;
use crate::openai::transfers::Transfers;
use futures::future::BoxFuture;
use rollout_ledger::{Ledger, OpKind, Reply};
use rollout_proto::Identity;
use rollout_storage::BlobStore;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the API needs of the cluster; tests put a ledger in its place.
pub(crate) trait Cluster: Send + Sync {
    /// Reads this member's ledger under its lock. `read` must not block, and is not called while this member belongs
    /// to no cluster.
    fn with_ledger(&self, read: &mut dyn FnMut(&Ledger));

    /// Returns once this member's ledger contains everything that was acknowledged before the call.
    ///
    /// # Errors
    /// No leader has answered in time.
    fn read(&self) -> BoxFuture<'_, Result<(), ApiError>>;

    /// Applies an operation on behalf of `caller`, within its namespaces. Returns its log index and the reply, once
    /// this member's ledger contains the change. The reply may be a rejection.
    ///
    /// # Errors
    /// No leader has answered in time. The operation may take effect nevertheless, now or later.
    fn apply(&self, caller: Identity, op: OpKind) -> BoxFuture<'_, Result<(u64, Reply), ApiError>>;

    /// Refuses if this member may not know of keys that were revoked seconds ago.
    ///
    /// # Errors
    /// The member has not heard of a leader lately, or lacks what was committed.
    fn check_contact(&self) -> Result<(), ApiError>;
}

/// The state of all handlers.
pub(crate) struct ApiState {
    cluster: Arc<dyn Cluster>,
    /// The cluster's object store.
    pub(crate) store: BlobStore,
    /// Room for bodies of content.
    pub(crate) transfers: Transfers,
    /// When this process started, in seconds since 1970.
    pub(crate) started_unix_s: u64,
}

impl ApiState {
    /// The state of a process that starts now.
    pub(crate) fn new(cluster: Arc<dyn Cluster>, store: BlobStore) -> Arc<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let transfers = Transfers::default();
        Arc::new(Self { cluster, store, transfers, started_unix_s: now.as_secs() })
    }

    /// Reads this member's ledger, under its lock: keep it short. Call [`Self::read`] before if the answer needs
    /// everything that was acknowledged before the request.
    pub(crate) fn ledger<R: Default>(&self, read: impl FnOnce(&Ledger) -> R) -> R {
        let (mut read, mut found) = (Some(read), None);
        self.cluster.with_ledger(&mut |ledger| found = read.take().map(|read| read(ledger)));
        found.unwrap_or_default()
    }

    /// Returns once this member's ledger contains everything that was acknowledged before the call.
    ///
    /// # Errors
    /// No leader has answered in time.
    pub(crate) async fn read(&self) -> Result<(), ApiError> {
        self.cluster.read().await
    }

    /// Applies an operation that is idempotent by the id of its object. Returns its log index and the reply, once
    /// this member's ledger contains the change.
    ///
    /// # Errors
    /// The ledger's rejection, or no leader has answered in time. In the second case, the operation may take effect
    /// nevertheless.
    pub(crate) async fn apply(
        &self,
        caller: &KeyCaller,
        op: OpKind,
    ) -> Result<(u64, Reply), ApiError> {
        match self.cluster.apply(caller.identity.clone(), op).await? {
            (_, Reply::Rejected(why)) => Err(ApiError::from(&why)),
            applied => Ok(applied),
        }
    }

    /// Applies an operation of this member's own work on behalf of `who`, within its namespaces. The reply may be a
    /// rejection; this member's ledger contains the change.
    ///
    /// # Errors
    /// No leader has answered in time. The operation may take effect nevertheless.
    pub(crate) async fn propose(&self, who: Identity, op: OpKind) -> Result<Reply, ApiError> {
        Ok(self.cluster.apply(who, op).await?.1)
    }

    /// See [`Cluster::check_contact`].
    pub(crate) fn check_contact(&self) -> Result<(), ApiError> {
        self.cluster.check_contact()
    }
}
