//! Calls the leader, leaves it when it fails, and decides when to give up.
//!
//! *Invariant:* a silent member delays a call only until another one is known to lead: the client asks the others at
//! the same time. The call's own deadline is the last resort.
//!
//! Absent: which member to ask for the leader (`search`), and which answers prove that a member leads
//! (`probe`).

use std::collections::HashSet;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tonic::Status;
use tracing::Instrument;

use super::retry_backoff::RetryBackoff;
use super::{CallOptions, Client, ClientError, HasHeader, MemberRef};
use crate::endpoint::Endpoint;
use crate::error::{ErrorCode, Outcome, RpcError};
use crate::stamp::Channel;
use crate::trace::{self, Span, SpanKind};

/// Silence of a leader after which the others are asked.
const HEDGE_AFTER: Duration = Duration::from_millis(300);
/// A wait longer than a usual election is reported.
const REPORT_AFTER: Duration = Duration::from_millis(600);
/// Time between two reports.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// One call over all its attempts.
pub(super) struct Call {
    what: &'static str,
    started: Instant,
    pub(super) deadline: Instant,
    pub(super) backoff: RetryBackoff,
    /// A hint to follow next, and those followed since the last success.
    hint: Option<Endpoint>,
    followed_hints: HashSet<Endpoint>,
    /// A leader was found and called.
    leader_called: bool,
    /// A request was sent and its outcome is not known.
    pub(super) may_have_applied: bool,
}

impl Call {
    pub(super) fn give_up(&self, client: &Client) -> ClientError {
        if self.may_have_applied {
            return self.unknown(client, false);
        }
        if let Some(refusal) = client.refused() {
            return refusal;
        }
        let (what, waited_ms, tried) = (self.what, self.waited_ms(), client.tried());
        match self.leader_called {
            true if client.leader().is_some() => ClientError::Timeout { what, waited_ms, tried },
            _ => ClientError::NoLeader { what, waited_ms, tried },
        }
    }

    fn unknown(&self, client: &Client, forgotten: bool) -> ClientError {
        let (what, waited_ms, tried) = (self.what, self.waited_ms(), client.tried());
        ClientError::OutcomeUnknown { what, waited_ms, tried, forgotten }
    }

    pub(super) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    fn waited_ms(&self) -> u64 {
        u64::try_from(self.waited().as_millis()).unwrap_or(u64::MAX)
    }
}

/// How an attempt ended.
enum Attempt<T> {
    Answered(tonic::Response<T>),
    Failed(Status),
    Silent,
    /// Another member leads.
    Left,
}

impl<T> Attempt<T> {
    fn end(&self, mut span: Span) {
        match self {
            Self::Answered(_) => span.done(),
            Self::Failed(status) => {
                span.note("rpc.grpc.status_code", status.code() as u64);
                span.failed(|| status.message().to_owned());
            }
            Self::Silent => span.failed(|| "no answer in time".to_owned()),
            Self::Left => span.failed(|| "silent while another member leads".to_owned()),
        }
    }
}

impl Client {
    /// Calls the present leader, with [`CallOptions::default`].
    pub async fn with_leader<T, F, Fut>(&self, what: &'static str, f: F) -> Result<T, ClientError>
    where
        T: HasHeader,
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        self.with_leader_opts(what, CallOptions::default(), f).await
    }

