//! Owns: a job's store as its users know it, one call an operation.
//!
//! Invariant: a change is asked for under one request id until the cluster has answered, however long it has no leader;
//! what only reads is asked again. Of a session that the cluster has forgotten nobody hears. An error is for good.
//! Absent: giving up. Whoever asked does that, by going away; then the change may yet take effect.

use std::time::Duration;

use bytes::Bytes;
use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, RpcError, services, v1};

use super::sessions::Sessions;
use super::waiting::Waiting;

/// How long the leader holds a wait before it says that nothing has come.
const WAIT_MS: u64 = 10_000;
/// One attempt of a wait: the leader's time, and some for the way.
const WAIT_ATTEMPT: Duration = Duration::from_secs(15);
/// Between two tries when the cluster has no leader for long.
pub const PAUSE: Duration = Duration::from_millis(100);
/// How often the store is used when nobody else does: well within the day after which it would be forgotten.
const USE_EVERY: Duration = Duration::from_secs(3600);
/// Bytes of values in one answer. A store has no more, but a key may be asked for twice.
const VALUES_BYTES_MAX: usize = 64 << 20;

/// A job's store. Clones share connections and sessions.
#[derive(Clone)]
pub struct JobStore {
    client: Client,
    sessions: Sessions,
    name: v1::StoreName,
}

impl JobStore {
    /// The store of this name. Nothing is asked of the cluster yet.
    pub fn new(client: Client, name: v1::StoreName) -> Self {
        Self { sessions: Sessions::new(client.clone()), client, name }
    }

    /// The client that it asks with.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its name.
    pub fn name(&self) -> &v1::StoreName {
        &self.name
    }

    /// Says that the store is in use.
    pub async fn use_it(&self) -> Result<(), ClientError> {
        self.apply(Vec::new()).await.map(|_| ())
    }

    /// A job may compute for days without its store; it must not be forgotten meanwhile. Returns only when the cluster
    /// refuses it.
    pub async fn keep_using(&self) -> ClientError {
        loop {
            tokio::time::sleep(USE_EVERY).await;
            match self.use_it().await {
                // It was asked for too long to say whether it was in use; the next time it is, in another session.
                Err(error) if error.code() == Some(ErrorCode::SessionUnknown) => {}
                Err(error) => return error,
                Ok(()) => {}
            }
        }
    }

    /// One change, and what it answered.
    pub async fn change(
        &self,
        kind: v1::store_op::Kind,
    ) -> Result<v1::store_answer::Kind, ClientError> {
        let answers = self.apply(vec![v1::StoreOp { kind: Some(kind) }]).await?;
        let answer = answers.into_iter().next().and_then(|answer| answer.kind);
        Ok(answer.unwrap_or(v1::store_answer::Kind::Nothing(true)))
    }

    async fn apply(&self, ops: Vec<v1::StoreOp>) -> Result<Vec<v1::StoreAnswer>, ClientError> {
        let request = v1::StoreApplyRequest { request: None, store: Some(self.name.clone()), ops };
        let changed = self.sessions.change_until_answered(|id| {
            let request = v1::StoreApplyRequest { request: Some(id), ..request.clone() };
            self.client.with_leader("change the store", move |channel| {
                let request = request.clone();
                async move { services::store(channel).apply(request).await }
            })
        });
        Ok(changed.await?.answers)
    }

    /// Values by position, or nothing where a key has none. They are of one moment only where they are few: what is
    /// over 8 MiB is asked for again.
    pub async fn values(&self, keys: Vec<Bytes>) -> Result<Vec<Option<Bytes>>, ClientError> {
        let mut values = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        while values.len() < keys.len() {
            let keys = keys[values.len()..].to_vec();
            let answer = self.read(v1::StoreReadRequest { keys, ..Default::default() }).await?;
            if answer.values.is_empty() {
                break;
            }
            for value in answer.values {
                let value = match value.kind {
                    Some(v1::store_answer::Kind::Value(value)) => Some(value),
                    _ => None,
                };
                bytes += value.as_ref().map_or(0, Bytes::len);
                values.push(value);
            }
            if bytes > VALUES_BYTES_MAX {
                let message = format!(
                    "the values take more than {VALUES_BYTES_MAX} bytes: ask for fewer keys"
                );
                return Err(RpcError::new(ErrorCode::LimitExceeded, message).into());
            }
        }
        Ok(values)
    }

    /// Whether the key itself has a value, whatever the queue of its name has.
    pub async fn has_value(&self, key: Bytes) -> Result<bool, ClientError> {
        let asked = v1::StoreReadRequest { keys: vec![key], ..Default::default() };
        let value = self.read(asked).await?.values.into_iter().next().and_then(|v| v.kind);
        Ok(matches!(value, Some(v1::store_answer::Kind::Value(_))))
    }

    /// What the store says of itself.
    pub async fn read(
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
                Err(error) if error.may_pass() => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }

    /// Whether all of these are there now.
    pub async fn there(&self, keys: Vec<Bytes>) -> Result<bool, ClientError> {
        Ok(self.ask(keys.into_iter().map(present).collect(), 0).await?.ready)
    }

    /// Returns once each of these was there, though not all at one time: as in TCPStore.
    pub async fn wait(&self, waiting: &Waiting) -> Result<(), ClientError> {
        loop {
            let left = waiting.left();
            let answer = self.ask(left, WAIT_MS).await?;
            if answer.ready {
                return Ok(());
            }
            waiting.saw(&answer.seen);
        }
    }

    async fn ask(
        &self,
        awaited: Vec<v1::StoreAwaited>,
        wait_ms: u64,
    ) -> Result<v1::StoreWaitResponse, ClientError> {
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
                Err(error) if error.may_pass() => tokio::time::sleep(PAUSE).await,
                answer => return answer,
            }
        }
    }
}

/// A key with a value, or a queue with something in it.
pub fn present(key: Bytes) -> v1::StoreAwaited {
    v1::StoreAwaited { key, at_least: None }
}
