//! Owns: a job's store as a gateway uses it.
//!
//! Invariant: a change is asked for under one request id until the cluster has answered, however long it has no leader;
//! what only reads is asked again. An error is for good.
//! Absent: giving up. Whoever asked does that, by going away.

use std::time::Duration;

use bytes::Bytes;
use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, Session, services, v1};

use super::GatewayOptions;

/// How long the leader holds a wait before it says that nothing has come.
const WAIT_MS: u64 = 10_000;
/// One attempt of a wait: the leader's time, and some for the way.
const WAIT_ATTEMPT: Duration = Duration::from_secs(15);
/// Between two tries when the cluster has no leader for long.
const PAUSE: Duration = Duration::from_millis(100);
/// Tries of a request that the cluster has no room for.
const FULL_TRIES: u32 = 50;

/// A job's store.
pub(super) struct JobStore {
    client: Client,
    session: Session,
    name: v1::StoreName,
}

impl JobStore {
    pub(super) async fn open(
        client: Client,
        options: &GatewayOptions,
    ) -> Result<Self, ClientError> {
        let session = client.open_session("store-gateway").await?;
        let (namespace, job) = (options.namespace.clone(), options.job.clone());
        let name = v1::StoreName { namespace, job, round: options.round };
        Ok(Self { client, session, name })
    }

    /// Says that the store is in use.
    pub(super) async fn use_it(&self) -> Result<(), ClientError> {
        self.apply(Vec::new()).await.map(|_| ())
    }

    /// One change, and what it answered.
    pub(super) async fn change(
        &self,
        kind: v1::store_op::Kind,
    ) -> Result<v1::store_answer::Kind, ClientError> {
        let answers = self.apply(vec![v1::StoreOp { kind: Some(kind) }]).await?;
        let answer = answers.into_iter().next().and_then(|answer| answer.kind);
        Ok(answer.unwrap_or(v1::store_answer::Kind::Nothing(true)))
    }

    async fn apply(&self, ops: Vec<v1::StoreOp>) -> Result<Vec<v1::StoreAnswer>, ClientError> {
        let pending = self.session.request();
        let request = v1::StoreApplyRequest {
            request: Some(pending.id()),
            store: Some(self.name.clone()),
            ops,
        };
        let mut full = 0;
        loop {
            let answer = self
                .client
                .with_leader("change the store", |channel| {
                    let request = request.clone();
                    async move { services::store(channel).apply(request).await }
                })
                .await;
            match answer {
                Ok(answer) => return Ok(answer.answers),
                // Others of this session are not acknowledged yet; a refusal for that is not remembered.
                Err(error)
                    if error.code() == Some(ErrorCode::LimitExceeded) && full < FULL_TRIES =>
                {
                    full += 1;
                }
                Err(error) if passes(&error) => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Values by position; what has none is empty, as in TCPStore.
    pub(super) async fn values(&self, keys: Vec<Bytes>) -> Result<Vec<Bytes>, ClientError> {
        let mut values = Vec::with_capacity(keys.len());
        while values.len() < keys.len() {
            let keys = keys[values.len()..].to_vec();
            let answer = self.read(v1::StoreReadRequest { keys, ..Default::default() }).await?;
            if answer.values.is_empty() {
                break;
            }
            values.extend(answer.values.into_iter().map(|value| match value.kind {
                Some(v1::store_answer::Kind::Value(value)) => value,
                _ => Bytes::new(),
            }));
        }
        Ok(values)
    }

    /// Whether the key itself has a value, whatever the queue of its name has.
    pub(super) async fn has_value(&self, key: Bytes) -> Result<bool, ClientError> {
        let asked = v1::StoreReadRequest { keys: vec![key], ..Default::default() };
        let value = self.read(asked).await?.values.into_iter().next().and_then(|v| v.kind);
        Ok(matches!(value, Some(v1::store_answer::Kind::Value(_))))
    }

    /// What the store says of itself.
    pub(super) async fn read(
        &self,
        request: v1::StoreReadRequest,
    ) -> Result<v1::StoreReadResponse, ClientError> {
        let request = v1::StoreReadRequest { store: Some(self.name.clone()), ..request };
        loop {
            let answer = self
                .client
                .with_leader_opts("read the store", CallOptions::read(), |channel| {
                    let request = request.clone();
                    async move { services::store(channel).read(request).await }
                })
                .await;
            match answer {
                Err(error) if passes(&error) => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    /// Whether all of these are there now.
    pub(super) async fn there(&self, keys: Vec<Bytes>) -> Result<bool, ClientError> {
        let awaited = keys.into_iter().map(present).collect();
        self.ask(awaited, 0).await
    }

    /// Returns once all of these are there.
    pub(super) async fn wait(&self, awaited: Vec<v1::StoreAwaited>) -> Result<(), ClientError> {
        while !self.ask(awaited.clone(), WAIT_MS).await? {}
        Ok(())
    }

    async fn ask(&self, awaited: Vec<v1::StoreAwaited>, wait_ms: u64) -> Result<bool, ClientError> {
        let request = v1::StoreWaitRequest { store: Some(self.name.clone()), awaited, wait_ms };
        let options = CallOptions::read().attempt_timeout(WAIT_ATTEMPT);
        loop {
            let answer = self
                .client
                .with_leader_opts("wait for the store", options, |channel| {
                    let request = request.clone();
                    async move { services::store(channel).wait(request).await }
                })
                .await;
            match answer {
                Ok(answer) => return Ok(answer.ready),
                Err(error) if passes(&error) => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(error),
            }
        }
    }
}

/// A key with a value, or a queue with something in it.
pub(super) fn present(key: Bytes) -> v1::StoreAwaited {
    v1::StoreAwaited { key, at_least: None }
}

/// Whether the same request may yet be answered.
fn passes(error: &ClientError) -> bool {
    match error {
        ClientError::NoLeader { .. }
        | ClientError::Timeout { .. }
        | ClientError::OutcomeUnknown { .. } => true,
        ClientError::Rpc(error) => error.retryable,
        _ => false,
    }
}
