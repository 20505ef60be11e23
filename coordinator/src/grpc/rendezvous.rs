//! `Rendezvous`: the participants of a training job, and its rounds.
//!
//! *Invariant:* a call with a ticket counts as its keep-alive; keep-alives change only this leader's memory. A wait is
//! a read, which a client repeats at the next leader.

use super::namespace::Listed;
use super::rosters::{Rosters, WaitResult};
use super::runs::unexpected;
use super::training_convert::{job_in, job_out};
use super::waits::Waits;
use super::{Shared, caller};
use crate::grpc::convert::{self, Checked};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::id::SessionId;
use rollout_ledger::{
    JobName, JobView, Ledger, OpKind, ParticipantDecl, ParticipantState, RendezvousConfig, Reply,
    limits, op,
};
use rollout_proto::{ErrorCode, Identity, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};
use v1::rendezvous_wait_response::Outcome;

/// The defaults of torch.
const KEEP_ALIVE_INTERVAL_MS: u32 = 5000;
const KEEP_ALIVE_ATTEMPTS: u32 = 3;
const JOIN_TIMEOUT_MS: u64 = 600_000;
const LAST_CALL_MS: u64 = 30_000;
/// Jobs or barriers in one answer.
pub(super) const PAGE_MAX: usize = 1000;
/// Departures in one answer.
const GONE_SHOWN: usize = 64;

#[derive(Clone)]
pub(crate) struct RendezvousService {
    shared: Arc<Shared>,
    waits: Waits,
    /// For waits for a round, which most joins do not concern.
    outcomes: Waits,
    rosters: Arc<Rosters>,
}

impl RendezvousService {
    pub(crate) fn new(shared: Arc<Shared>, waits: Waits) -> Self {
        let outcomes = Waits::new(shared.clone(), Ledger::job_outcomes);
        Self { shared, waits, outcomes, rosters: Arc::default() }
    }

    async fn participant(
        &self,
        identity: &Identity,
        request: Option<&v1::RequestId>,
        kind: OpKind,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let id = self.shared.request_in(identity, request)?;
        match self.shared.apply(Some(id), kind).await? {
            Reply::Participant { incarnation, keep_alive_ms } => {
                // The join is in the log. A member that no longer leads leaves the keep-alive to the next leader, and
                // reads the state.
                if let Ok(leader) = self.shared.leader_state() {
                    leader.keep_alives.record_message(incarnation, leader.now());
                }
                let header = Some(self.shared.header());
                Ok(Response::new(v1::JoinResponse { header, ticket: incarnation.0, keep_alive_ms }))
            }
            other => Err(unexpected(&other)),
        }
    }
}

#[tonic::async_trait]
impl v1::rendezvous_server::Rendezvous for RendezvousService {
    async fn join(
        &self,
        request: Request<v1::JoinRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let config = RendezvousConfig {
            min: r.min,
            max: r.max,
            join_timeout_ms: or_default(r.join_timeout_ms, JOIN_TIMEOUT_MS),
            last_call_ms: or_default(r.last_call_ms, LAST_CALL_MS),
        };
        let job = job_in(&identity, r.job)?;
        let participant = Box::new(participant_in(r.participant)?);
        self.participant(
            &identity,
            r.request.as_ref(),
            OpKind::Join(op::Join { job, participant, config }),
        )
        .await
    }

