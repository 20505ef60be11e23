//! `Cluster`: requests of operators about the cluster. Answers without a quorum if that makes sense.

use super::digest_pace::COMPUTING_MAX;
use super::namespace::Listed;
use super::{Shared, caller, check_every_namespace, check_namespace, namespace_or_default};
use crate::leader::draining::REASON_BYTES_MAX;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::proposer::LogPosition;
use crate::leader::reject;
use crate::leader::state::LeaderState;
use crate::leader::stuck_runs;
use crate::observe::audit;
use crate::observe::certificate_times::CertificateTimes;
use crate::observe::log_position;
use crate::process;
use rollout_ledger::id::SlotNo;
use rollout_ledger::view::{WorkerState, WorkerView};
use rollout_ledger::{Body, OpKind, SUPPORTED_VERSIONS, op};
use rollout_proto::{ErrorCode, RpcError, v1};
use rollout_raft::{DiskRoom, Joins, MemberRecord, NodeStatus, Role, RoundTrips};
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// The longest wait for a digest.
const DIGEST_WAIT_MAX_MS: u32 = 60_000;

/// Roles that may see runs.
const WATCH: [rollout_proto::Role; 4] = [
    rollout_proto::Role::Member,
    rollout_proto::Role::Viewer,
    rollout_proto::Role::Client,
    rollout_proto::Role::Admin,
];

#[derive(Clone)]
pub(crate) struct ClusterService(pub(crate) Arc<Shared>);

/// The longest deadline of a drain.
const DRAIN_MAX_MS: u64 = 24 * 60 * 60 * 1000;

fn no_worker(namespace: &str, name: &str) -> RpcError {
    let text = format!("no worker {name} is registered in namespace {namespace}");
    RpcError::new(ErrorCode::WorkerNotFound, text)
}

fn no_slot(name: &str, slot: u32) -> RpcError {
    crate::grpc::convert::invalid(format!("worker {name} has no slot {slot}"))
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Waiting => "waiting",
        Role::Learner => "learner",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Leader => "leader",
        Role::Stopped => "stopped",
    }
}

fn room_name(room: DiskRoom) -> &'static str {
    match room {
        DiskRoom::Enough => "enough",
        DiskRoom::Low => "low",
        DiskRoom::Full => "full",
    }
}

impl ClusterService {
    fn member_status(&self, status: &NodeStatus) -> v1::MemberStatus {
        let shared = &self.0;
        let disk = shared.node.disk_space();
        let cert = CertificateTimes::of_member(&shared.tls);
        let issuer = CertificateTimes::of_issuer(shared.issuer.as_deref());
        v1::MemberStatus {
            name: shared.config.name.clone(),
            id: shared.node.identity().map_or(0, |i| i.member_id),
            role: role_name(status.role).into(),
            term: status.term,
            last_log_index: status.last_log.unwrap_or(0),
            committed_index: status.committed.unwrap_or(0),
            applied_index: status.applied.unwrap_or(0),
            image_index: status.image_index.unwrap_or(0),
            log_bytes: status.log_bytes,
            image_bytes: status.image_bytes,
            version: env!("CARGO_PKG_VERSION").into(),
            zone: shared.config.zone.clone(),
            cert_expires_unix: cert.expires,
            cert_renewal_unix: cert.renewal,
            issuer_expires_unix: issuer.expires,
            issuer_renewal_unix: issuer.renewal,
            cert_refused: shared.tls.refused().unwrap_or_default(),
            uptime_ms: shared.started.elapsed().as_millis() as u64,
            resident_bytes: process::resident_bytes(),
            purged_index: status.purged.unwrap_or(0),
            snapshots_installed: status.snapshots_installed,
            disk_free_bytes: disk.free_bytes,
            disk_bytes: disk.all_bytes,
            disk_room: room_name(shared.node.disk_room()).into(),
            round_trips: status.round_trips.iter().map(round_trips_out).collect(),
            raft_profile: shared.node.config().profile.name().into(),
        }
    }
}

