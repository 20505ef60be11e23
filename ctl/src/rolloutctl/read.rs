//! One read that the leader answers.
//!
//! Invariant: a read changes nothing, so it has no number and may be repeated freely. Absent: answers
//! while there is no leader; see `unconfirmed`.

use rollout_proto::{CallOptions, Channel, Client, ClientError, HasHeader};
use tonic::{Response, Status};

/// Asks the leader with `send`. `what` names the call in errors.
pub(super) async fn read<R, T, Fut>(
    client: &Client,
    what: &'static str,
    request: &R,
    send: impl Fn(Channel, R) -> Fut,
) -> Result<T, ClientError>
where
    R: Clone,
    T: HasHeader,
    Fut: Future<Output = Result<Response<T>, Status>>,
{
    let options = CallOptions::read();
    client.with_leader_opts(what, options, |channel| send(channel, request.clone())).await
}