    async fn participate(
        &self,
        request: Request<v1::ParticipateRequest>,
    ) -> Result<Response<v1::JoinResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        let participant = Box::new(participant_in(r.participant)?);
        self.participant(
            &identity,
            r.request.as_ref(),
            OpKind::Participate(op::Participate { job, participant }),
        )
        .await
    }

    async fn wait(
        &self,
        request: Request<v1::RendezvousWaitRequest>,
    ) -> Result<Response<v1::RendezvousWaitResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let (job, incarnation) = (job_in(&identity, r.job)?, SessionId(r.ticket));
        let leader = self.shared.leader_state()?;
        if self.shared.node.ledger(|l| is_of(l, &job, incarnation)) {
            leader.keep_alives.record_message(incarnation, leader.now());
        }
        let look = |l: &Ledger| outcome(l, &job, incarnation, &self.rosters);
        let found = self.outcomes.until(&identity, r.wait_ms, look).await?;
        let found = found
            .or_else(|| self.shared.read_ledger(|l| pending(l, &job, incarnation, &self.rosters)));
        // Outside the ledger's lock, because the answer lists all members.
        let outcome = found.map(|found| found.into_outcome(!r.without_members));
        let header = Some(self.shared.header());
        Ok(Response::new(v1::RendezvousWaitResponse { header, outcome }))
    }

    async fn keep_alive(
        &self,
        request: Request<v1::KeepAliveRequest>,
    ) -> Result<Response<v1::KeepAliveResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        if r.participants.len() > limits::PARTICIPANTS_MAX {
            let max = limits::PARTICIPANTS_MAX;
            return Err(convert::invalid(format!("more than {max} participants")).into());
        }
        let all = r.participants.into_iter();
        let asked: Vec<(JobName, SessionId)> = all
            .map(|p| Ok((job_in(&identity, p.job)?, SessionId(p.ticket))))
            .collect::<Result<_, RpcError>>()?;
        let leader = self.shared.leader_state()?;
        let answers: Vec<v1::KeepAliveAnswer> = self.shared.node.ledger(|l| {
            asked.iter().map(|(job, incarnation)| alive(l, job, *incarnation)).collect()
        });
        for ((_, incarnation), _) in asked.iter().zip(&answers).filter(|(_, a)| a.gone.is_empty()) {
            leader.keep_alives.record_message(*incarnation, leader.now());
        }
        let header = Some(leader.header());
        Ok(Response::new(v1::KeepAliveResponse { header, answers }))
    }

    async fn leave(
        &self,
        request: Request<v1::LeaveRequest>,
    ) -> Result<Response<v1::LeaveResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let (job, incarnation) = (job_in(&identity, r.job)?, SessionId(r.ticket));
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        self.shared.reading().await?;
        // The caller may not release a ticket of another job.
        if self.shared.found(|l| is_of(l, &job, incarnation).then_some(())).is_some() {
            self.shared.apply(Some(id), OpKind::Leave(op::Leave { incarnation })).await?;
        }
        Ok(Response::new(v1::LeaveResponse { header: Some(self.shared.header()) }))
    }

    async fn close(
        &self,
        request: Request<v1::RendezvousCloseRequest>,
    ) -> Result<Response<v1::RendezvousCloseResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        self.shared.apply(Some(id), OpKind::CloseRendezvous(op::CloseRendezvous { job })).await?;
        Ok(Response::new(v1::RendezvousCloseResponse { header: Some(self.shared.header()) }))
    }

    async fn describe(
        &self,
        request: Request<v1::RendezvousDescribeRequest>,
    ) -> Result<Response<v1::RendezvousDescribeResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        match r.known_version {
            None => drop(self.shared.reading().await?),
            Some(known) => {
                let other = |l: &Ledger| l.job(&job).filter(|j| j.version() != known).map(drop);
                self.waits.until(&identity, r.wait_ms, other).await?;
            }
        }
        let leader = self.shared.leader_state()?;
        let described =
            self.shared.read_ledger(|l| l.job(&job).map(|j| describe(j, Some(&leader))));
        let mut answer = described.ok_or_else(|| no_job(&job))?;
        answer.header = Some(self.shared.header());
        Ok(Response::new(answer))
    }

    async fn list(
        &self,
        request: Request<v1::RendezvousListRequest>,
    ) -> Result<Response<v1::RendezvousListResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let listed = Listed::of(&identity, &r.namespace)?;
        let leader = self.shared.reading().await?;
        listed.check_is_there(&self.shared)?;
        let limit = page(r.limit);
        let mut rendezvous = self.shared.read_ledger(|l| match &listed {
            Listed::One(namespace) => infos(l.jobs_after(namespace, &r.after), limit + 1, &leader),
            Listed::All(_) => {
                let after = JobName { namespace: r.after_namespace.clone(), job: r.after.clone() };
                let theirs = l.all_jobs_after(after).filter(|j| listed.has(&j.name().namespace));
                infos(theirs, limit + 1, &leader)
            }
        });
        let more = rendezvous.len() > limit;
        rendezvous.truncate(limit);
        let header = Some(self.shared.header());
        Ok(Response::new(v1::RendezvousListResponse { header, rendezvous, more }))
    }
}

