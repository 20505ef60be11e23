//! Seeds: sequences of requests that a ledger accepts: a batch run, and a training job; and dry runs of requests.

use prost::Message;
use rollout_ledger::Reply;
use rollout_ledger::id::SessionId;
use rollout_proto::v1;

use super::{DRY_RUN, Member, TICK};
use crate::targets::push_sized;

/// Requests, and the ledger that has applied them: later requests use its answers.
struct Story {
    member: Member,
    bytes: Vec<u8>,
    session: u64,
    seq: u64,
}

impl Story {
    fn begin() -> Self {
        let mut story = Self { member: Member::open(), bytes: Vec::new(), session: 0, seq: 0 };
        let open = v1::OpenSessionRequest { client_name: "c".into() };
        if let Reply::ClientOpened { session } = story.send(0, &open) {
            story.session = session.0;
        }
        story
    }

    /// Adds a message, and gives the last reply of the ledger.
    fn send(&mut self, kind: u8, message: &impl Message) -> Reply {
        let message = message.encode_to_vec();
        self.bytes.push(kind);
        push_sized(&mut self.bytes, &message);
        let replies = self.member.take(kind, &message);
        // A refused request is a good seed too.
        replies.and_then(|replies| replies.into_iter().next_back()).unwrap_or(Reply::Ok)
    }

    fn wait(&mut self, seconds: u16) {
        self.bytes.push(TICK);
        push_sized(&mut self.bytes, &seconds.to_le_bytes());
        self.member.take(TICK, &seconds.to_le_bytes());
    }

    fn id(&mut self) -> Option<v1::RequestId> {
        self.seq += 1;
        Some(v1::RequestId { session: self.session, seq: self.seq, ack_upto: self.seq - 1 })
    }
}

fn blob(digest: u8) -> Option<v1::BlobRef> {
    Some(v1::BlobRef { key: String::new(), digest: vec![digest; 32].into(), bytes: 40 })
}

fn create(story: &mut Story) -> v1::CreateRunRequest {
    let engine =
        v1::EngineSpec { model: "m".into(), task: "generate".into(), ..Default::default() };
    let spec = v1::RunSpec {
        engine: Some(engine),
        sampling_json: r#"{"seed":1}"#.into(),
        priority: 5,
        weight: 1,
        failures_max: 10,
        attempts_max: 3,
        ..Default::default()
    };
    let request = story.id();
    v1::CreateRunRequest { request, name: "r".into(), spec: Some(spec), ..Default::default() }
}

fn segments(story: &mut Story, run: u32) -> v1::AddSegmentsRequest {
    let segment = |number: u32| v1::SegmentDecl { number, rows: 4, blob: blob(number as u8) };
    let segments = vec![segment(0), segment(1)];
    v1::AddSegmentsRequest { request: story.id(), run, segments, ..Default::default() }
}

fn register(name: &str) -> v1::RegisterRequest {
    let slot = |slot| v1::SlotOffer {
        slot,
        models: vec!["m".into()],
        tasks: vec!["generate".into()],
        engine: "mock".into(),
        ..Default::default()
    };
    v1::RegisterRequest {
        name: name.into(),
        instance: 1,
        slots: vec![slot(0), slot(1)],
        ..Default::default()
    }
}

fn exchange(session: SessionId, exchange: v1::Exchange) -> v1::WorkerMessage {
    let kind = Some(v1::worker_message::Kind::Exchange(exchange));
    v1::WorkerMessage { session: session.0, coord_epoch: 1, instance: 1, kind }
}

fn heartbeat(session: SessionId, started: Vec<v1::HeldRows>) -> v1::WorkerMessage {
    let heartbeat = v1::Heartbeat { seq: 1, started, ..Default::default() };
    let kind = Some(v1::worker_message::Kind::Heartbeat(heartbeat));
    v1::WorkerMessage { session: session.0, coord_epoch: 1, instance: 1, kind }
}

fn rows(run: u32, attempt: u64, start: u64, len: u32) -> v1::HeldRows {
    v1::HeldRows { run, attempt, rows: Some(v1::Rows { starts: vec![start], lens: vec![len] }) }
}

