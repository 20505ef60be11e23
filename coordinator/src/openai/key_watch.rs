//! Owns: the end of requests in progress when their key ends.
//!
//! Invariant: a key that was revoked or has expired serves no byte of a request within 5 s, on any member: this member
//! notices what it has applied within [`LOOK_EVERY`], and ends all requests if it has not heard of a leader lately.
//! Absent: requests that begin later (`auth`).

use crate::openai::auth::KeyCaller;
use crate::openai::error::ApiError;
use crate::openai::state::ApiState;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// How often this member checks whether a key has ended and whether it is in contact with a leader.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// What requests in progress depend on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    changes: u64,
    in_contact: bool,
}

impl Seen {
    fn now(api: &ApiState) -> Self {
        let changes = api.ledger(|l| l.api_key_changes());
        Self { changes, in_contact: api.check_contact().is_ok() }
    }
}

/// Tells requests in progress when to look at their keys.
#[derive(Default)]
pub(super) struct KeyWatch(watch::Sender<Seen>);

impl KeyWatch {
    /// Follows the ledger of this member, for as long as it runs.
    pub(super) async fn follow(&self, api: &ApiState) {
        loop {
            self.look(api);
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    fn look(&self, api: &ApiState) {
        let now = Seen::now(api);
        self.0.send_if_modified(|seen| {
            let changed = *seen != now;
            *seen = now;
            changed
        });
    }

    /// The changes from now on. Subscribe before the caller is authenticated, so that no change is missed.
    pub(super) fn subscribe(&self) -> watch::Receiver<Seen> {
        self.0.subscribe()
    }
}

/// Waits until the caller's key has ended, or until this member cannot know whether it has.
pub(super) async fn ended(
    api: Arc<ApiState>,
    caller: Arc<KeyCaller>,
    mut changes: watch::Receiver<Seen>,
) -> ApiError {
    loop {
        if changes.changed().await.is_err() {
            // The listener ends, and closes its connections.
            std::future::pending::<()>().await;
        }
        if let Err(error) = api.check_contact() {
            return error;
        }
        if !api.ledger(|l| l.api_key(&caller.key_id).is_some()) {
            return ApiError::invalid_key("The API key was revoked or has expired.");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::test_cluster::TestCluster;
    use futures::FutureExt;
    use rollout_ledger::KeyRole;
    use rollout_proto::Identity;

    fn caller(id: &str) -> Arc<KeyCaller> {
        Arc::new(KeyCaller {
            key_id: id.into(),
            namespace: "team".into(),
            role: KeyRole::Client,
            limits: Default::default(),
            identity: Identity::unenrolled(),
        })
    }

    #[tokio::test]
    async fn a_request_ends_with_its_own_key() {
        let (cluster, watch) = (TestCluster::new(), KeyWatch::default());
        cluster.add_key("abcdefgh", "team", KeyRole::Client);
        cluster.add_key("other123", "team", KeyRole::Client);
        let api = cluster.api();
        watch.look(&api);
        let mut request = Box::pin(ended(api.clone(), caller("abcdefgh"), watch.subscribe()));
        cluster.revoke_key("other123");
        watch.look(&api);
        assert_eq!(request.as_mut().now_or_never(), None, "another key was revoked");
        cluster.revoke_key("abcdefgh");
        watch.look(&api);
        assert_eq!(request.await.status(), 401);
    }

    #[tokio::test]
    async fn a_member_without_contact_to_a_leader_ends_every_request() {
        let (cluster, watch) = (TestCluster::new(), KeyWatch::default());
        cluster.add_key("abcdefgh", "team", KeyRole::Client);
        let api = cluster.api();
        watch.look(&api);
        let mut request = Box::pin(ended(api.clone(), caller("abcdefgh"), watch.subscribe()));
        watch.look(&api);
        assert_eq!(request.as_mut().now_or_never(), None, "nothing has changed");
        cluster.lose_contact();
        watch.look(&api);
        assert_eq!(request.await.status(), 503);
    }
}