fn round_trips_out(trips: &RoundTrips) -> v1::RoundTrips {
    let us = |time: Duration| time.as_micros() as u64;
    v1::RoundTrips {
        id: trips.id,
        name: trips.name.clone(),
        samples: trips.samples,
        min_us: us(trips.min),
        p50_us: us(trips.p50),
        p90_us: us(trips.p90),
        max_us: us(trips.max),
    }
}

/// A worker as the ledger knows it and, if this member leads, when it was last heard.
fn worker_out(leader: Option<&LeaderState>, w: WorkerView) -> v1::WorkerInfo {
    let state = match w.state {
        WorkerState::Ready => "ready",
        WorkerState::Suspect { .. } => "suspect",
        WorkerState::Draining => "draining",
    };
    let slots = w.slots.into_iter().enumerate().map(|(i, s)| v1::WorkerSlot {
        slot: i as u32,
        engine: s.offer.engine,
        models: s.offer.models,
        rows_held: s.rows_held as u32,
        rows_done: s.rows_done,
        ineligible: s.offer.ineligible,
        deaths: s.deaths,
        cordoned: s.cordon.is_some(),
        cordon_reason: s.cordon.unwrap_or_default(),
        in_trial: s.in_trial,
        versions: s.offer.versions.into_iter().collect(),
    });
    v1::WorkerInfo {
        namespace: w.namespace,
        name: w.name,
        session: w.session.0,
        state: state.into(),
        address: w.address,
        draining: w.drain.is_some(),
        drain_left_ms: leader.zip(w.drain).map_or(0, |(leader, drain)| leader.drain_left_ms(drain)),
        silent_ms: leader.map_or(0, |l| l.liveness.silence(w.session, l.now()).as_millis() as u64),
        slots: slots.collect(),
        versions: w.versions.into_iter().collect(),
        started_rows: leader.map_or(0, |leader| {
            leader.liveness.started(w.session).iter().map(|held| held.rows.len()).sum()
        }),
    }
}

#[tonic::async_trait]
impl v1::cluster_server::Cluster for ClusterService {
    async fn status(
        &self,
        request: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let shared = &self.0;
        let identity = caller(&request)?;
        let may_see = WATCH.iter().any(|role| identity.acts_as(*role));
        let (stuck_runs, stuck_runs_more) = match request.get_ref().with_stuck_runs && may_see {
            true => {
                let look = || shared.node.with_ledger(stuck_runs::all).unwrap_or_default();
                shared.stuck.seen_by(&identity, look).await
            }
            false => Default::default(),
        };
        let status = shared.node.status();
        let has_quorum = match status.role {
            Role::Leader => shared.node.lease_valid(),
            _ => shared.node.heard_leader().is_some(),
        };
        let (fleet, (running, paused, ended)) = shared.node.ledger(|l| (l.fleet(), l.run_states()));
        let peers = status
            .peers
            .iter()
            .map(|p| v1::PeerProgress { id: p.id, matched_index: p.matched.unwrap_or(0) });
        Ok(Response::new(v1::StatusResponse {
            header: Some(shared.header()),
            self_: Some(self.member_status(&status)),
            has_quorum,
            workers_ready: fleet.ready,
            workers_suspect: fleet.suspect,
            workers_draining: fleet.draining,
            runs_running: running,
            runs_paused: paused,
            runs_ended: ended,
            peers: peers.collect(),
            stuck_runs,
            stuck_runs_more,
        }))
    }

    async fn list_workers(
        &self,
        request: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let identity = caller(&request)?;
        let listed = Listed::of(&identity, &request.get_ref().namespace)?;
        let leader = self.0.reading_for(&request).await?;
        // Before the read, so that the state is at least as new as the header's index.
        let header = self.0.header();
        listed.check_is_there(&self.0)?;
        let views = self.0.read_ledger(|l| {
            let sessions = l.worker_sessions().into_iter();
            sessions.filter_map(|id| l.worker_view(id)).collect::<Vec<_>>()
        });
        let mine = views.into_iter().filter(|w| listed.has(&w.namespace));
        let workers = mine.map(|w| worker_out(leader.as_deref(), w));
        let workers = workers.collect();
        Ok(Response::new(v1::ListWorkersResponse { header: Some(header), workers }))
    }

