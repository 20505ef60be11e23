//! Converts requests to operations of the ledger as the services do. Only fuzz targets use this module.
//!
//! Invariant: each message passes through the conversions that its service uses.
//! Absent: sessions, leases, objects and permissions: a service checks those against a running member.

use bytes::Bytes;
use prost::Message;
use rollout_ledger::id::{Attempt, RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    BarrierSpec, CheckpointOp, DatasetOp, Ledger, Op, OpKind, ParticipantDecl, Policy,
    Registration, RendezvousConfig, RunAction, ShardOp, ShardProgress, ShardRef, TrainerOp, op,
};
use rollout_proto::{Identity, Role, v1};

mod operators;

use super::shard::samples_before;
use super::training_convert::{by_in, decl_in, job_in, on_loss_in};
use super::{
    barrier, checkpoint, checkpoint_manifest, exchange_room, namespace_or_default, rendezvous,
    runs, store, work_stream,
};
use crate::grpc::convert::{self, Checked, Kind, invalid};
use crate::leader::dispatch;
use v1::worker_message::Kind as Up;

/// The number of kinds of messages.
pub const KINDS: u8 = 46;

fn read<M: Message + Default>(bytes: &[u8]) -> Checked<M> {
    M::decode(bytes).map_err(|error| invalid(error.to_string()))
}

fn caller() -> Checked<Identity> {
    Identity::new(Role::Admin, "fuzz", Vec::new()).map_err(|error| invalid(error.to_string()))
}

/// One operation, with the request's id if it has one.
fn one(request: Option<&v1::RequestId>, kind: OpKind) -> Checked<Vec<Op>> {
    Ok(vec![Op { request: convert::request_in(request).ok(), kind }])
}

/// The chunks that a rank's manifest names.
pub(crate) fn checkpoint_manifest(bytes: &[u8]) -> Option<usize> {
    let manifest = checkpoint_manifest::decoded(Bytes::copy_from_slice(bytes))?;
    Some(manifest.files.iter().map(|file| file.chunks.len()).sum())
}

/// The operations that a message results in. `kind` selects its type.
pub(crate) fn operations(ledger: &Ledger, kind: u8, bytes: &[u8]) -> Checked<Vec<Op>> {
    match kind % KINDS {
        kind @ 0..7 => of_runs(ledger, kind, bytes),
        kind @ 7..12 => of_workers(ledger, kind, bytes),
        kind @ 12..18 => operators::of_operators(kind, bytes),
        kind @ 18..27 => of_jobs(kind, bytes),
        41 => operators::of_settings(bytes),
        42 => set_deadline(ledger, &read(bytes)?),
        43 => set_weight(ledger, &read(bytes)?),
        44 => operators::create_key(read(bytes)?),
        45 => operators::revoke_key(read(bytes)?),
        kind => of_training(ledger, kind, bytes),
    }
}

fn run_of(ledger: &Ledger, namespace: &str, name: &str) -> Checked<RunNo> {
    let found = ledger.find_run(&namespace_or_default(namespace), name);
    found.ok_or_else(|| invalid("there is no such run"))
}

