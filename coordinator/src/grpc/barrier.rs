//! `Barrier`: points in a training job that no participant passes before all have arrived.
//!
//! *Invariant:* an arrival is in the log before it is answered, and is there once. A wait is a read, which a client
//! repeats at the next leader.

use super::rendezvous::{no_job, page, participant_in};
use super::runs::unexpected;
use super::training_convert::{job_in, job_out};
use super::waits::Waits;
use super::{Shared, caller};
use crate::grpc::convert::{self, Checked};
use rollout_ledger::id::{LedgerMs, SessionId};
use rollout_ledger::{
    BarrierEnd, BarrierFailure, BarrierMembers, BarrierSpec, Generation, JobName, Ledger, OpKind,
    ParticipantDecl, Policy, Reply, limits, op,
};
use rollout_proto::{ErrorCode, Identity, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};
use v1::barrier_wait_response::Outcome;

/// The default of torch.
const TIMEOUT_MS: u64 = 300_000;

#[derive(Clone)]
pub(crate) struct BarrierService {
    shared: Arc<Shared>,
    waits: Waits,
}

impl BarrierService {
    pub(crate) fn new(shared: Arc<Shared>, waits: Waits) -> Self {
        Self { shared, waits }
    }
}

#[tonic::async_trait]
impl v1::barrier_server::Barrier for BarrierService {
    async fn arrive(
        &self,
        request: Request<v1::ArriveRequest>,
    ) -> Result<Response<v1::ArriveResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let (job, barrier) = name_in(&identity, r.barrier)?;
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        let timeout_ms = if r.timeout_ms == 0 { TIMEOUT_MS } else { r.timeout_ms };
        let policy = match v1::BarrierPolicy::try_from(r.policy) {
            Ok(v1::BarrierPolicy::Fail) => Policy::Fail,
            Ok(v1::BarrierPolicy::Shrink) => Policy::Shrink,
            Err(_) => return Err(convert::invalid("the barrier's policy is not known").into()),
        };
        let spec = BarrierSpec {
            members: barrier_members_in(r.set.unwrap_or_default()),
            policy,
            timeout_ms,
        };
        let (incarnation, participant) = match r.ticket {
            0 => (None, participant_in(r.participant)?),
            incarnation => (Some(SessionId(incarnation)), ParticipantDecl::default()),
        };
        let (generation, participant) = (r.generation, Box::new(participant));
        let kind =
            OpKind::Arrive(op::Arrive { job, barrier, generation, incarnation, participant, spec });
        match self.shared.apply(Some(id), kind).await? {
            Reply::Participant { incarnation, keep_alive_ms } => {
                // The arrival is in the log. A member that no longer leads leaves the keep-alive to the next leader,
                // and reads the state.
                if let Ok(leader) = self.shared.leader_state() {
                    leader.keep_alives.record_message(incarnation, leader.now());
                }
                let header = Some(self.shared.header());
                Ok(Response::new(v1::ArriveResponse {
                    header,
                    ticket: incarnation.0,
                    keep_alive_ms,
                }))
            }
            other => Err(unexpected(&other)),
        }
    }

    async fn wait(
        &self,
        request: Request<v1::BarrierWaitRequest>,
    ) -> Result<Response<v1::BarrierWaitResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let (job, barrier) = name_in(&identity, r.barrier)?;
        let at = |l: &Ledger| look(l, &job, &barrier, r.generation);
        let ended = |l: &Ledger| match at(l) {
            Ok(Outcome::Pending(_)) => None,
            other => Some(other),
        };
        let found = self.waits.until(&identity, r.wait_ms, ended).await?;
        let found = found.or_else(|| self.shared.read_ledger(|l| Some(at(l))));
        let outcome = found.ok_or_else(|| no_barrier(&job, &barrier))??;
        let header = Some(self.shared.header());
        Ok(Response::new(v1::BarrierWaitResponse { header, outcome: Some(outcome) }))
    }

    async fn abort(
        &self,
        request: Request<v1::BarrierAbortRequest>,
    ) -> Result<Response<v1::BarrierAbortResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let (job, barrier) = name_in(&identity, r.barrier)?;
        let id = self.shared.request_in(&identity, r.request.as_ref())?;
        let (generation, reason) = (r.generation, r.reason);
        let kind = OpKind::AbortBarrier(op::AbortBarrier { job, barrier, generation, reason });
        self.shared.apply(Some(id), kind).await?;
        Ok(Response::new(v1::BarrierAbortResponse { header: Some(self.shared.header()) }))
    }

    async fn describe(
        &self,
        request: Request<v1::BarrierDescribeRequest>,
    ) -> Result<Response<v1::BarrierDescribeResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let (job, barrier) = name_in(&identity, r.barrier)?;
        let now = self.shared.reading().await?.now();
        let generations: Vec<_> = self.shared.read_ledger(|l| {
            let view = l.job(&job).into_iter();
            let all = view.flat_map(|view| view.generations(&barrier));
            all.map(|g| info(&job, &barrier, g, now, true)).collect()
        });
        if generations.is_empty() {
            return Err(no_barrier(&job, &barrier).into());
        }
        let header = Some(self.shared.header());
        Ok(Response::new(v1::BarrierDescribeResponse { header, generations }))
    }

    async fn list(
        &self,
        request: Request<v1::BarrierListRequest>,
    ) -> Result<Response<v1::BarrierListResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let job = job_in(&identity, r.job)?;
        let now = self.shared.reading().await?.now();
        let limit = page(r.limit);
        let found = self.shared.read_ledger(|l| {
            let all = l.job(&job)?.barriers(&r.after).take(limit + 1);
            Some(all.map(|(name, g)| info(&job, name, g, now, false)).collect::<Vec<_>>())
        });
        let mut barriers = found.ok_or_else(|| no_job(&job))?;
        let more = barriers.len() > limit;
        barriers.truncate(limit);
        let header = Some(self.shared.header());
        Ok(Response::new(v1::BarrierListResponse { header, barriers, more }))
    }
}

