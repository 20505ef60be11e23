//! The model's state, and the commands as a whole.

use crate::api_keys::ApiKey;
use crate::batches::Batch;
use crate::files::Files;
use crate::jobs::Job;
use crate::members::MembersModel;
use crate::quotas::Bounds;
use crate::rows::RowState;
use crate::runs::Run;
use crate::stores::Store;
use crate::tokens::Token;
use crate::trainings::Trainings;
use crate::workers::Worker;
use rollout_ledger::id::{Attempt, LedgerMs, RunNo, SessionId, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{
    Body, Command, EntryId, JobName, Op, OpKind, Rejection, Reply, Revocation, Revoked, Scope,
    ScopedOp, SettingOp, StoreName, op,
};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(crate) struct Client {
    pub(crate) holder: String,
    /// Whether it was there when the version was raised to 3.
    earlier: bool,
    pub(crate) ack_upto: u64,
    pub(crate) replies: BTreeMap<u64, Reply>,
}

pub(crate) struct Model {
    pub(crate) index: u64,
    pub(crate) clock: u64,
    pub(crate) epoch: u64,
    pub(crate) version: u32,
    /// Caps; 0 for none.
    pub(crate) namespaces: BTreeMap<String, u64>,
    /// What else they may have.
    pub(crate) bounds: BTreeMap<String, Bounds>,
    pub(crate) runs: Vec<Run>,
    pub(crate) workers: BTreeMap<SessionId, Worker>,
    pub(crate) clients: BTreeMap<SessionId, Client>,
    pub(crate) turns: BTreeMap<u8, u32>,
    pub(crate) stores: BTreeMap<StoreName, Store>,
    pub(crate) jobs: BTreeMap<JobName, Job>,
    pub(crate) trainings: Trainings,
    pub(crate) tokens: BTreeMap<String, Token>,
    pub(crate) api_keys: Vec<ApiKey>,
    pub(crate) files: Files,
    pub(crate) batches: Vec<Batch>,
    pub(crate) revocations: Vec<(Revoked, Revocation)>,
    pub(crate) members: MembersModel,
    /// After how many incidents a slot is cordoned.
    pub(crate) cordon_after: usize,
    /// What operators have cordoned, by namespace and name: all of it, or some slots.
    pub(crate) cordons: BTreeMap<(String, String), (bool, BTreeSet<u16>)>,
    /// The attempts that are, or were, trials.
    pub(crate) trials: BTreeSet<Attempt>,
    /// Every grant ever made, for actions that name one.
    pub(crate) grants: Vec<(SlotRef, rollout_ledger::HeldRows)>,
    /// Every session that ever was, and its worker's name.
    pub(crate) sessions: Vec<(SessionId, String)>,
    /// What happened that no reply shows.
    pub(crate) events: Vec<String>,
    pub(crate) op: u32,
    /// The client that requests the operation, if any.
    pub(crate) caller: Option<String>,
    /// The same, if its session was opened in version 3.
    pub(crate) joiner: Option<String>,
    pub(crate) granted: u32,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            index: 0,
            clock: 0,
            epoch: 0,
            version: 1,
            namespaces: BTreeMap::from([("default".to_owned(), 0)]),
            bounds: BTreeMap::new(),
            runs: Vec::new(),
            workers: BTreeMap::new(),
            clients: BTreeMap::new(),
            turns: BTreeMap::new(),
            stores: BTreeMap::new(),
            jobs: BTreeMap::new(),
            trainings: Trainings::default(),
            tokens: BTreeMap::new(),
            api_keys: Vec::new(),
            files: Files::default(),
            batches: Vec::new(),
            revocations: Vec::new(),
            members: MembersModel::default(),
            cordon_after: 3,
            cordons: BTreeMap::new(),
            trials: BTreeSet::new(),
            grants: Vec::new(),
            sessions: Vec::new(),
            events: Vec::new(),
            op: 0,
            caller: None,
            joiner: None,
            granted: 0,
        }
    }
}

