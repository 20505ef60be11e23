//! Owns: the client sessions in which changes are asked for.
//!
//! Invariant: a session has one change under way at a time, so that what one waits for never keeps the cluster from
//! forgetting the answers of another; and one that the cluster may have forgotten is never used again.
//! Absent: a bound on changes at a time; whoever asks has one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollout_proto::{Client, ClientError, Session};
use tokio::time::Instant;

use super::job_store::PAUSE;

/// Sessions that wait for their next change. The cluster forgets those over it by itself, after a day.
const IDLE_MAX: usize = 64;
/// A session that was not used for so long is left alone: half of what the cluster remembers it for.
const USED_WITHIN: Duration = Duration::from_secs(12 * 3600);

/// Sessions of one client. Clones share them.
#[derive(Clone)]
pub struct Sessions {
    client: Client,
    idle: Arc<Mutex<Vec<(Session, Instant)>>>,
}

/// A session, for one change; the next one gets it when this is dropped.
pub struct Lent {
    session: Session,
    idle: Arc<Mutex<Vec<(Session, Instant)>>>,
    forgotten: bool,
}

impl Sessions {
    /// Sessions of this client; none is open yet.
    pub fn new(client: Client) -> Self {
        Self { client, idle: Arc::default() }
    }

    /// The session that was used last, or a new one.
    ///
    /// However long the cluster has no leader. An error is for good.
    pub async fn take(&self) -> Result<Lent, ClientError> {
        let last = self.idle.lock().pop();
        let session = match last {
            Some((session, used)) if used.elapsed() < USED_WITHIN => session,
            _ => loop {
                match self.client.open_session("training").await {
                    Err(error) if error.may_pass() => tokio::time::sleep(PAUSE).await,
                    opened => break opened?,
                }
            },
        };
        Ok(Lent { session, idle: self.idle.clone(), forgotten: false })
    }
}

impl Lent {
    /// The session; one request of it at a time.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The cluster does not know it any more.
    pub fn forget(&mut self) {
        self.forgotten = true;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut idle = self.idle.lock();
        if !self.forgotten && idle.len() < IDLE_MAX {
            idle.push((self.session.clone(), Instant::now()));
        }
    }
}