/// The size of a page.
pub(super) fn page(limit: u32) -> usize {
    match limit as usize {
        0 => PAGE_MAX,
        n => n.min(PAGE_MAX),
    }
}

fn or_default(asked: u64, default: u64) -> u64 {
    if asked == 0 { default } else { asked }
}

pub(super) fn no_job(name: &JobName) -> RpcError {
    let JobName { namespace, job } = name;
    RpcError::new(ErrorCode::JobNotFound, format!("no job {job} in namespace {namespace}"))
}

pub(super) fn participant_in(participant: Option<v1::Participant>) -> Checked<ParticipantDecl> {
    let p = participant.ok_or_else(|| convert::invalid("the participant is missing"))?;
    let or = |asked, default| u64::from(if asked == 0 { default } else { asked });
    let interval_ms = or(p.keep_alive_interval_ms, KEEP_ALIVE_INTERVAL_MS);
    let keep_alive_ms = interval_ms * or(p.keep_alive_attempts, KEEP_ALIVE_ATTEMPTS);
    let (name, host, addr) = (p.name, p.host, p.addr);
    let local_world_size = p.local_world_size;
    Ok(ParticipantDecl { name, host, addr, local_world_size, keep_alive_ms })
}

fn is_of(ledger: &Ledger, job: &JobName, incarnation: SessionId) -> bool {
    ledger.participant(incarnation).is_some_and(|(of, _)| of.name() == job)
}

/// Why a ticket is void, if that is still known.
fn gone(ledger: &Ledger, job: &JobName, incarnation: SessionId) -> v1::ParticipantGone {
    let departure = ledger
        .job(job)
        .and_then(|job| job.departures().rev().find(|d| d.incarnation == incarnation));
    let why = departure.map_or("unknown", |d| d.why.name()).to_owned();
    v1::ParticipantGone { why, at_wall_ms: departure.map_or(0, |d| d.at_wall_ms) }
}

/// The answer to a wait, if there is one yet.
fn outcome(
    ledger: &Ledger,
    job: &JobName,
    incarnation: SessionId,
    rosters: &Rosters,
) -> Option<WaitResult> {
    let found = ledger.participant(incarnation).filter(|(of, _)| of.name() == job);
    let Some((view, participant)) = found else {
        return Some(WaitResult::Decided(Outcome::Gone(gone(ledger, job, incarnation))));
    };
    match participant.state {
        ParticipantState::TimedOut => {
            Some(WaitResult::Decided(Outcome::TimedOut(v1::RendezvousTimedOut {})))
        }
        ParticipantState::Dismissed { redundant } => {
            Some(WaitResult::Decided(Outcome::Closed(v1::RendezvousClosed { redundant })))
        }
        // No participant may start what is over.
        _ if view.rendezvous().closed => {
            Some(WaitResult::Decided(Outcome::Closed(v1::RendezvousClosed { redundant: false })))
        }
        ParticipantState::Member { rank } => {
            let roster = rosters.of(view);
            Some(WaitResult::Round { round: view.rendezvous().round, incarnation, rank, roster })
        }
        ParticipantState::Apart
        | ParticipantState::Joining { .. }
        | ParticipantState::Late { .. }
        | ParticipantState::Redundant => None,
    }
}

fn pending(
    ledger: &Ledger,
    job: &JobName,
    incarnation: SessionId,
    rosters: &Rosters,
) -> Option<WaitResult> {
    let Some((view, participant)) = ledger.participant(incarnation).filter(|p| p.0.name() == job)
    else {
        return outcome(ledger, job, incarnation, rosters);
    };
    let info = counts(view);
    Some(WaitResult::Decided(Outcome::Pending(v1::RendezvousPending {
        standing: participant.state.name().into(),
        round: info.round,
        joined: info.joined,
        min: info.min,
        max: info.max,
    })))
}

