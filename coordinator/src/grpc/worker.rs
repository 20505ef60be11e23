//! `Worker`: registration of workers, and their streams of work.

use super::answer_queue::{Answers, NewestStreams};
use super::exchange_room::ExchangeRooms;
use super::runs::unexpected;
use super::{Shared, caller, check_namespace, namespace_or_default, work_stream};
use crate::grpc::convert;
use crate::grpc::epoch_gate;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::pre_v4_namespaces;
use crate::leader::state::LeaderState;
use crate::observe::audit;
use rollout_ledger::id::{RunNo, SessionId};
use rollout_ledger::{OpKind, Reply, op};
use rollout_proto::{ErrorCode, Identity, Role, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status, Streaming};

#[derive(Clone)]
pub(crate) struct WorkerService(Arc<Shared>, ExchangeRooms, NewestStreams);

impl WorkerService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self(shared, ExchangeRooms::default(), NewestStreams::default())
    }
}

/// Adds the refused process to the error about a taken name, so that the operator finds both processes.
fn also_at(mut error: RpcError, refused: &str) -> RpcError {
    if error.code == ErrorCode::WorkerNameTaken {
        error.message.push_str(&format!(
            "; the process at {refused} is refused: stop one of the two, or give it another name"
        ));
    }
    error
}

impl Shared {
    /// Whether the process that holds a name counts as alive, so that another one is refused. A process that resumes
    /// the session has its directory. It is the next process on the same disk, right after the previous one ended and
    /// its stream closed; or it has a copy of the directory while the other's stream is open.
    fn is_alive(&self, leader: &LeaderState, holder: SessionId, resumes: bool) -> bool {
        let failure = std::time::Duration::from_millis(self.config.workers.failure_ms);
        let connected = || leader.streams.lock().contains_key(&holder);
        leader.liveness.silence(holder, leader.now()) < failure && (!resumes || connected())
    }

    /// Checks that a worker speaks only for the session of its own name, in a namespace of its own.
    pub(super) fn check_session(
        &self,
        identity: &Identity,
        session: SessionId,
    ) -> Result<(), RpcError> {
        let allowed = self.node.ledger(|l| {
            l.worker_name(session).map(|(namespace, name)| {
                let named = identity.role != Role::Worker || name == identity.name;
                named && identity.allows_namespace(namespace)
            })
        });
        match allowed {
            Some(true) => Ok(()),
            Some(false) => Err(RpcError::new(
                ErrorCode::PermissionDenied,
                format!("session {session} is not {}'s", identity.name),
            )),
            None => Err(RpcError::new(ErrorCode::SessionUnknown, format!("no session {session}"))),
        }
    }
}

