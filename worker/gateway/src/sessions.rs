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

/// The pause between two tries when the cluster has no leader for long.
pub const PAUSE: Duration = Duration::from_millis(100);
/// Sessions that wait for their next change. The cluster forgets surplus ones by itself, after a day.
const IDLE_MAX: usize = 64;
/// A session unused for this long is not used again: half of the time for which the cluster remembers it.
const USED_WITHIN: Duration = Duration::from_secs(12 * 3600);

/// Sessions of one client. Clones share them.
#[derive(Clone)]
pub struct Sessions {
    client: Client,
    idle: Arc<Mutex<Vec<(Session, Instant)>>>,
}

/// A session on loan for one change; dropping it returns it for the next one.
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

    /// The session that was used last, or a new one, opened by one call with the client's own retries.
    ///
    /// # Errors
    /// A new session is needed and was refused, or the cluster is unreachable.
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
    /// The cluster refuses or is unreachable.
    pub async fn open(&self) -> Result<Lent, ClientError> {
        Ok(self.lend(self.client.open_session("training").await?))
    }

    fn lend(&self, session: Session) -> Lent {
        Lent { session, idle: self.idle.clone(), forgotten: false }
    }

    /// Makes a change under its own request ID. If the cluster had already forgotten the session, the change is made
    /// once more in a new one. `ask` decides how long it tries; it is one call of the client.
    ///
    /// # Errors
    /// The last answer of `ask`, or that no session could be opened.
    pub async fn change<T, Fut>(&self, ask: impl Fn(v1::RequestId) -> Fut) -> Result<T, ClientError>
    where
        Fut: Future<Output = Result<T, ClientError>>,
    {
        match self.take_once().await?.ask(&ask).await {
            Err(refusal) if was_forgotten(&refusal) => self.open().await?.ask(&ask).await,
            answer => answer,
        }
    }

    /// The same, repeated until the cluster answers or refuses, even if it has no leader for long. The caller sets a
    /// limit.
    ///
    /// # Errors
    /// The refusal, or `OutcomeUnknown` if the cluster has forgotten the session after an attempt that may have been
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

/// Whether a change sent in one call of the client was refused and not made because the cluster had already forgotten
/// its session. If an attempt of the call may have been executed, the client reports that instead.
pub fn was_forgotten(refusal: &ClientError) -> bool {
    refusal.code() == Some(ErrorCode::SessionUnknown)
}

impl Lent {
    /// The session; it carries one request at a time.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Records an answer to a request in this session: a session that the cluster no longer knows is not lent again.
    pub fn record<T>(&mut self, answer: &Result<T, ClientError>) {
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
        self.record(&answer);
        answer
    }
}

/// Repeats the same request until the cluster answers or refuses. The caller sets a limit.
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

/// Repeats the same change until the cluster answers or refuses. Once an attempt may have been executed, a forgotten
/// session is not a refusal: it leaves the outcome permanently unknown.
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

    async fn answer(answers: Vec<Result<i64, ClientError>>) -> Result<i64, ClientError> {
        let answers = Mutex::new(VecDeque::from(answers));
        let next = || {
            let answer = answers.lock().pop_front().expect("it is asked no more");
            async move { answer }
        };
        until_certain(next).await
    }

    #[tokio::test]
    async fn a_change_that_may_have_been_executed_is_not_taken_for_one_that_was_refused() {
        let refused = answer(vec![Err(no_leader()), Err(forgotten())]).await.expect_err("refused");
        assert!(was_forgotten(&refused), "no member was asked: {refused}");
        let doubtful = answer(vec![Err(unknown()), Err(no_leader()), Err(forgotten())]).await;
        let doubtful = doubtful.expect_err("unknown");
        assert!(
            matches!(doubtful, ClientError::OutcomeUnknown { forgotten: true, .. }),
            "no error says that a repeat is safe: {doubtful}"
        );
        assert!(!was_forgotten(&doubtful), "or it would be executed again");
        assert_eq!(answer(vec![Err(unknown()), Ok(7)]).await.expect("an answer"), 7);
    }
}
