//! Owns: this process as a participant of a job without a rendezvous, which uses only barriers.
//!
//! *Invariant:* from registration until it leaves, or the cluster declares it gone, native threads keep it alive,
//! whatever Python does.
//! Absent: barriers; the package has those.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use pyo3::prelude::*;
use rollout_gateway::{PAUSE, Sessions};
use rollout_proto::{CallOptions, Client, ClientError, services, v1};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::error::raised;
use crate::wait::{runtime, wait_or_raise};

/// A participant. Dropping it stops its keep-alives, so the cluster declares it lost after a while.
#[pyclass(frozen)]
pub struct Participant {
    client: Client,
    sessions: Sessions,
    job: v1::JobName,
    /// The ticket by which the cluster knows it.
    #[pyo3(get)]
    ticket: u64,
    gone: Arc<Mutex<String>>,
    keeping: JoinHandle<()>,
}

impl Drop for Participant {
    fn drop(&mut self) {
        self.keeping.abort();
    }
}

impl Participant {
    /// Replaces any earlier participant of its name.
    pub(crate) fn start(
        py: Python<'_>,
        client: Client,
        job: v1::JobName,
        participant: v1::Participant,
        within: Duration,
    ) -> PyResult<Self> {
        let sessions = Sessions::new(client.clone());
        let attempts = participant.keep_alive_attempts;
        let came = come(&client, &sessions, &job, participant);
        let came = wait_or_raise(py, within, "the cluster does not answer", came)?;
        let came = came.map_err(raised)?;
        let (ticket, gone) = (came.ticket, Arc::new(Mutex::new(String::new())));
        let (status, every) = (gone.clone(), came.keep_alive_ms / u64::from(attempts.max(1)));
        let keeping = keep_alive(client.clone(), job.clone(), ticket, every, move |answer| {
            let lives = answer.gone.is_empty();
            *status.lock() = answer.gone;
            lives
        });
        let keeping = runtime()?.spawn(keeping);
        Ok(Self { client, sessions, job, ticket, gone, keeping })
    }
}

#[pymethods]
impl Participant {
    /// Why the cluster no longer counts it; empty if it does.
    #[getter]
    fn gone(&self) -> String {
        self.gone.lock().clone()
    }

    /// Leaves, and stops the keep-alives.
    fn leave(&self, py: Python<'_>, timeout_ms: u64) -> PyResult<()> {
        self.keeping.abort();
        let left = leave(&self.client, &self.sessions, &self.job, self.ticket);
        let within = Duration::from_millis(timeout_ms);
        wait_or_raise(py, within, "the cluster does not answer", left)?.map_err(raised)
    }
}

async fn come(
    client: &Client,
    sessions: &Sessions,
    job: &v1::JobName,
    participant: v1::Participant,
) -> Result<v1::JoinResponse, ClientError> {
    let came = sessions.change_until_answered(|id| {
        let request = v1::ParticipateRequest {
            request: Some(id),
            job: Some(job.clone()),
            participant: Some(participant.clone()),
        };
        client.with_leader("take part in the job", move |channel| {
            let request = request.clone();
            async move { services::rendezvous(channel).participate(request).await }
        })
    });
    came.await
}

/// Returns a ticket.
pub(crate) async fn leave(
    client: &Client,
    sessions: &Sessions,
    job: &v1::JobName,
    ticket: u64,
) -> Result<(), ClientError> {
    let left = sessions.change_until_answered(|id| {
        let request = v1::LeaveRequest { request: Some(id), job: Some(job.clone()), ticket };
        client.with_leader("leave the rendezvous", move |channel| {
            let request = request.clone();
            async move { services::rendezvous(channel).leave(request).await }
        })
    });
    left.await.map(drop)
}

/// Keeps a ticket alive until `on_answer` decides from an answer that it is over.
pub(crate) async fn keep_alive(
    client: Client,
    job: v1::JobName,
    ticket: u64,
    every_ms: u64,
    on_answer: impl Fn(v1::KeepAliveAnswer) -> bool,
) {
    let every = Duration::from_millis(every_ms.max(1));
    let participant = v1::ParticipantRef { job: Some(job), ticket };
    let request = v1::KeepAliveRequest { participants: vec![participant] };
    loop {
        let begun = Instant::now();
        let answer = client
            .with_leader_opts("keep the participant alive", CallOptions::read(), |channel| {
                let request = request.clone();
                async move { services::rendezvous(channel).keep_alive(request).await }
            })
            .await;
        let answer = match answer {
            Ok(answer) => answer.answers.into_iter().next().unwrap_or_default(),
            Err(error @ ClientError::Rpc(_)) if !error.may_pass() => {
                v1::KeepAliveAnswer { gone: error.to_string(), ..v1::KeepAliveAnswer::default() }
            }
            // Retry after a short pause, not a full period: the next leader has its own clock for the ticket.
            Err(_) => {
                sleep(PAUSE).await;
                continue;
            }
        };
        if !on_answer(answer) {
            return;
        }
        sleep(every.saturating_sub(begun.elapsed())).await;
    }
}