pub(crate) type Outcome = Result<Reply, Rejection>;

impl Model {
    pub(crate) fn apply(&mut self, entry: EntryId, command: &Command) -> Vec<Reply> {
        self.index = entry.index;
        (self.op, self.granted) = (0, 0);
        if command.body != Body::OpenEpoch && command.epoch.0 != self.epoch {
            let why = Rejection::EpochStale { got: command.epoch.0, open: self.epoch };
            return vec![Reply::Rejected(why); command.body.ops().count().max(1)];
        }
        self.clock = self.clock.max(command.at.0);
        match &command.body {
            Body::OpenEpoch => {
                self.epoch = command.epoch.0;
                self.restart_grace();
                self.hear_trainers_anew();
                vec![Reply::EpochOpened { at: LedgerMs(self.clock) }]
            }
            Body::Tick => {
                let before = self.before();
                self.tick();
                self.note_ends();
                self.settle_fairly(&before);
                vec![Reply::Ok]
            }
            Body::Ops(ops) => {
                let mut replies = Vec::new();
                for op in ops {
                    replies.push(self.once(&Scope::All, op));
                    self.op += 1;
                }
                replies
            }
            Body::ScopedOps(ops) => {
                let mut replies = Vec::new();
                for ScopedOp { scope, op } in ops {
                    replies.push(self.once(scope, op));
                    self.op += 1;
                }
                replies
            }
            // A digest request changes nothing.
            Body::DigestAt => vec![Reply::Ok],
            Body::SetVersion(version) => {
                if self.version < 3 && *version >= 3 {
                    self.clients.values_mut().for_each(|client| client.earlier = true);
                }
                self.version = self.version.max(*version);
                if self.version >= 3 {
                    self.runs.iter_mut().for_each(|run| run.excluded.clear());
                }
                vec![Reply::Ok]
            }
        }
    }

    fn once(&mut self, scope: &Scope, op: &Op) -> Reply {
        let Some(request) = op.request else { return self.run(scope, &op.kind) };
        let Some(client) = self.clients.get_mut(&request.session) else {
            return Reply::Rejected(Rejection::SessionUnknown);
        };
        client.ack_upto = client.ack_upto.max(request.ack_upto);
        if request.seq <= client.ack_upto {
            return Reply::Rejected(Rejection::RequestForgotten);
        }
        if let Some(reply) = client.replies.get(&request.seq) {
            return reply.clone();
        }
        self.caller = Some(client.holder.clone());
        let known = self.version >= 3 && !client.earlier;
        self.joiner = known.then(|| client.holder.clone());
        let reply = self.run(scope, &op.kind);
        (self.caller, self.joiner) = (None, None);
        let client = self.clients.get_mut(&request.session).expect("just seen");
        client.replies.insert(request.seq, reply.clone());
        reply
    }

    fn run(&mut self, scope: &Scope, kind: &OpKind) -> Reply {
        let before = self.before();
        let reply = match self.denied(scope, kind) {
            Some(why) => Reply::Rejected(why),
            None => self.kind(kind).unwrap_or_else(Reply::Rejected),
        };
        self.tidy();
        self.note_ends();
        self.settle_fairly(&before);
        reply
    }

