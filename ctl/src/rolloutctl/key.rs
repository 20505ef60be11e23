//! `rolloutctl key`: API keys, with which callers of the HTTP API authenticate.
//!
//! Invariant: a secret is drawn here, shown once, and never sent: the cluster gets the hash of the key's text.

pub(super) mod create;
pub(super) mod describe;
pub(super) mod list;
pub(super) mod revoke;
mod summary;

use rollout_proto::{Client, ClientError, services, v1};

use crate::rolloutctl::read::read;
use summary::Key;

/// Asks the leader for a key.
async fn fetch(client: &Client, id: &str) -> Result<Key, ClientError> {
    let request = v1::DescribeKeyRequest { id: id.to_owned() };
    let answer = read(client, "describe API key", &request, |channel, request| async move {
        services::keys(channel).describe_key(request).await
    })
    .await?;
    Ok(answer.key.unwrap_or_default().into())
}