fn of_runs(ledger: &Ledger, kind: u8, bytes: &[u8]) -> Checked<Vec<Op>> {
    match kind {
        0 => {
            let r: v1::OpenSessionRequest = read(bytes)?;
            one(
                None,
                OpKind::OpenClient(op::OpenClient {
                    name: r.client_name,
                    holder: "admin/fuzz".into(),
                }),
            )
        }
        1 => {
            let r: v1::CreateRunRequest = read(bytes)?;
            let namespace = namespace_or_default(&r.namespace);
            let spec = Box::new(convert::spec_in(r.spec)?);
            let wanted = match r.folder.is_empty() {
                true => rollout_storage::run_folder(&r.name, "c", ledger.applied().index),
                false => r.folder,
            };
            let folder = runs::folder_of(&r.name, "c", wanted)?;
            one(
                r.request.as_ref(),
                OpKind::CreateRun(op::CreateRun { namespace, name: r.name, spec, folder }),
            )
        }
        2 => add_segments(ledger, &read(bytes)?),
        3 => {
            let r: v1::CloseInputRequest = read(bytes)?;
            let digest = convert::digest_in(&r.digest)?;
            let kind =
                OpKind::CloseInput(op::CloseInput { run: RunNo(r.run), rows: r.rows, digest });
            one(r.request.as_ref(), kind)
        }
        4 => {
            let r: v1::ControlRunRequest = read(bytes)?;
            let run = run_of(ledger, &r.namespace, &r.name)?;
            let action = match r.action() {
                v1::RunAction::Pause => RunAction::Pause,
                v1::RunAction::Resume => RunAction::Resume,
                v1::RunAction::Cancel => RunAction::Cancel,
                v1::RunAction::Unspecified => return Err(invalid("unknown action")),
            };
            one(
                r.request.as_ref(),
                OpKind::ControlRun(op::ControlRun { run, action, reason: r.reason }),
            )
        }
        5 => {
            let r: v1::DeleteRunRequest = read(bytes)?;
            let run = run_of(ledger, &r.namespace, &r.name)?;
            one(r.request.as_ref(), OpKind::DeleteRun(op::DeleteRun { run }))
        }
        _ => {
            let r: v1::RetryItemsRequest = read(bytes)?;
            let run = run_of(ledger, &r.namespace, &r.run)?;
            let rows = convert::rows_in(r.rows.as_ref())?;
            let rows = (!r.all_failed).then_some(rows);
            one(r.request.as_ref(), OpKind::RetryRows(op::RetryRows { run, rows }))
        }
    }
}

fn set_deadline(ledger: &Ledger, r: &v1::SetDeadlineRequest) -> Checked<Vec<Op>> {
    let run = run_of(ledger, &r.namespace, &r.name)?;
    let set = op::SetDeadline { run, deadline_ms: r.deadline_ms };
    one(r.request.as_ref(), OpKind::SetDeadline(set))
}

fn set_weight(ledger: &Ledger, r: &v1::SetWeightRequest) -> Checked<Vec<Op>> {
    let run = run_of(ledger, &r.namespace, &r.name)?;
    let set = op::SetWeight { run, weight: r.weight };
    one(r.request.as_ref(), OpKind::SetWeight(set))
}

fn add_segments(ledger: &Ledger, r: &v1::AddSegmentsRequest) -> Checked<Vec<Op>> {
    let run = RunNo(r.run);
    let (namespace, folder) = ledger.run_folder(run).unwrap_or_default();
    for segment in &r.segments {
        // A key follows from its digest, which no mutation keeps, so continue with the conversion even if this refuses
        // it.
        let _ = runs::check_key(&namespace, &folder, Kind::Segment, segment.blob.as_ref());
    }
    let segments = r.segments.iter().map(convert::segment_in).collect::<Result<_, _>>()?;
    let mut ops = one(r.request.as_ref(), OpKind::AddSegments(op::AddSegments { run, segments }))?;
    for part in &r.carried {
        ops.push(convert::reuse_in(run, part)?.into());
    }
    Ok(ops)
}

fn worker_of(ledger: &Ledger, namespace: &str, name: &str) -> Checked<SessionId> {
    let found = ledger.find_worker(&namespace_or_default(namespace), name);
    found.ok_or_else(|| invalid("there is no such worker"))
}