fn alive(ledger: &Ledger, job: &JobName, incarnation: SessionId) -> v1::KeepAliveAnswer {
    let Some((view, participant)) = ledger.participant(incarnation).filter(|p| p.0.name() == job)
    else {
        let gone = gone(ledger, job, incarnation).why;
        return v1::KeepAliveAnswer { gone, ..v1::KeepAliveAnswer::default() };
    };
    let rendezvous = view.rendezvous();
    v1::KeepAliveAnswer {
        gone: String::new(),
        standing: participant.state.name().into(),
        round: rendezvous.round,
        complete: rendezvous.complete,
        closed: rendezvous.closed,
        num_nodes_waiting: view.count(|s| matches!(s, ParticipantState::Late { .. })),
        version: view.version(),
    }
}

/// A rendezvous, without what only a leader knows.
fn counts(view: JobView<'_>) -> v1::RendezvousInfo {
    let rendezvous = view.rendezvous();
    let joined = view.count(|s| matches!(s, ParticipantState::Joining { .. }));
    // The roster stays as it was when the round completed, but a lost participant no longer counts as a member.
    let members = view.count(|s| matches!(s, ParticipantState::Member { .. }));
    let state = match (rendezvous.closed, rendezvous.complete) {
        (true, _) => "closed",
        (false, true) => "complete",
        (false, false) if joined > 0 => "forming",
        _ => "idle",
    };
    let config = rendezvous.config.as_ref();
    v1::RendezvousInfo {
        job: Some(job_out(view.name())),
        state: state.into(),
        closed: rendezvous.closed,
        complete: rendezvous.complete,
        round: rendezvous.round,
        min: config.map_or(0, |t| t.min),
        max: config.map_or(0, |t| t.max),
        joined: if rendezvous.complete { members } else { joined },
        num_nodes_waiting: view.count(|s| matches!(s, ParticipantState::Late { .. })),
        redundant: view.count(|s| s == ParticipantState::Redundant),
        participants: view.participants().count() as u32,
        version: view.version(),
        last_call_in_ms: 0,
    }
}

/// The first participants.
fn infos<'a>(
    jobs: impl Iterator<Item = JobView<'a>>,
    limit: usize,
    leader: &LeaderState,
) -> Vec<v1::RendezvousInfo> {
    jobs.take(limit).map(|job| info(job, Some(leader))).collect()
}

/// Without a leader, the time of the last call is left out.
pub(super) fn info(view: JobView<'_>, leader: Option<&LeaderState>) -> v1::RendezvousInfo {
    let last_call = view.rendezvous().last_call.zip(leader);
    let last_call_in_ms =
        last_call.map_or(0, |(at, leader)| at.0.saturating_sub(leader.now().0).max(1));
    v1::RendezvousInfo { last_call_in_ms, ..counts(view) }
}

/// Without a leader, the silences are left out.
pub(super) fn describe(
    view: JobView<'_>,
    leader: Option<&LeaderState>,
) -> v1::RendezvousDescribeResponse {
    let silence_ms = |incarnation| {
        let silence = leader.map(|l| l.keep_alives.silence(incarnation, l.now()));
        silence.map_or(0, |silence| silence.as_millis() as u64)
    };
    let participants = view.participants().map(|p| v1::ParticipantInfo {
        name: p.decl.name.clone(),
        host: p.decl.host.clone(),
        addr: p.decl.addr.clone(),
        local_world_size: p.decl.local_world_size,
        ticket: p.incarnation.0,
        standing: p.state.name().into(),
        rank: if let ParticipantState::Member { rank } = p.state { rank } else { 0 },
        keep_alive_ms: p.decl.keep_alive_ms,
        silent_ms: silence_ms(p.incarnation),
    });
    let gone = view.departures().rev().take(GONE_SHOWN).map(|d| v1::GoneInfo {
        name: d.name.clone(),
        host: d.host.clone(),
        why: d.why.name().into(),
        at_wall_ms: d.at_wall_ms,
        heard_wall_ms: d.heard_wall_ms,
    });
    v1::RendezvousDescribeResponse {
        header: None,
        rendezvous: Some(info(view, leader)),
        participants: participants.collect(),
        gone: gone.collect(),
    }
}