/// Two workers: one completes and fails rows, the other falls silent with some.
fn batch() -> Story {
    let mut story = Story::begin();
    let message = create(&mut story);
    let Reply::Run { run, .. } = story.send(1, &message) else { return story };
    let run = run.0;
    let message = segments(&mut story, run);
    story.send(2, &message);
    let Reply::Registered { session: one, .. } = story.send(7, &register("w1")) else {
        return story;
    };
    let Reply::Registered { session: two, .. } = story.send(7, &register("w2")) else {
        return story;
    };
    let pull = |seq| v1::Exchange { seq, credit_rows: 3, ..Default::default() };
    let Reply::Granted(granted) = story.send(8, &exchange(one, pull(1))) else { return story };
    let attempt = granted.first().map_or(0, |granted| granted.held.attempt.0);
    story.send(8, &exchange(two, pull(1)));
    let part = v1::PartResult {
        run,
        part: blob(9),
        sets: vec![rows(run, attempt, 0, 1)],
        tokens_in: 1,
        tokens_out: 2,
    };
    let failure = v1::FailedAttempt {
        run,
        attempt,
        rows: rows(run, attempt, 1, 1).rows,
        class: v1::FailureClass::Transient.into(),
        code: "X".into(),
        ..Default::default()
    };
    let death = v1::EngineDeath {
        started: vec![rows(run, attempt, 2, 1)],
        class: v1::FailureClass::EngineDied.into(),
        number: 1,
        ..Default::default()
    };
    let (parts, failures, deaths) = (vec![part], vec![failure], vec![death]);
    story.send(8, &exchange(one, v1::Exchange { parts, failures, deaths, ..pull(2) }));
    story.send(8, &heartbeat(two, vec![rows(run, attempt + 1, 3, 2)]));
    story.wait(20);
    story.wait(60);
    story
}

/// An operator's commands about a run and its workers.
fn operators() -> Story {
    let mut story = batch();
    let (name, request) = ("w1".to_owned(), story.id());
    let cordon =
        v1::CordonWorkerRequest { name, slot: Some(1), cordoned: true, ..Default::default() };
    story.send(10, &v1::CordonWorkerRequest { request, ..cordon });
    let (name, request) = ("w1".to_owned(), story.id());
    story.send(9, &v1::DrainWorkerRequest { name, request, ..Default::default() });
    let action = v1::RunAction::Pause.into();
    let (name, request) = ("r".to_owned(), story.id());
    story.send(4, &v1::ControlRunRequest { name, request, action, ..Default::default() });
    let (namespace, request) = ("team".to_owned(), story.id());
    let quota =
        v1::SetQuotaRequest { namespace, create: true, runs_max: Some(1), ..Default::default() };
    story.send(12, &v1::SetQuotaRequest { request, ..quota });
    let (identity, request) = ("worker/gpu-7".to_owned(), story.id());
    story.send(15, &v1::RevokeRequest { identity, request, ..Default::default() });
    let (name, request) = ("cordon-after".to_owned(), story.id());
    story.send(41, &v1::SetSettingRequest { request, name, value: 1 });
    let token = v1::CreateTokenRequest {
        request: story.id(),
        name: "t".into(),
        role: "worker".into(),
        secret_hash: vec![1; 32].into(),
        ttl_ms: 60_000,
        uses_max: 1,
        ..Default::default()
    };
    story.send(13, &token);
    let (name, request) = ("r".to_owned(), story.id());
    let set =
        v1::SetDeadlineRequest { name, request, deadline_ms: 86_400_000, ..Default::default() };
    story.send(42, &set);
    let (name, request) = ("r".to_owned(), story.id());
    story.send(43, &v1::SetWeightRequest { name, request, weight: 3, ..Default::default() });
    let key = v1::CreateKeyRequest {
        request: story.id(),
        id: "aB3dE6gH".into(),
        name: "ci".into(),
        role: "client".into(),
        secret_hash: vec![1; 32].into(),
        ttl_ms: 60_000,
        ..Default::default()
    };
    story.send(44, &key);
    let (id, request) = ("aB3dE6gH".to_owned(), story.id());
    story.send(45, &v1::RevokeKeyRequest { request, id });
    let action = v1::RunAction::Cancel.into();
    let (name, request) = ("r".to_owned(), story.id());
    story.send(4, &v1::ControlRunRequest { name, request, action, ..Default::default() });
    let (name, request) = ("r".to_owned(), story.id());
    story.send(5, &v1::DeleteRunRequest { name, request, ..Default::default() });
    story
}

fn job() -> Option<v1::JobName> {
    Some(v1::JobName { namespace: String::new(), job: "j".into() })
}