#[tonic::async_trait]
impl v1::worker_server::Worker for WorkerService {
    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        let leader = self.0.leader_state()?;
        Ok(Response::new(v1::ProbeResponse {
            header: Some(leader.full_header()),
            store_url: self.0.probe.url().to_owned(),
            probe: Some(self.0.probe.get(&leader.cluster_id).await?),
        }))
    }

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        let identity = caller(&request)?;
        let mut r = request.into_inner();
        let namespace = namespace_or_default(&r.namespace);
        audit::about("worker", &r.name);
        check_namespace(&identity, &namespace)?;
        if identity.role == Role::Worker && identity.name != r.name {
            let text = format!("the certificate is {}'s, not {}'s", identity.name, r.name);
            return Err(RpcError::new(ErrorCode::PermissionDenied, text).into());
        }
        let leader = self.0.leader_state()?;
        epoch_gate::check_registration(
            &self.0,
            &leader,
            (r.cluster_id.as_str(), r.coord_epoch_seen),
        )
        .await?;
        let holder = self.0.node.ledger(|l| l.find_worker(&namespace, &r.name));
        let foreign = self
            .0
            .node
            .ledger(|l| pre_v4_namespaces::extract_foreign_held(l, &namespace, &mut r.held));
        let address = r.address.clone();
        let resumes = holder.is_some_and(|SessionId(holder)| holder == r.resume_session);
        let started = holder.map(|holder| leader.maybe_started(holder)).unwrap_or_default();
        let registration = rollout_ledger::Registration {
            namespace,
            name: r.name,
            instance: r.instance,
            address: r.address,
            resume: (r.resume_session != 0).then_some(SessionId(r.resume_session)),
            holder_alive: holder.is_some_and(|holder| self.0.is_alive(&leader, holder, resumes)),
            slots: r.slots.iter().map(convert::offer_in).collect(),
            held: r.held.iter().map(convert::held_in).collect::<Result<_, _>>()?,
            stores: r.stores,
            versions: r.versions.into_iter().collect(),
            started,
        };
        let reply = self.0.apply(None, OpKind::Register(Box::new(registration))).await;
        let reply = reply.map_err(|error| also_at(error, &address))?;
        let Reply::Registered { session, resumed, dropped } = reply else {
            return Err(unexpected(&reply));
        };
        leader.liveness.record_message(session, leader.now());
        leader.wake();
        let drain = self.0.node.ledger(|l| l.worker_drain(session));
        Ok(Response::new(v1::RegisterResponse {
            header: Some(leader.full_header()),
            session: session.0,
            resumed,
            dropped: dropped.iter().map(convert::held_out).chain(foreign).collect(),
            heartbeat_ms: leader.heartbeat_ms(self.0.node.ledger(|l| l.worker_count())),
            self_fence_ms: self.0.config.workers.self_fence_ms as u32,
            store_url: self.0.probe.url().to_owned(),
            draining: drain.is_some(),
            drain_deadline_ms: drain.map_or(0, |drain| leader.drain_left_ms(drain)),
        }))
    }

    async fn get_run(
        &self,
        request: Request<v1::GetRunRequest>,
    ) -> Result<Response<v1::GetRunResponse>, Status> {
        let identity = caller(&request)?;
        let leader = self.0.leader_state()?;
        let no = RunNo(request.get_ref().run);
        let view =
            self.0.node.ledger(|l| l.run_view(no)).ok_or_else(|| {
                RpcError::new(ErrorCode::RunNotFound, format!("no run number {no}"))
            })?;
        check_namespace(&identity, &view.namespace)?;
        Ok(Response::new(v1::GetRunResponse {
            header: Some(leader.full_header()),
            run: no.0,
            namespace: view.namespace,
            name: view.name,
            spec: Some(convert::spec_for_workers(&view.spec)),
            folder: view.folder,
        }))
    }

    type WorkStream = Answers;

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        let identity = caller(&request)?;
        let leader = self.0.leader_state()?;
        let (shared, of_workers) = (self.0.clone(), (self.1.clone(), self.2.clone()));
        let stream = work_stream::start(shared, leader, of_workers, identity, request.into_inner());
        Ok(Response::new(stream))
    }

    async fn deregister(
        &self,
        request: Request<v1::DeregisterRequest>,
    ) -> Result<Response<v1::DeregisterResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let leader = self.0.leader_state()?;
        let session = SessionId(r.session);
        let named = self.0.node.ledger(|l| {
            l.worker_name(session).map(|(namespace, name)| (namespace.to_owned(), name.to_owned()))
        });
        if let Some((namespace, name)) = named {
            audit::in_namespace(&namespace);
            audit::about("worker", &name);
        }
        self.0.check_session(&identity, session)?;
        let registered = self.0.node.ledger(|l| l.worker_instance(session));
        work_stream::check_instance(session, r.instance, registered)?;
        // Ending the session returns all rows that it holds, including the nacked ones.
        self.0.apply(None, OpKind::Deregister(op::Deregister { session })).await?;
        leader.wake();
        Ok(Response::new(v1::DeregisterResponse { header: Some(leader.full_header()) }))
    }
}