fn of_workers(ledger: &Ledger, kind: u8, bytes: &[u8]) -> Checked<Vec<Op>> {
    match kind {
        7 => {
            let r: v1::RegisterRequest = read(bytes)?;
            let registration = Registration {
                namespace: namespace_or_default(&r.namespace),
                name: r.name,
                instance: r.instance,
                address: r.address,
                resume: (r.resume_session != 0).then_some(SessionId(r.resume_session)),
                holder_alive: false,
                slots: r.slots.iter().map(convert::offer_in).collect(),
                held: r.held.iter().map(convert::held_in).collect::<Result<_, _>>()?,
                stores: r.stores,
                versions: r.versions.into_iter().collect(),
                ..Registration::default()
            };
            one(None, OpKind::Register(Box::new(registration)))
        }
        8 => ops_of_worker(ledger, read(bytes)?),
        9 => {
            let r: v1::DrainWorkerRequest = read(bytes)?;
            let session = worker_of(ledger, &r.namespace, &r.name)?;
            one(
                r.request.as_ref(),
                OpKind::Drain(op::DrainWorker { session, deadline_ms: r.deadline_ms }),
            )
        }
        10 => {
            let r: v1::CordonWorkerRequest = read(bytes)?;
            let session = worker_of(ledger, &r.namespace, &r.name)?;
            let slot = r.slot.map(u16::try_from).transpose();
            let slot = slot.map_err(|_| invalid("there is no such slot"))?.map(SlotNo);
            let (cordoned, reason) = (r.cordoned, r.reason);
            one(r.request.as_ref(), OpKind::Cordon(op::Cordon { session, slot, cordoned, reason }))
        }
        _ => {
            let r: v1::DeregisterRequest = read(bytes)?;
            one(None, OpKind::Deregister(op::Deregister { session: SessionId(r.session) }))
        }
    }
}

/// The operations that a worker's message results in. A heartbeat counts as the last one before the worker fell
/// silent.
fn ops_of_worker(ledger: &Ledger, message: v1::WorkerMessage) -> Checked<Vec<Op>> {
    let session = SessionId(message.session);
    match message.kind {
        Some(Up::Heartbeat(heartbeat)) => {
            let slots = ledger.slots_of(session).unwrap_or(0);
            let started = work_stream::held_rows_in(&heartbeat.started, slots)?;
            let unreported_starts = work_stream::held_rows_in(&heartbeat.unfinished, slots)?;
            one(
                None,
                OpKind::SuspectWithUnreportedStarts(op::SuspectWithUnreportedStarts {
                    session,
                    started,
                    unreported_starts,
                    grace_ms: 15_000,
                }),
            )
        }
        Some(Up::Exchange(m)) => {
            let slot = u16::try_from(m.slot).map_err(|_| invalid("there is no such slot"))?;
            let slot = SlotRef { session, slot: SlotNo(slot) };
            exchange_room::rows_named(&m, ledger.slots_of(session).unwrap_or(0))?;
            let (mut ops, mut sets) = (Vec::new(), Vec::new());
            dispatch::results_in(slot, &m, &mut ops, &mut sets)?;
            let held = m.yielded.iter().map(convert::held_in).collect::<Checked<Vec<_>>>()?;
            if !held.is_empty() {
                ops.push(OpKind::Nack(op::Nack { slot, held }).into());
            }
            let (seq, rows_max) = (m.seq, m.credit_rows);
            ops.push(
                OpKind::Claim(op::Claim { slot, instance: message.instance, seq, rows_max }).into(),
            );
            Ok(ops)
        }
        None => Err(invalid("a message is empty")),
    }
}

