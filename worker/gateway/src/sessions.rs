//! Owns: the client sessions that carry changes.
//!
//! Invariant: a session has one change in flight at a time, so a change that waits never keeps the cluster from
//! forgetting the answers of another. A session that the cluster may have forgotten is never reused. A change moves to
//! a second session only if no attempt in the first can have been executed.
//! Absent: a bound on concurrent changes; the caller has one.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollout_proto::{Client, ClientError, ErrorCode, Session, v1};
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

    /// The session that was used last, or a new one, for which one call asks: as long as the client tries any.
    ///
    /// # Errors
    /// A new one is needed, and was refused, or the cluster cannot be reached.
    pub async fn take_once(&self) -> Result<Lent, ClientError> {
        let last = self.idle.lock().pop();
        match last {
            Some((session, used)) if used.elapsed() < USED_WITHIN => Ok(self.lend(session)),
            _ => self.open().await,
        }
    }

    /// A new session.
    ///
    /// # Errors
    /// The cluster refuses, or cannot be reached.
    pub async fn open(&self) -> Result<Lent, ClientError> {
        Ok(self.lend(self.client.open_session("training").await?))
    }

    fn lend(&self, session: Session) -> Lent {
        Lent { session, idle: self.idle.clone(), forgotten: false }
    }

    /// Asks for a change under a request id of its own. Where the cluster has forgotten the session before, it is asked
    /// for once more in a new one. How long `ask` tries is its own business; it is one call of the client.
    ///
    /// # Errors
    /// The last answer of `ask`, or that there is no session to be had.
    pub async fn change<T, Fut>(&self, ask: impl Fn(v1::RequestId) -> Fut) -> Result<T, ClientError>
    where
        Fut: Future<Output = Result<T, ClientError>>,
    {
        match self.take_once().await?.ask(&ask).await {
            Err(refusal) if was_forgotten(&refusal) => self.open().await?.ask(&ask).await,
            answer => answer,
        }
    }

    /// The same, repeated until the cluster answers or refuses, however long it has no leader. Whoever waits has a limit.
    ///
    /// # Errors
    /// The refusal; or `OutcomeUnknown` where the cluster has forgotten the session after an attempt that may have been
    /// executed.
    pub async fn change_until_answered<T, Fut>(
        &self,
        ask: impl Fn(v1::RequestId) -> Fut,
    ) -> Result<T, ClientError>
    where
        Fut: Future<Output = Result<T, ClientError>>,
    {
        let again = |id: v1::RequestId| {
            let ask = &ask;
            until_certain(move || ask(id))
        };
        let lent = until_answered(|| self.take_once()).await?;
        match lent.ask(&again).await {
            Err(refusal) if was_forgotten(&refusal) => {
                until_answered(|| self.open()).await?.ask(&again).await
            }
            answer => answer,
        }
    }
}

/// Whether a change that was asked for in one call of the client was refused, and not made, because the cluster had
/// forgotten its session before. Where an attempt of the call may have been executed, the client says that instead.
pub fn was_forgotten(refusal: &ClientError) -> bool {
    refusal.code() == Some(ErrorCode::SessionUnknown)
}

impl Lent {
    /// The session; one request of it at a time.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Notes an answer to what was asked for in this session: one that the cluster does not know any more is lent to
    /// nobody again.
    pub fn heard<T>(&mut self, answer: &Result<T, ClientError>) {
        let unknown = |error: &ClientError| {
            was_forgotten(error)
                || matches!(error, ClientError::OutcomeUnknown { forgotten: true, .. })
        };
        self.forgotten |= answer.as_ref().is_err_and(unknown);
    }

    async fn ask<T, Fut>(mut self, ask: impl Fn(v1::RequestId) -> Fut) -> Result<T, ClientError>
    where
        Fut: Future<Output = Result<T, ClientError>>,
    {
        let pending = self.session.request();
        let answer = ask(pending.id()).await;
        self.heard(&answer);
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

/// Repeats the same change until the cluster answers or refuses. Once an attempt may have been executed, that the session
/// is forgotten is no refusal: whether it was executed is then unknown for good.
async fn until_certain<T, Fut>(ask: impl Fn() -> Fut) -> Result<T, ClientError>
where
    Fut: Future<Output = Result<T, ClientError>>,
{
    let mut doubt = None;
    loop {
        match (ask().await, doubt.take()) {
            (Err(error), Some(mut doubt)) if was_forgotten(&error) => {
                if let ClientError::OutcomeUnknown { forgotten, .. } = &mut doubt {
                    *forgotten = true;
                }
                return Err(doubt);
            }
            (Err(error), before) if error.may_pass() => {
                let unknown = matches!(error, ClientError::OutcomeUnknown { .. });
                doubt = if unknown { Some(error) } else { before };
                tokio::time::sleep(PAUSE).await;
            }
            (answer, _) => return answer,
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

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_proto::RpcError;
    use std::collections::VecDeque;

    fn unknown() -> ClientError {
        let tried = Vec::new();
        ClientError::OutcomeUnknown { what: "add", waited_ms: 1, tried, forgotten: false }
    }

    fn no_leader() -> ClientError {
        ClientError::NoLeader { what: "add", waited_ms: 1, tried: Vec::new() }
    }

    fn forgotten() -> ClientError {
        RpcError::new(ErrorCode::SessionUnknown, "it is forgotten").into()
    }

    async fn told(answers: Vec<Result<i64, ClientError>>) -> Result<i64, ClientError> {
        let answers = Mutex::new(VecDeque::from(answers));
        let next = || {
            let answer = answers.lock().pop_front().expect("it is asked no more");
            async move { answer }
        };
        until_certain(next).await
    }

    #[tokio::test]
    async fn a_change_that_may_have_been_executed_is_not_taken_for_one_that_was_refused() {
        let refused = told(vec![Err(no_leader()), Err(forgotten())]).await.expect_err("refused");
        assert!(was_forgotten(&refused), "it was never asked of anybody: {refused}");
        let doubtful = told(vec![Err(unknown()), Err(no_leader()), Err(forgotten())]).await;
        let doubtful = doubtful.expect_err("unknown");
        assert!(
            matches!(doubtful, ClientError::OutcomeUnknown { forgotten: true, .. }),
            "nobody is told that a repeat is safe: {doubtful}"
        );
        assert!(!was_forgotten(&doubtful), "or it would be executed again");
        assert_eq!(told(vec![Err(unknown()), Ok(7)]).await.expect("an answer"), 7);
    }
}