/// Participants of a rendezvous that meet at a barrier and share a store.
fn rendezvous() -> Story {
    let mut story = Story::begin();
    for name in ["a", "b"] {
        let participant = v1::Participant {
            name: name.into(),
            host: "h".into(),
            addr: "h:1".into(),
            local_world_size: 1,
            ..Default::default()
        };
        let join = v1::JoinRequest {
            request: story.id(),
            job: job(),
            participant: Some(participant.clone()),
            min: 2,
            max: 2,
            join_timeout_ms: 10_000,
            last_call_ms: 1000,
        };
        story.send(18, &join);
        let arrive = v1::ArriveRequest {
            request: story.id(),
            barrier: Some(v1::BarrierName { job: job(), barrier: "x".into() }),
            generation: 1,
            participant: Some(participant),
            set: Some(v1::BarrierSet { count: 2, ..Default::default() }),
            timeout_ms: 5000,
            ..Default::default()
        };
        story.send(22, &arrive);
    }
    let pair = v1::StorePair { key: b"k"[..].into(), value: b"1"[..].into() };
    let set = v1::store_op::Kind::Set(v1::StoreSet { pairs: vec![pair.clone()] });
    let append = v1::store_op::Kind::Append(pair.clone());
    let ops = [set, append, v1::store_op::Kind::Push(pair)];
    let store = Some(v1::StoreName { job: "j".into(), round: 1, ..Default::default() });
    let ops = ops.map(|kind| v1::StoreOp { kind: Some(kind) }).to_vec();
    let request = story.id();
    story.send(24, &v1::StoreApplyRequest { request, store, ops });
    story.wait(11);
    story
}

/// A trainer that takes shards of a dataset and reports a checkpoint.
fn training() -> Story {
    let mut story = Story::begin();
    let spec = v1::DatasetSpec {
        uri: "file:///d/{shard}".into(),
        samples: 25,
        shard_samples: 10,
        ..Default::default()
    };
    let (name, request) = ("d".to_owned(), story.id());
    let dataset =
        v1::CreateDatasetRequest { name, request, spec: Some(spec), ..Default::default() };
    story.send(17, &dataset);
    let trainer =
        v1::TrainerDecl { name: "t".into(), host: "h".into(), instance: 1, keep_alive_ms: 0 };
    let join = v1::JoinJobRequest {
        request: story.id(),
        job: job(),
        trainer: Some(trainer),
        ..Default::default()
    };
    let Reply::Joined { incarnation, .. } = story.send(27, &join) else { return story };
    let by = Some(v1::TrainerRef { job: job(), trainer: "t".into(), ticket: incarnation.0 });
    let (dataset, request) = ("d".to_owned(), story.id());
    let claim = v1::ClaimShardRequest { request, by: by.clone(), dataset, epoch: 0 };
    let Reply::Shard { number, token, .. } = story.send(32, &claim) else { return story };
    let begin = v1::BeginCheckpointRequest {
        request: story.id(),
        by: by.clone(),
        step: 1,
        ..Default::default()
    };
    story.send(35, &begin);
    let end_sample = 10 * u64::from(number) + 5;
    let progress = v1::ShardProgress { dataset: "d".into(), epoch: 0, shard: number, end_sample };
    let report = v1::ReportCheckpointRequest {
        request: story.id(),
        by: by.clone(),
        number: 1,
        manifest: Some(v1::BlobName { digest: vec![3; 32].into(), bytes: 9 }),
        bytes: 9,
        objects: 1,
        progress: vec![progress],
    };
    story.send(36, &report);
    let finish = v1::FinishShardRequest {
        request: story.id(),
        by,
        dataset: "d".into(),
        epoch: 0,
        shard: number,
        token: token.0,
        step: 2,
    };
    story.send(33, &finish);
    story.wait(60);
    story
}

/// Dry runs, as a client asks for them, of requests with texts, lists of rows, a map, messages and options.
fn dry_runs() -> Vec<u8> {
    let name = || "r".to_owned();
    let delete = v1::DeleteRunRequest { name: name(), ..Default::default() };
    let rows = Some(v1::Rows { starts: vec![1, 9], lens: vec![3, 2] });
    let retry = v1::RetryItemsRequest { run: name(), rows, ..Default::default() };
    let token = v1::CreateTokenRequest {
        name: "t".into(),
        role: "worker".into(),
        namespaces: vec!["a".into(), "b".into()],
        labels: [("zone".to_owned(), "a".to_owned())].into(),
        secret_hash: vec![1; 32].into(),
        ..Default::default()
    };
    let spec = v1::DatasetSpec { uri: "file:///d/{shard}".into(), ..Default::default() };
    let dataset = v1::CreateDatasetRequest { name: name(), spec: Some(spec), ..Default::default() };
    let quota = v1::SetQuotaRequest { create: true, runs_max: Some(0), ..Default::default() };
    let asked = [
        v1::DryRunRequest::of(&delete),
        v1::DryRunRequest::of(&retry),
        v1::DryRunRequest::of(&token),
        v1::DryRunRequest::of(&dataset),
        v1::DryRunRequest::of(&quota),
    ];
    let mut bytes = Vec::new();
    for asked in asked {
        bytes.push(DRY_RUN);
        push_sized(&mut bytes, &asked.encode_to_vec());
    }
    bytes
}

/// The dry runs are last.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let stories = [batch(), operators(), rendezvous(), training()];
    stories.into_iter().map(|story| story.bytes).chain([dry_runs()]).collect()
}