fn of_jobs(kind: u8, bytes: &[u8]) -> Checked<Vec<Op>> {
    let identity = caller()?;
    match kind {
        18 => {
            let r: v1::JoinRequest = read(bytes)?;
            let config = RendezvousConfig {
                min: r.min,
                max: r.max,
                join_timeout_ms: r.join_timeout_ms,
                last_call_ms: r.last_call_ms,
            };
            let job = job_in(&identity, r.job)?;
            let participant = Box::new(rendezvous::participant_in(r.participant)?);
            one(r.request.as_ref(), OpKind::Join(op::Join { job, participant, config }))
        }
        19 => {
            let r: v1::ParticipateRequest = read(bytes)?;
            let job = job_in(&identity, r.job)?;
            let participant = Box::new(rendezvous::participant_in(r.participant)?);
            one(r.request.as_ref(), OpKind::Participate(op::Participate { job, participant }))
        }
        20 => {
            let r: v1::LeaveRequest = read(bytes)?;
            job_in(&identity, r.job)?;
            one(r.request.as_ref(), OpKind::Leave(op::Leave { incarnation: SessionId(r.ticket) }))
        }
        21 => {
            let r: v1::RendezvousCloseRequest = read(bytes)?;
            let job = job_in(&identity, r.job)?;
            one(r.request.as_ref(), OpKind::CloseRendezvous(op::CloseRendezvous { job }))
        }
        22 => arrive(&identity, read(bytes)?),
        23 => {
            let r: v1::BarrierAbortRequest = read(bytes)?;
            let (job, barrier) = barrier::name_in(&identity, r.barrier)?;
            let (generation, reason) = (r.generation, r.reason);
            let kind = OpKind::AbortBarrier(op::AbortBarrier { job, barrier, generation, reason });
            one(r.request.as_ref(), kind)
        }
        24 => {
            let r: v1::StoreApplyRequest = read(bytes)?;
            let store = store::name_in(&identity, r.store)?;
            let _ = r.ops.iter().flat_map(store::awaited_keys).count();
            let ops = r.ops.into_iter().map(store::op_in).collect::<Result<_, _>>()?;
            one(
                r.request.as_ref(),
                store::within_bytes(OpKind::Store(op::UseStore { store, ops }))?,
            )
        }
        25 => {
            let r: v1::StoreDropRequest = read(bytes)?;
            let store = store::name_in(&identity, r.store)?;
            one(r.request.as_ref(), OpKind::DropStore(op::DropStore { store }))
        }
        _ => {
            let r: v1::DeleteDatasetRequest = read(bytes)?;
            let (namespace, name) = (namespace_or_default(&r.namespace), r.name);
            one(r.request.as_ref(), OpKind::Dataset(DatasetOp::Delete { namespace, name }))
        }
    }
}

fn arrive(identity: &Identity, r: v1::ArriveRequest) -> Checked<Vec<Op>> {
    let (job, barrier) = barrier::name_in(identity, r.barrier)?;
    let policy = match v1::BarrierPolicy::try_from(r.policy) {
        Ok(v1::BarrierPolicy::Fail) => Policy::Fail,
        Ok(v1::BarrierPolicy::Shrink) => Policy::Shrink,
        Err(_) => return Err(invalid("the barrier's policy is not known")),
    };
    let members = barrier::barrier_members_in(r.set.unwrap_or_default());
    let spec = BarrierSpec { members, policy, timeout_ms: r.timeout_ms };
    let (incarnation, participant) = match r.ticket {
        0 => (None, rendezvous::participant_in(r.participant)?),
        incarnation => (Some(SessionId(incarnation)), ParticipantDecl::default()),
    };
    let (generation, participant) = (r.generation, Box::new(participant));
    let kind =
        OpKind::Arrive(op::Arrive { job, barrier, generation, incarnation, participant, spec });
    one(r.request.as_ref(), kind)
}