    async fn cordon_worker(
        &self,
        request: Request<v1::CordonWorkerRequest>,
    ) -> Result<Response<v1::CordonWorkerResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let namespace = namespace_or_default(&r.namespace);
        audit::about("worker", &r.name);
        check_namespace(&identity, &namespace)?;
        let leader = self.0.reading().await?;
        let found = self.0.node.ledger(|l| l.find_worker(&namespace, &r.name));
        let session = found.ok_or_else(|| no_worker(&namespace, &r.name))?;
        let slot = match r.slot {
            Some(n) => Some(SlotNo(u16::try_from(n).map_err(|_| no_slot(&r.name, n))?)),
            None => None,
        };
        let id = self.0.request_of_any_client(&identity, r.request.as_ref())?;
        let (cordoned, reason) = (r.cordoned, r.reason);
        let kind = OpKind::Cordon(op::Cordon { session, slot, cordoned, reason: reason.clone() });
        match self.0.apply(id, kind).await {
            // The worker left after it was found.
            Err(e) if e.code == ErrorCode::SessionUnknown => {
                return Err(no_worker(&namespace, &r.name).into());
            }
            other => other?,
        };
        tracing::info!(by = %identity, worker = r.name, ?slot, cordoned, reason, "worker cordon changed");
        leader.wake();
        let view = self.0.node.ledger(|l| l.worker_view(session));
        let worker = view.map(|view| worker_out(Some(&leader), view));
        Ok(Response::new(v1::CordonWorkerResponse { header: Some(self.0.header()), worker }))
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let namespace = namespace_or_default(&r.namespace);
        audit::about("worker", &r.name);
        check_namespace(&identity, &namespace)?;
        if r.deadline_ms > DRAIN_MAX_MS || r.reason.len() > REASON_BYTES_MAX {
            let text = format!("a drain takes a day at most, its reason {REASON_BYTES_MAX} bytes");
            return Err(crate::grpc::convert::invalid(text).into());
        }
        let leader = self.0.reading().await?;
        let found = self.0.node.ledger(|l| l.find_worker(&namespace, &r.name));
        let session = found.ok_or_else(|| no_worker(&namespace, &r.name))?;
        let id = self.0.request_of_any_client(&identity, r.request.as_ref())?;
        let kind = OpKind::Drain(op::DrainWorker { session, deadline_ms: r.deadline_ms });
        match self.0.apply(id, kind).await {
            // The worker left after it was found.
            Err(e) if e.code == ErrorCode::SessionUnknown => {
                return Err(no_worker(&namespace, &r.name).into());
            }
            other => other?,
        };
        let (worker, deadline_ms) = (r.name, r.deadline_ms);
        tracing::info!(by = %identity, worker, deadline_ms, reason = r.reason, "drain requested");
        let view = self.0.node.ledger(|l| l.worker_view(session));
        // If the request is a repeat that drained an earlier process, the present process of that name must not drain.
        if view.as_ref().is_some_and(|view| view.drain.is_some()) {
            leader.send_drain(session, deadline_ms, &r.reason);
        }
        let worker = view.map(|view| worker_out(Some(&leader), view));
        Ok(Response::new(v1::DrainWorkerResponse { header: Some(self.0.header()), worker }))
    }

    async fn request_digest(
        &self,
        request: Request<v1::RequestDigestRequest>,
    ) -> Result<Response<v1::RequestDigestResponse>, Status> {
        check_every_namespace(&caller(&request)?)?;
        let leader = self.0.leader_state()?;
        let node = &self.0.node;
        let computed = |index| async move { drop(node.digests(index, COMPUTING_MAX).await) };
        let propose = async {
            let (index, _) = self.0.proposed(leader.proposer.command(Body::DigestAt)).await?;
            Ok::<_, RpcError>(index)
        };
        let index = self.0.digest_pace.ask(computed, propose).await?;
        log_position::applied(leader.epoch, LogPosition { index, position: 0 });
        Ok(Response::new(v1::RequestDigestResponse { header: Some(self.0.header()), index }))
    }

    async fn digests(
        &self,
        request: Request<v1::DigestsRequest>,
    ) -> Result<Response<v1::DigestsResponse>, Status> {
        let r = request.into_inner();
        let wait = Duration::from_millis(r.wait_ms.min(DIGEST_WAIT_MAX_MS).into());
        let Some(digests) = self.0.node.digests(r.index, wait).await else {
            let text = format!("no digest of index {} here within {wait:?}", r.index);
            return Err(RpcError::new(ErrorCode::TimedOut, text).into());
        };
        let (image, image_error) = match digests.image {
            Ok(digest) => (digest.to_vec(), String::new()),
            Err(error) => (Vec::new(), error),
        };
        Ok(Response::new(v1::DigestsResponse {
            header: Some(self.0.header()),
            member: self.0.config.name.clone(),
            index: digests.index,
            chain: digests.chain.to_vec().into(),
            state: digests.state.to_vec().into(),
            image: image.into(),
            image_error,
        }))
    }

    async fn bootstrap(
        &self,
        request: Request<v1::BootstrapRequest>,
    ) -> Result<Response<v1::BootstrapResponse>, Status> {
        check_every_namespace(&caller(&request)?)?;
        let r = request.into_inner();
        if !r.store_url.is_empty() && r.store_url != self.0.probe.url() {
            let (asked, have) = (r.store_url, self.0.probe.url());
            return Err(crate::grpc::convert::invalid(format!(
                "the request names store {asked}, this member's configuration {have}"
            ))
            .into());
        }
        let members = r.members.into_iter().map(|m| MemberRecord {
            id: 0,
            name: m.name,
            peer_addr: m.peer_addr,
            client_addr: m.client_addr,
            zone: m.zone,
            version_min: SUPPORTED_VERSIONS.0,
            version_max: SUPPORTED_VERSIONS.1,
            joins: Joins::default(),
            adopted: false,
        });
        let created = self.0.node.is_waiting();
        let formed = self.0.node.bootstrap(members.collect()).await;
        formed.map_err(|e| reject::forming(&e))?;
        Ok(Response::new(v1::BootstrapResponse { header: Some(self.0.header()), created }))
    }

    async fn upgrade_cluster(
        &self,
        request: Request<v1::UpgradeClusterRequest>,
    ) -> Result<Response<v1::UpgradeClusterResponse>, Status> {
        let identity = caller(&request)?;
        Ok(Response::new(self.upgrade(&identity, request.into_inner()).await?))
    }

    async fn list_settings(
        &self,
        _: Request<v1::ListSettingsRequest>,
    ) -> Result<Response<v1::ListSettingsResponse>, Status> {
        Ok(Response::new(self.settings().await?))
    }

    async fn set_setting(
        &self,
        request: Request<v1::SetSettingRequest>,
    ) -> Result<Response<v1::SetSettingResponse>, Status> {
        let identity = caller(&request)?;
        Ok(Response::new(self.change_setting(&identity, request.into_inner()).await?))
    }

    async fn counters(
        &self,
        _: Request<v1::CountersRequest>,
    ) -> Result<Response<v1::CountersResponse>, Status> {
        let status = self.0.node.status();
        Ok(Response::new(v1::CountersResponse {
            member: self.0.config.name.clone(),
            cpu_us: process::cpu_us(),
            fsyncs: status.fsyncs,
            fsync_us_p50: status.fsync_p50_us,
            fsync_us_p99: status.fsync_p99_us,
            log_entries: status.last_log.unwrap_or(0),
            log_bytes: status.log_appended_bytes,
            image_bytes_written: status.image_written_bytes,
            resident_bytes: process::resident_bytes(),
            items_done: self.0.node.ledger(|l| l.rows_done()),
        }))
    }
}