    /// Calls the leader until it answers, refuses permanently, or the time is over. `f` sends the same request every
    /// time it is called, with the same request id. `what` names the call in errors. A retryable refusal, a lost
    /// connection and a silent member lead to another attempt.
    pub async fn with_leader_opts<T, F, Fut>(
        &self,
        what: &'static str,
        options: CallOptions,
        f: F,
    ) -> Result<T, ClientError>
    where
        T: HasHeader,
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        // All attempts are one trace: the caller's, or a new one.
        let call_span = Span::part(SpanKind::Internal, what);
        let traced = call_span.context();
        let span = tracing::info_span!("call", what, trace_id = traced.trace_id());
        let call = async {
            let result = self.call_leader(what, options, f).await;
            match &result {
                Ok(_) => call_span.done(),
                Err(error) => call_span.failed(|| error.to_string()),
            }
            result
        };
        // On the heap, because otherwise each layer around it would double the size of its callers' futures.
        Box::pin(trace::within(traced, call.instrument(span))).await
    }

    async fn call_leader<T, F, Fut>(
        &self,
        what: &'static str,
        options: CallOptions,
        f: F,
    ) -> Result<T, ClientError>
    where
        T: HasHeader,
        F: Fn(Channel) -> Fut,
        Fut: Future<Output = Result<tonic::Response<T>, Status>>,
    {
        let mut call = self.call(what, &options);
        loop {
            let leader = match call.hint.take() {
                Some(hinted) => hinted,
                None => self.find_leader(&mut call).await?,
            };
            let channel = self.channel_to(&leader)?;
            call.leader_called = true;
            let mut span = Span::part(SpanKind::Client, what);
            if span.is_recorded() {
                span.note("rollout.leader", MemberRef::from(&leader).to_string());
            }
            let answer = trace::within(span.context(), f(channel));
            let attempt = self.attempt(&leader, &call, options.attempt_timeout, answer).await;
            attempt.end(span);
            match self.settle(&leader, &mut call, &options, attempt) {
                Some(result) => return result,
                None if Instant::now() >= call.deadline => return Err(call.give_up(self)),
                None => self.wait_a_little(&mut call).await,
            }
        }
    }

    /// The leader and a channel to it, for streams. When the stream breaks or the leader falls silent, call
    /// [`Self::leader_failed`], and then this again.
    pub async fn leader_channel(&self) -> Result<(MemberRef, Channel), ClientError> {
        let mut call = self.call("find the leader", &CallOptions::read());
        let leader = self.find_leader(&mut call).await?;
        let channel = self.channel_to(&leader)?;
        Ok((MemberRef::from(&leader), channel))
    }

    /// Asks all members until one other than `current` is known to lead. For a stream that has fallen silent but did
    /// not break: drop it when this returns.
    pub async fn other_leader(&self, current: &MemberRef) -> MemberRef {
        MemberRef::from(&self.find_other_leader(current).await)
    }

    fn call(&self, what: &'static str, options: &CallOptions) -> Call {
        let started = Instant::now();
        let timeout = options.timeout.unwrap_or(self.inner.config.timeout);
        Call {
            what,
            started,
            deadline: started + timeout,
            backoff: RetryBackoff::new(self.longest_wait()),
            hint: None,
            followed_hints: HashSet::new(),
            leader_called: false,
            may_have_applied: false,
        }
    }

    async fn attempt<T>(
        &self,
        leader: &Endpoint,
        call: &Call,
        attempt_timeout: Duration,
        answer: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Attempt<T> {
        let limit = call.deadline.min(Instant::now() + attempt_timeout);
        let leader = MemberRef::from(leader);
        let hedge = async {
            sleep(HEDGE_AFTER).await;
            tokio::select! {
                _ = self.find_other_leader(&leader) => {}
                () = self.keep_reporting(call) => {}
            }
        };
        tokio::select! {
            biased;
            ended = timeout_at(limit, answer) => match ended {
                Ok(Ok(response)) => Attempt::Answered(response),
                Ok(Err(status)) => Attempt::Failed(status),
                Err(_) => Attempt::Silent,
            },
            () = hedge => Attempt::Left,
        }
    }

    /// The result of the call after this attempt; `None` to try again.
    fn settle<T: HasHeader>(
        &self,
        leader: &Endpoint,
        call: &mut Call,
        options: &CallOptions,
        attempt: Attempt<T>,
    ) -> Option<Result<T, ClientError>> {
        match attempt {
            Attempt::Answered(response) => {
                let answer = response.into_inner();
                match answer.header().map_or(Ok(()), |header| self.observe(header)) {
                    Ok(()) => {
                        self.lead_confirmed_by_answer(leader);
                        return Some(Ok(answer));
                    }
                    Err(error) => {
                        self.record_answer(leader, error.message, None);
                        self.drop_leader(leader);
                        call.may_have_applied |= !options.read;
                    }
                }
            }
            Attempt::Failed(status) => return self.settle_failure(leader, call, options, &status),
            Attempt::Silent => {
                self.record_answer(leader, "did not answer the request in time".to_owned(), None);
                self.drop_leader(leader);
                call.may_have_applied |= !options.read;
                call.backoff.reset();
            }
            Attempt::Left => {
                self.record_answer(leader, "was silent when another one led".to_owned(), None);
                call.may_have_applied |= !options.read;
                call.backoff.reset();
            }
        }
        None
    }

    fn settle_failure<T>(
        &self,
        leader: &Endpoint,
        call: &mut Call,
        options: &CallOptions,
        status: &Status,
    ) -> Option<Result<T, ClientError>> {
        let failed = ClientError::of_member(status, leader);
        if failed.is_revoked() {
            self.record_failure(leader, status);
            // An earlier attempt may have been applied before the certificate was refused.
            let failed = if call.may_have_applied { call.unknown(self, false) } else { failed };
            return Some(Err(failed));
        }
        let error = RpcError::from_status(status);
        let connect = matches!(failed, ClientError::Connect(_));
        if !connect && !error.retryable {
            // If the session is forgotten, so is the answer of an attempt that may have been executed.
            let forgotten = call.may_have_applied && error.code == ErrorCode::SessionUnknown;
            let failed = if forgotten { call.unknown(self, true) } else { ClientError::Rpc(error) };
            return Some(Err(failed));
        }
        self.record_failure(leader, status);
        call.may_have_applied |= !options.read && !connect && error.outcome != Outcome::NotApplied;
        match error.code {
            // The leader is the right one, but cannot serve just now.
            ErrorCode::Overloaded
            | ErrorCode::StoreUnavailable
            | ErrorCode::SegmentUnreadable
            | ErrorCode::OutcomeUnknown
                if !connect => {}
            _ => {
                self.drop_leader(leader);
                call.hint = self.hint(leader, call, &error);
            }
        }
        None
    }

    /// The leader that the refusal names, unless a hint was already followed to it.
    fn hint(&self, asked: &Endpoint, call: &mut Call, error: &RpcError) -> Option<Endpoint> {
        if error.leader_addr.is_empty() {
            return None;
        }
        let hint = match error.leader_name.is_empty() {
            true => Endpoint::seed(&error.leader_addr),
            false => Endpoint::with_name(&error.leader_name, &error.leader_addr),
        };
        hint.ok().filter(|hint| hint != asked && call.followed_hints.insert(hint.clone()))
    }

    /// Records the sender of an answer as the leader, unless a newer leader was found while the answer was on its way.
    fn lead_confirmed_by_answer(&self, leader: &Endpoint) {
        *self.inner.leaderless_since.lock() = None;
        let mut view = self.inner.cluster_view.lock();
        if view.leader.is_none() {
            view.set_leader(leader.clone());
        }
    }

    fn drop_leader(&self, leader: &Endpoint) {
        let mut view = self.inner.cluster_view.lock();
        if view.leader.as_ref() == Some(leader) {
            view.leader = None;
        }
    }

    async fn wait_a_little(&self, call: &mut Call) {
        self.report_wait(call);
        // The first hint is followed at once: it costs no member a second call.
        if call.hint.is_none() || call.followed_hints.len() > 1 {
            sleep(call.backoff.next_wait()).await;
        }
    }

    /// Reports what an attempt without an answer waits for. Never returns.
    async fn keep_reporting(&self, call: &Call) {
        loop {
            sleep(REPORT_EVERY).await;
            self.report_wait(call);
        }
    }

    pub(super) fn report_wait(&self, call: &Call) {
        let Some(on_wait) = &self.inner.config.on_wait else { return };
        if call.started.elapsed() < REPORT_AFTER {
            return;
        }
        {
            let mut last = self.inner.last_wait_report.lock();
            if last.is_some_and(|last| last.elapsed() < REPORT_EVERY) {
                return;
            }
            *last = Some(Instant::now());
        }
        let each: Vec<_> =
            self.tried().into_iter().map(|(who, why)| format!("{who}: {why}")).collect();
        let state = if self.leader().is_some() { "the leader is busy" } else { "no leader" };
        on_wait(&format!("{state}: {}", each.join(", ")));
    }
}
