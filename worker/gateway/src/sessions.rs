//! Owns: the client sessions in which changes are asked for.
//!
//! Invariant: a session has one change under way at a time, so that what one waits for never keeps the cluster from
//! forgetting the answers of another; and one that the cluster may have forgotten is never used again.
//! Absent: a bound on changes at a time; whoever asks has one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollout_proto::{Client, ClientError, ErrorCode, Session};
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
            _ => until_answered(|| self.client.open_session("training")).await?,
        };
        Ok(Lent { session, idle: self.idle.clone(), forgotten: false })
    }
}

impl Lent {
    /// The session; one request of it at a time.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Repeats a change in this session until the cluster answers or refuses. Whoever waits has a limit.
    ///
    /// # Errors
    /// The refusal. A session that the cluster does not know any more is lent to nobody again.
    pub async fn until_answered<T, Fut>(&mut self, ask: impl Fn() -> Fut) -> Result<T, ClientError>
    where
        Fut: Future<Output = Result<T, ClientError>>,
    {
        let answer = until_answered(ask).await;
        let refusal = answer.as_ref().err().and_then(ClientError::code);
        self.forgotten |= refusal == Some(ErrorCode::SessionUnknown);
        answer
    }
}

/// Repeats the same request until the cluster answers or refuses. Whoever waits has a limit.
///
/// # Errors
/// The refusal.
pub async fn until_answered<T, Fut>(ask: impl Fn() -> Fut) -> Result<T, ClientError>
where
    Fut: Future<Output = Result<T, ClientError>>,
{
    loop {
        match ask().await {
            Err(error) if error.may_pass() => tokio::time::sleep(PAUSE).await,
            answer => return answer,
        }
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