    fn kind(&mut self, kind: &OpKind) -> Outcome {
        match kind.clone() {
            OpKind::OpenClient(op::OpenClient { holder, .. }) => {
                let session = SessionId::at(self.index, self.op);
                self.clients.insert(session, Client { holder, ..Client::default() });
                Ok(Reply::ClientOpened { session })
            }
            OpKind::SetNamespace(op::SetNamespace { name, running_rows_max }) => {
                self.namespaces.insert(name, running_rows_max);
                Ok(Reply::Ok)
            }
            OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder }) => {
                self.create(namespace, name, *spec, folder)
            }
            OpKind::AddSegments(op::AddSegments { run, segments }) => self.segments(run, &segments),
            OpKind::CloseInput(op::CloseInput { run, rows, digest }) => {
                self.close(run, rows, digest)
            }
            OpKind::ControlRun(op::ControlRun { run, action, .. }) => self.control(run, action),
            OpKind::Register(registration) => self.register(*registration),
            OpKind::Deregister(op::Deregister { session }) => self.deregister(session),
            OpKind::Suspect(op::Suspect { session, started, grace_ms }) => {
                self.suspect(session, &started, grace_ms)
            }
            OpKind::SuspectWithUnreportedStarts(op::SuspectWithUnreportedStarts {
                session,
                started,
                unreported_starts,
                grace_ms,
            }) => {
                self.suspect_with_unreported_starts(session, &started, &unreported_starts, grace_ms)
            }
            OpKind::Unsuspect(op::Unsuspect { session }) => self.unsuspect(session),
            OpKind::Drain(op::DrainWorker { session, deadline_ms }) => {
                self.drain(session, deadline_ms)
            }
            OpKind::Claim(op::Claim { slot, instance, seq, rows_max }) => {
                match self.workers.get(&slot.session) {
                    Some(worker) if worker.instance == instance => self.claim(slot, seq, rows_max),
                    _ => Err(Rejection::SessionUnknown),
                }
            }
            OpKind::Complete(op::Complete { slot, run, part, sets }) => {
                self.complete(slot, run, &part, &sets)
            }
            OpKind::Fail(op::Fail { slot, held, class, message, .. }) => {
                self.fail(slot, &held, class, &message)
            }
            OpKind::Nack(op::Nack { slot, held }) => Ok(self.nack(slot, &held)),
            OpKind::EngineDied(op::EngineDied { slot, number, started, class, .. }) => {
                self.died(slot, number, &started, class)
            }
            OpKind::Cordon(op::Cordon { session, slot, cordoned, .. }) => {
                self.cordon(session, slot.map(|s| s.0), cordoned)
            }
            OpKind::RetryRows(op::RetryRows { run, rows }) => self.retry(run, rows.as_ref()),
            OpKind::Seal(op::Seal { run, ended_index, .. }) => self.seal(run, ended_index),
            OpKind::Swept(op::Swept { run }) => self.swept(run),
            OpKind::DeleteRun(op::DeleteRun { run }) => self.delete(run),
            OpKind::ForgetRun(op::ForgetRun { run }) => self.forget(run),
            OpKind::Steal(op::Steal { victim, held, idle_slot, instance, seq }) => {
                self.steal(victim, &held, (idle_slot, instance, seq))
            }
            OpKind::ReuseResults(op::ReuseResults { run, segment, segment_digest, part, rows }) => {
                self.reuse_results(run, (segment, segment_digest), &part, &rows)
            }
            OpKind::ClaimSpeculatively(op::ClaimSpeculatively {
                slot,
                instance,
                seq,
                rows_max,
            }) => match self.workers.get(&slot.session) {
                Some(worker) if worker.instance == instance => {
                    self.claim_speculatively(slot, seq, rows_max)
                }
                _ => Err(Rejection::SessionUnknown),
            },
            OpKind::Store(op::UseStore { store, ops }) => self.store(store, ops),
            OpKind::DropStore(op::DropStore { store }) => self.drop_store(&store),
            OpKind::RoundStore(op::UseRoundStore { store, incarnation, ops }) => {
                self.check_incarnation(&store, incarnation)?;
                self.store(store, ops)
            }
            OpKind::Join(op::Join { job, participant, config }) => {
                self.join(job, &participant, config)
            }
            OpKind::Participate(op::Participate { job, participant }) => {
                self.participate(&job, &participant)
            }
            OpKind::Leave(op::Leave { incarnation }) => self.leave(incarnation, "left"),
            OpKind::LoseParticipant(op::LoseParticipant { incarnation, .. }) => {
                self.leave(incarnation, "lost")
            }
            OpKind::CloseRendezvous(op::CloseRendezvous { job }) => self.close_rendezvous(&job),
            OpKind::Arrive(op::Arrive {
                job,
                barrier,
                generation,
                incarnation,
                participant,
                spec,
            }) => self.arrive((&job, &barrier, generation), incarnation, &participant, spec),
            OpKind::AbortBarrier(op::AbortBarrier { job, barrier, generation, .. }) => {
                self.abort(&job, &barrier, generation)
            }
            OpKind::Dataset(op) => self.dataset(op),
            OpKind::Trainer(op) => self.trainer(op),
            OpKind::LoseTrainers(op::LoseTrainers { job, trainers }) => {
                self.lose_reported(&job, trainers)
            }
            OpKind::Shard(op) => self.shard(op),
            OpKind::Checkpoint(op) => self.checkpoint(op),
            OpKind::SetQuota(quota) => self.set_quota(&quota),
            OpKind::SettleWebhook(op::SettleWebhook { run, index, delivered }) => {
                self.settle_webhook(run, index, delivered)
            }
            OpKind::Token(op) => self.token(op),
            OpKind::CreateApiKey(op) => self.create_api_key(op),
            OpKind::RevokeApiKey(op) => self.revoke_api_key(op.id),
            of_files @ (OpKind::CreateFile(_)
            | OpKind::DeleteFile(_)
            | OpKind::CreateUpload(_)
            | OpKind::AddUploadPart(_)
            | OpKind::CompleteUpload(_)
            | OpKind::CancelUpload(_)
            | OpKind::ForgetContent(_)) => self.file_op(of_files),
            of_batches @ (OpKind::CreateBatch(_)
            | OpKind::AssignBatch(_)
            | OpKind::AddBatchSegments(_)
            | OpKind::FailBatch(_)
            | OpKind::StartBatch(_)
            | OpKind::CancelBatch(_)
            | OpKind::FinishBatch(_)) => self.batch_op(of_batches),
            OpKind::Revocation(op) => self.revocation(op),
            OpKind::Member(op) => self.member(op),
            OpKind::Setting(SettingOp::CordonAfter(value)) => self.set_cordon_after(value),
            OpKind::SetDeadline(op::SetDeadline { run, deadline_ms }) => {
                self.set_deadline(run, deadline_ms)
            }
            OpKind::SetWeight(op::SetWeight { run, weight }) => self.set_weight(run, weight),
        }
    }

    fn tick(&mut self) {
        let now = self.clock;
        for run in &mut self.runs {
            if run.is_overdue(now) && !run.ended() {
                run.end_early(RunState::DeadlineExceeded);
                self.events.push("run's deadline passed".into());
            }
        }
        for run in &mut self.runs {
            for row in &mut run.rows {
                if matches!(row.state, RowState::Waiting { until } if until <= now) {
                    row.state = RowState::Pending { late: None };
                }
            }
        }
        for row in self.runs.iter_mut().flat_map(|run| &mut run.rows) {
            if let Some(incident) = &mut row.incident {
                incident.until = incident.until.filter(|until| *until > now);
                if incident.until.is_none() {
                    incident.earlier.clear();
                }
            }
        }
        self.end_failure_cordons();
        self.end_silent();
        self.tick_jobs();
        self.end_silent_trainers();
        self.end_tokens();
        self.end_api_keys();
        for run in &mut self.runs {
            run.excluded.retain(|_, excluded| excluded.1.0 > now);
            let (timeout, before) = (run.spec.attempt_timeout_ms, run.returned);
            run.lapse(|lease| timeout > 0 && lease.granted_at + 2 * timeout <= now);
            if run.returned > before {
                self.events.push("attempt timed out".into());
            }
        }
    }

    pub(crate) fn note(&mut self, event: &str) {
        self.events.push(event.to_owned());
    }

    pub(crate) fn run_of(&mut self, no: RunNo) -> Result<&mut Run, Rejection> {
        let at = (no.0 as usize).checked_sub(1).ok_or(Rejection::RunUnknown)?;
        self.runs.get_mut(at).filter(|r| !r.forgotten).ok_or(Rejection::RunUnknown)
    }
}