fn of_training(ledger: &Ledger, kind: u8, bytes: &[u8]) -> Checked<Vec<Op>> {
    let identity = caller()?;
    match kind {
        27 => {
            let r: v1::JoinJobRequest = read(bytes)?;
            let job = job_in(&identity, r.job)?;
            let (trainer, on_loss) = (decl_in(r.trainer)?, on_loss_in(r.on_loss)?);
            one(r.request.as_ref(), OpKind::Trainer(TrainerOp::Join { job, trainer, on_loss }))
        }
        28 => {
            let r: v1::KeepTrainersRequest = read(bytes)?;
            let job = job_in(&identity, r.job)?;
            let trainers = r.trainers.into_iter();
            let trainers = trainers.map(|t| (t.trainer, SessionId(t.ticket))).collect();
            one(None, OpKind::Trainer(TrainerOp::Keep { job, trainers }))
        }
        29 => {
            let r: v1::LeaveJobRequest = read(bytes)?;
            one(r.request.as_ref(), OpKind::Trainer(TrainerOp::Leave(by_in(&identity, r.by)?)))
        }
        30 => recover(&identity, read(bytes)?),
        31 => {
            let r: v1::DeleteJobRequest = read(bytes)?;
            let op = TrainerOp::DeleteJob(job_in(&identity, r.job)?);
            one(r.request.as_ref(), OpKind::Trainer(op))
        }
        32 => {
            let r: v1::ClaimShardRequest = read(bytes)?;
            let by = by_in(&identity, r.by)?;
            let op = ShardOp::Claim { by, dataset: r.dataset, epoch: r.epoch };
            one(r.request.as_ref(), OpKind::Shard(op))
        }
        33 => {
            let r: v1::FinishShardRequest = read(bytes)?;
            let by = by_in(&identity, r.by)?;
            let (epoch, number, token) = (r.epoch, r.shard, Attempt(r.token));
            let shard = ShardRef { dataset: r.dataset, epoch, number, token };
            let op = ShardOp::Finish { by, shard, step: r.step };
            one(r.request.as_ref(), OpKind::Shard(op))
        }
        34 => {
            let r: v1::ReleaseShardRequest = read(bytes)?;
            let by = by_in(&identity, r.by)?;
            let samples =
                samples_before(ledger, &by.job.namespace, &r.dataset, r.shard, r.end_sample)?;
            let (epoch, number, token) = (r.epoch, r.shard, Attempt(r.token));
            let shard = ShardRef { dataset: r.dataset, epoch, number, token };
            let op = ShardOp::Release { by, shard, samples, step: r.step };
            one(r.request.as_ref(), OpKind::Shard(op))
        }
        kind => of_checkpoints(ledger, &identity, kind, bytes),
    }
}

fn recover(identity: &Identity, r: v1::RecoverRequest) -> Checked<Vec<Op>> {
    let op = TrainerOp::Recover {
        job: job_in(identity, r.job)?,
        round: r.round,
        world: r.world,
        trainer: decl_in(r.trainer)?,
        from: r.from,
        on_loss: on_loss_in(r.on_loss)?,
    };
    one(r.request.as_ref(), OpKind::Trainer(op))
}

fn of_checkpoints(
    ledger: &Ledger,
    identity: &Identity,
    kind: u8,
    bytes: &[u8],
) -> Checked<Vec<Op>> {
    let (request, op) = match kind {
        35 => {
            let r: v1::BeginCheckpointRequest = read(bytes)?;
            let by = by_in(identity, r.by)?;
            (r.request, CheckpointOp::Begin { by, step: r.step, label: r.label })
        }
        36 => {
            let r: v1::ReportCheckpointRequest = read(bytes)?;
            let by = by_in(identity, r.by.clone())?;
            let report = Box::new(checkpoint::report_in(&r)?);
            let mut progress = Vec::new();
            for reported in r.progress {
                let v1::ShardProgress { dataset, epoch, shard, end_sample } = reported;
                let samples =
                    samples_before(ledger, &by.job.namespace, &dataset, shard, end_sample)?;
                progress.push(ShardProgress { dataset, epoch, shard, samples });
            }
            (r.request, CheckpointOp::Report { by, number: r.number, report, progress })
        }
        37 => {
            let r: v1::AbortCheckpointRequest = read(bytes)?;
            let job = job_in(identity, r.job)?;
            (r.request, CheckpointOp::Abort { job, number: r.number })
        }
        38 => {
            let r: v1::PruneCheckpointsRequest = read(bytes)?;
            let job = job_in(identity, r.job)?;
            (r.request, CheckpointOp::Retain { job, keep_last: r.keep_last, now: r.now })
        }
        39 => {
            let r: v1::LabelCheckpointRequest = read(bytes)?;
            let job = job_in(identity, r.job)?;
            (r.request, CheckpointOp::Label { job, number: r.number, label: r.label })
        }
        _ => {
            let r: v1::DescribeCheckpointRequest = read(bytes)?;
            job_in(identity, r.job)?;
            return Ok(Vec::new());
        }
    };
    one(request.as_ref(), OpKind::Checkpoint(op))
}