pub(super) fn name_in(
    identity: &Identity,
    name: Option<v1::BarrierName>,
) -> Checked<(JobName, String)> {
    let name = name.ok_or_else(|| convert::invalid("the barrier's name is missing"))?;
    Ok((job_in(identity, name.job)?, name.barrier))
}

pub(super) fn barrier_members_in(set: v1::BarrierSet) -> BarrierMembers {
    match set {
        v1::BarrierSet { members, .. } if !members.is_empty() => BarrierMembers::Members(members),
        v1::BarrierSet { count: 0, .. } => BarrierMembers::Round,
        v1::BarrierSet { count, .. } => BarrierMembers::Count(count),
    }
}

fn no_barrier(job: &JobName, barrier: &str) -> RpcError {
    let JobName { namespace, job } = job;
    let message = format!("no barrier {barrier} in job {job} of namespace {namespace}");
    RpcError::new(ErrorCode::BarrierNotFound, message)
}

/// The state of a generation.
fn look(ledger: &Ledger, job: &JobName, barrier: &str, generation: u64) -> Checked<Outcome> {
    let view = ledger.job(job).ok_or_else(|| no_job(job))?;
    let found = view.generations(barrier).find(|g| g.number == generation);
    let found = found.ok_or_else(|| {
        let none = no_barrier(job, barrier);
        let message = format!("{}, or its generation {generation} is forgotten", none.message);
        RpcError::new(ErrorCode::BarrierNotFound, message)
    })?;
    Ok(match &found.end {
        Some(BarrierEnd::Open) => {
            let members = found.in_order().into_iter().map(str::to_owned).collect();
            Outcome::Open(v1::BarrierOpen { members, without: found.without.clone() })
        }
        Some(BarrierEnd::Failed(why)) => Outcome::Failed(failed(found, why)),
        None => Outcome::Pending(v1::BarrierPending {
            arrived: found.arrived.len() as u32,
            expected: found.expected,
            missing: missing(found),
        }),
    })
}

fn missing(generation: &Generation) -> Vec<String> {
    generation.missing().take(limits::MISSING_MAX).map(str::to_owned).collect()
}

fn failed(generation: &Generation, why: &BarrierFailure) -> v1::BarrierFailed {
    let (arrived, expected) = (generation.arrived.len(), generation.expected);
    let mut out =
        v1::BarrierFailed { missing: missing(generation), ..v1::BarrierFailed::default() };
    match why {
        BarrierFailure::Gone(gone) => {
            (out.participant, out.host) = (gone.name.clone(), gone.host.clone());
            (out.why, out.heard_wall_ms) = (gone.why.name().into(), gone.heard_wall_ms);
            let silent_s = gone.at_wall_ms.saturating_sub(gone.heard_wall_ms).div_ceil(1000);
            out.message = match gone.why {
                rollout_ledger::DepartureReason::Lost => {
                    format!("{} on {} was silent for {silent_s} s", gone.name, gone.host)
                }
                _ => format!("{} on {} has left the job", gone.name, gone.host),
            };
        }
        BarrierFailure::TimedOut => {
            out.why = "timed_out".into();
            let who = match out.missing.is_empty() {
                true => String::new(),
                false => format!(": {} did not arrive", out.missing.join(", ")),
            };
            out.message = format!("{arrived} of {expected} arrived in time{who}");
        }
        BarrierFailure::Aborted { reason } => {
            (out.why, out.reason) = ("aborted".into(), reason.clone());
            out.message = match reason.is_empty() {
                true => "it was aborted".into(),
                false => format!("it was aborted: {reason}"),
            };
        }
    }
    out
}

pub(super) fn info(
    job: &JobName,
    barrier: &str,
    generation: &Generation,
    now: LedgerMs,
    names: bool,
) -> v1::BarrierInfo {
    let state = match generation.end {
        None => "waiting",
        Some(BarrierEnd::Open) => "open",
        Some(BarrierEnd::Failed(_)) => "failed",
    };
    let policy = match generation.spec.policy {
        Policy::Fail => v1::BarrierPolicy::Fail,
        Policy::Shrink => v1::BarrierPolicy::Shrink,
    };
    let waits = generation.end.is_none();
    let why = match &generation.end {
        Some(BarrierEnd::Failed(why)) => Some(failed(generation, why)),
        _ => None,
    };
    let arrived = generation.in_order().into_iter().filter(|_| names).map(str::to_owned);
    v1::BarrierInfo {
        barrier: Some(v1::BarrierName { job: Some(job_out(job)), barrier: barrier.to_owned() }),
        generation: generation.number,
        state: state.into(),
        arrived: generation.arrived.len() as u32,
        expected: generation.expected,
        members: arrived.collect(),
        missing: if names { missing(generation) } else { Vec::new() },
        without: if names { generation.without.clone() } else { Vec::new() },
        policy: policy.into(),
        timeout_in_ms: if waits { generation.until.0.saturating_sub(now.0) } else { 0 },
        failed: why,
    }
}
