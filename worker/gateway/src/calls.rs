//! Owns: the calls of a shared store. Each call is repeated while the cluster has no leader.
//!
//! Invariant: an error is final.
//! Absent: request IDs. The caller that makes a change assigns them.

use std::time::Duration;

use bytes::Bytes;
use rollout_proto::{CallOptions, Client, ClientError, services, v1};

use super::sessions::until_answered;
use super::wait_room::WaitRoom;

/// Limit of one attempt of a wait: the leader's time plus the round trip.
const WAIT_ATTEMPT: Duration = Duration::from_secs(15);

/// Sends a change once, with the client's own retries.
pub(crate) async fn apply(
    client: &Client,
    request: v1::StoreApplyRequest,
) -> Result<v1::StoreApplyResponse, ClientError> {
    let ask = |channel| {
        let request = request.clone();
        async move { services::store(channel).apply(request).await }
    };
    client.with_leader("change the store", ask).await
}

pub(crate) async fn read(
    client: &Client,
    request: v1::StoreReadRequest,
) -> Result<v1::StoreReadResponse, ClientError> {
    let ask = |channel| {
        let request = request.clone();
        async move { services::store(channel).read(request).await }
    };
    until_answered(|| client.with_leader_opts("read the store", CallOptions::read(), ask)).await
}

/// Waits for its turn, and then for as long as the leader holds a wait.
pub(crate) async fn wait(
    (client, room): (&Client, &WaitRoom),
    request: v1::StoreWaitRequest,
) -> Result<v1::StoreWaitResponse, ClientError> {
    let place = room.enter().await;
    wait_once(client, v1::StoreWaitRequest { wait_ms: place.wait_ms, ..request }).await
}

/// The same for as long as the request says, without a turn: use it only without a wait.
pub(crate) async fn wait_once(
    client: &Client,
    request: v1::StoreWaitRequest,
) -> Result<v1::StoreWaitResponse, ClientError> {
    let options = CallOptions::read().attempt_timeout(WAIT_ATTEMPT);
    let ask = |channel| {
        let request = request.clone();
        async move { services::store(channel).wait(request).await }
    };
    until_answered(|| client.with_leader_opts("wait for the store", options, ask)).await
}

/// The value in an answer, if it has one.
pub(crate) fn value(answer: v1::StoreAnswer) -> Option<Bytes> {
    match answer.kind {
        Some(v1::store_answer::Kind::Value(value)) => Some(value),
        _ => None,
    }
}
