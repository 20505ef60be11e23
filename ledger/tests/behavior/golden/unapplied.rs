//! Commands besides those that make the golden records: operations since version 3, and values that the others lack.
//!
//! *Invariant:* these are encoded and decoded, but not applied, so a new one changes no line of another file. When the
//! ledger gains a kind of operation, its examples go here, at the end of [`all`].

use super::commands::{arrive, blob, command, op, participant, registration, spec};
use super::training;
use rollout_ledger::id::{
    Attempt, BatchFence, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef,
};
use rollout_ledger::{
    ApiKeySpec, BarrierMembers, BatchDecl, BatchError, BatchOutput, BatchSpec, BatchStatus,
    BatchUsage, Body, CheckpointOp, Command, DatasetOp, DatasetSpec, Evidence, Extent,
    FailureClass, FilePurpose, FileSpec, HeldRows, JobName, KeyLimits, KeyRole, LeaderCause,
    LossPolicy, MemberOp, OpKind, PartDecl, Policy, Quota, RendezvousConfig, RequestId,
    RevocationAuthor, RevocationOp, Revoked, Rows, RunAction, RunSpec, Scope, ScopedOp,
    SegmentDecl, SettingOp, StoreName, StoreOp, TokenOp, TokenRole, TokenSpec, TokenUse, TrainerOp,
    op,
};

fn ops(kinds: impl IntoIterator<Item = OpKind>) -> Command {
    command(Body::Ops(kinds.into_iter().map(Into::into).collect()))
}

/// Every command.
pub(crate) fn all() -> Vec<(&'static str, Command)> {
    let request = RequestId { session: SessionId::at(300, 1), seq: 129, ack_upto: 128 };
    let mut by_request = op(OpKind::DeleteRun(op::DeleteRun { run: RunNo(300) }));
    if let Body::Ops(ops) = &mut by_request.body {
        ops[0].request = Some(request);
    }
    let leads = |cause| OpKind::Member(MemberOp::Leads { name: "c1".into(), cause });
    let control = |action| {
        OpKind::ControlRun(op::ControlRun { run: RunNo(300), action, reason: "why".into() })
    };
    vec![
        ("nothing", command(Body::Ops(Vec::new()))),
        ("by_request", by_request),
        ("set_version_3", command(Body::SetVersion(3))),
        ("round_store", round_store()),
        ("leads", ops(LeaderCause::ALL.map(leads))),
        ("revocations", revocations()),
        ("tokens", tokens()),
        ("control_run", ops([RunAction::Pause, RunAction::Resume, RunAction::Cancel].map(control))),
        ("failures", failures()),
        ("trainers", trainers()),
        ("arrivals", arrivals()),
        ("runs", runs()),
        ("workers", workers()),
        ("rendezvous", rendezvous()),
        ("datasets_and_checkpoints", datasets_and_checkpoints()),
        ("cordon_after", op(OpKind::Setting(SettingOp::CordonAfter(5)))),
        ("set_deadline", set_deadline()),
        ("scoped_ops", scoped_ops()),
        ("lose_trainers", lose_trainers()),
        ("set_weight", op(OpKind::SetWeight(op::SetWeight { run: RunNo(300), weight: 3 }))),
        ("create_api_keys", api_keys()),
        ("revoke_api_key", op(OpKind::RevokeApiKey(op::RevokeApiKey { id: "aB3dE6gH".into() }))),
        ("files", files()),
        ("uploads", uploads()),
        ("batches", batches()),
        ("batch_ends", batch_ends()),
    ]
}

const FILE: &str = "file-0123456789abcdef0123456789abcdef";
const UPLOAD: &str = "upload_0123456789abcdef0123456789abcdef";
const PART: &str = "part_0123456789abcdef0123456789abcdef01";

fn content(id: &str) -> Extent {
    Extent { folder: format!("0123456789abcdef-{id}"), pieces: vec![blob(1), blob(2)] }
}

fn file_spec(purpose: FilePurpose) -> FileSpec {
    FileSpec {
        namespace: "default".into(),
        key: "aB3dE6gH".into(),
        filename: "in.jsonl".into(),
        purpose,
        ttl_ms: 3_600_000,
    }
}

/// Creates a file of each purpose, and deletes one.
pub(super) fn files() -> Command {
    let purposes = [FilePurpose::Batch, FilePurpose::BatchOutput, FilePurpose::UserData];
    let create = |(n, purpose): (u8, FilePurpose)| {
        let id = format!("{FILE}{n}");
        let content = content(&id);
        OpKind::CreateFile(op::CreateFile {
            id,
            spec: Box::new(file_spec(purpose)),
            request: (n == 1).then_some([7; 16]),
            content,
            begun_at: LedgerMs(70_000),
        })
    };
    let delete = OpKind::DeleteFile(op::DeleteFile { id: format!("{FILE}2") });
    ops((0..).zip(purposes).map(create).chain([delete]))
}

/// An upload that becomes a file, a pending one, and the end of removed content.
pub(super) fn uploads() -> Command {
    let upload = || UPLOAD.to_owned();
    let bytes = content(PART).bytes();
    let spec = || Box::new(file_spec(FilePurpose::Batch));
    ops([
        OpKind::CreateUpload(op::CreateUpload { id: upload(), spec: spec(), bytes }),
        OpKind::AddUploadPart(op::AddUploadPart {
            upload: upload(),
            id: PART.into(),
            content: content(PART),
            begun_at: LedgerMs(70_000),
        }),
        OpKind::CompleteUpload(op::CompleteUpload { id: upload(), parts: vec![PART.into()] }),
        OpKind::CreateUpload(op::CreateUpload {
            id: UPLOAD.replace("_0", "_1"),
            spec: spec(),
            bytes,
        }),
        OpKind::CancelUpload(op::CancelUpload { id: UPLOAD.replace("_0", "_1") }),
        OpKind::ForgetContent(op::ForgetContent {
            namespace: "default".into(),
            folders: vec![content(&format!("{FILE}2")).folder],
        }),
    ])
}

const BATCH: &str = "batch_0123456789abcdef0123456789abcdef";

fn batch(id: String, metadata: &[(&str, &str)]) -> OpKind {
    let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    OpKind::CreateBatch(Box::new(BatchDecl {
        folder: format!("{id}/0123456789abcdef-0000000000000001"),
        id,
        namespace: "default".into(),
        key: if metadata.is_empty() { String::new() } else { "aB3dE6gH".into() },
        idempotency: (!metadata.is_empty()).then_some([7; 32]),
        body_hash: [8; 32],
        spec: BatchSpec {
            endpoint: "/v1/chat/completions".into(),
            input_file: format!("{FILE}0"),
            completion_window: "24h".into(),
            window_ms: 86_400_000,
            metadata: metadata.iter().map(pair).collect(),
            output_ttl_ms: 3_600_000,
            options_json: "{}".into(),
        },
    }))
}

fn batch_segments() -> Vec<SegmentDecl> {
    let segment = |(number, rows)| SegmentDecl { number: SegmentNo(number), rows, blob: blob(1) };
    [(0, 300), (1, 4)].map(segment).to_vec()
}

/// After [`files`]: batches in validation, with segments and without, one with a run, and two that have ended.
pub(super) fn batches() -> Command {
    let id = |n: u8| format!("{BATCH}{n}");
    // As the third command of a ledger.
    let fence = |position| BatchFence::at(4, position);
    let assign = |n| OpKind::AssignBatch(op::AssignBatch { batch: id(n), member: 300 });
    let add = |n, position| {
        OpKind::AddBatchSegments(op::AddBatchSegments {
            batch: id(n),
            fence: fence(position),
            segments: batch_segments(),
            offset: 70_000,
            lines: 305,
        })
    };
    let mut hasher = blake3::Hasher::new();
    for segment in batch_segments() {
        hasher.update(&segment.blob.digest);
    }
    let error = |param: Option<&str>, line| BatchError {
        code: "invalid_url".into(),
        message: "why".into(),
        param: param.map(str::to_owned),
        line,
    };
    let metadata = [("rollout.key", "nightly"), ("team", "search")];
    ops([
        batch(id(0), &metadata),
        assign(0),
        add(0, 1),
        batch(id(1), &[]),
        assign(1),
        add(1, 4),
        OpKind::StartBatch(op::StartBatch {
            batch: id(1),
            fence: fence(4),
            spec: Box::new(spec()),
            rows: 304,
            digest: *hasher.finalize().as_bytes(),
        }),
        batch(id(2), &[]),
        assign(2),
        OpKind::FailBatch(op::FailBatch {
            batch: id(2),
            fence: fence(8),
            errors: vec![error(Some("url"), Some(300)), error(None, None)],
        }),
        batch(id(3), &[]),
        OpKind::CancelBatch(op::CancelBatch { batch: id(3) }),
        batch(id(4), &[]),
    ])
}

/// Each end, with output files and without.
fn batch_ends() -> Command {
    let all = [
        BatchStatus::Validating,
        BatchStatus::Failed,
        BatchStatus::InProgress,
        BatchStatus::Finalizing,
        BatchStatus::Completed,
        BatchStatus::Expired,
        BatchStatus::Cancelling,
        BatchStatus::Cancelled,
    ];
    let output = |id: String| BatchOutput {
        content: content(&id),
        filename: "out.jsonl".into(),
        begun_at: LedgerMs(70_000),
        id,
    };
    ops((0..).zip(all).map(|(n, ends_as): (u8, BatchStatus)| {
        OpKind::FinishBatch(op::FinishBatch {
            batch: format!("{BATCH}{n}"),
            fence: BatchFence::at(300, 1),
            ends_as,
            output: (n > 0).then(|| output(format!("{FILE}8"))),
            errors: (n > 1).then(|| output(format!("{FILE}9"))),
            usage: BatchUsage {
                input_tokens: 300,
                cached_tokens: 200,
                output_tokens: 70_000,
                reasoning_tokens: 1,
            },
        })
    }))
}

/// Creates a key of each role: one without limits that does not expire, and two with all.
pub(super) fn api_keys() -> Command {
    let limits = KeyLimits {
        requests_per_s: 300,
        open_batches: 200,
        waiting_rows: 70_000,
        stored_bytes: 1 << 40,
    };
    let create = |id: &str, role, ttl_ms, limits| {
        let (name, namespace) = ("ci".into(), "default".into());
        let spec = ApiKeySpec { name, namespace, role, ttl_ms, limits };
        OpKind::CreateApiKey(op::CreateApiKey { id: id.into(), secret_hash: [6; 32], spec })
    };
    ops([
        create("aB3dE6gH", KeyRole::Viewer, 0, KeyLimits::default()),
        create("Zz9Yy8Xx", KeyRole::Client, 2_592_000_000, limits),
        create("00000000", KeyRole::Admin, 300, limits),
    ])
}

fn lose_trainers() -> Command {
    let trainers = vec![("t0".to_owned(), SessionId::at(300, 1))];
    op(OpKind::LoseTrainers(op::LoseTrainers { job: training::job(), trainers }))
}

fn scoped_ops() -> Command {
    let scoped = |scope| {
        let kind = OpKind::DeleteRun(op::DeleteRun { run: RunNo(300) });
        ScopedOp { scope, op: kind.into() }
    };
    let team = Scope::Namespaces(vec!["team".into()]);
    command(Body::ScopedOps(vec![scoped(Scope::All), scoped(team)]))
}

fn set_deadline() -> Command {
    op(OpKind::SetDeadline(op::SetDeadline { run: RunNo(300), deadline_ms: 7_200_000 }))
}

fn round_store() -> Command {
    let store = StoreName { namespace: "default".into(), job: "train".into(), round: 300 };
    let (key, value) = (b"k".to_vec(), b"v".to_vec());
    let ops = vec![
        StoreOp::Set { pairs: vec![(key.clone(), value.clone()), (b"l".to_vec(), Vec::new())] },
        StoreOp::Add { key: key.clone(), delta: 300 },
        StoreOp::CompareSet { key: key.clone(), expected: Vec::new(), desired: value.clone() },
        StoreOp::Append { key: key.clone(), value: value.clone() },
        StoreOp::Delete { key: key.clone() },
        StoreOp::Push { queue: key.clone(), value },
        StoreOp::Pop { queue: key },
    ];
    op(OpKind::RoundStore(op::UseRoundStore { store, incarnation: SessionId::at(300, 1), ops }))
}

fn revocations() -> Command {
    let by = || Some(RevocationAuthor { identity: "admin/ann".into(), not_before_s: 7 });
    let identity = || Revoked::Identity("worker/gpu-1".into());
    let revoke = |whose, issued_before_s, by| RevocationOp::Revoke {
        whose,
        issued_before_s,
        reason: "the host was stolen".into(),
        by,
    };
    let all = [
        revoke(Revoked::Everyone, Some(1_764_200_000), None),
        revoke(identity(), None, by()),
        RevocationOp::Withdraw { whose: Revoked::Everyone, by: by() },
        RevocationOp::Withdraw { whose: identity(), by: None },
    ];
    ops(all.map(OpKind::Revocation))
}

fn tokens() -> Command {
    let spec = |role, holder: Option<&str>| TokenSpec {
        role,
        holder: holder.map(str::to_owned),
        namespaces: Vec::new(),
        labels: [("gpu".to_owned(), "h200".to_owned())].into(),
        ttl_ms: 300,
        uses_max: 200,
    };
    let create = |role, holder| TokenOp::Create {
        name: "rack-7".into(),
        secret_hash: [6; 32],
        spec: spec(role, holder),
    };
    let used = TokenUse {
        token: "rack-7".into(),
        secret_hash: [6; 32],
        holder: "gpu-1".into(),
        key_hash: [5; 32],
    };
    let all = [
        create(TokenRole::Worker, None),
        create(TokenRole::Worker, Some("gpu-1")),
        create(TokenRole::Client, Some("alice")),
        TokenOp::Revoke { name: "rack-7".into() },
        TokenOp::Spend(used),
    ];
    ops(all.map(OpKind::Token))
}

/// Each failure class, for one row and for an engine, with all evidence and with none.
fn failures() -> Command {
    let slot = SlotRef { session: SessionId::at(300, 1), slot: SlotNo(7) };
    let held = || HeldRows {
        run: RunNo(300),
        attempt: Attempt::at(300, 2),
        rows: Rows::range(70_000, 200),
    };
    let whole = || Evidence {
        exit_code: Some(-300),
        signal: Some(9),
        exception: "Oom".into(),
        text: Some(blob(9)),
    };
    let (code, message) = (|| "RO-0001".to_owned(), || "why".to_owned());
    let classes = [
        FailureClass::InvalidRow,
        FailureClass::Transient,
        FailureClass::OutOfMemory,
        FailureClass::EngineDied,
        FailureClass::InputUnreadable,
        FailureClass::StoreRefused,
    ];
    let failed = classes.map(|class| {
        let (code, message) = (code(), message());
        OpKind::Fail(op::Fail { slot, held: held(), class, code, message, evidence: whole() })
    });
    let died = [FailureClass::EngineDied, FailureClass::OutOfMemory].map(|class| {
        let (code, message, evidence) = (code(), message(), Evidence::default());
        let started = vec![held(), held()];
        OpKind::EngineDied(op::EngineDied {
            slot,
            number: 300,
            started,
            class,
            code,
            message,
            evidence,
        })
    });
    ops(failed.into_iter().chain(died))
}

/// Each policy, for a join and for a recovery.
fn trainers() -> Command {
    let policies = [LossPolicy::Recover, LossPolicy::Continue];
    let job = training::job;
    let join = |on_loss| TrainerOp::Join { job: job(), trainer: training::decl("t0"), on_loss };
    let recover = |on_loss| TrainerOp::Recover {
        job: job(),
        round: 300,
        world: vec!["t0".into(), "t1".into()],
        trainer: training::decl("t1"),
        from: 200,
        on_loss,
    };
    let others = [
        TrainerOp::Keep { job: job(), trainers: Vec::new() },
        TrainerOp::Leave(training::by("t0", 300)),
        TrainerOp::DeleteJob(job()),
    ];
    let all = policies.map(join).into_iter().chain(policies.map(recover)).chain(others);
    ops(all.map(OpKind::Trainer))
}

fn arrivals() -> Command {
    let member_sets = || {
        [
            BarrierMembers::Members(vec!["p".into(), "q".into()]),
            BarrierMembers::Count(300),
            BarrierMembers::Round,
        ]
    };
    let fail = member_sets().map(|members| arrive(members, Policy::Fail, "p"));
    let shrink = member_sets().map(|members| arrive(members, Policy::Shrink, "p"));
    let mut all: Vec<OpKind> = fail.into_iter().chain(shrink).collect();
    if let Some(OpKind::Arrive(op::Arrive { incarnation, .. })) = all.last_mut() {
        *incarnation = Some(SessionId::at(300, 1));
    }
    ops(all)
}

/// Specs with every field and with none, and other operations on runs.
fn runs() -> Command {
    let create = |name: &str, spec: RunSpec| {
        OpKind::CreateRun(op::CreateRun {
            namespace: "team".into(),
            name: name.into(),
            spec: Box::new(spec),
            folder: format!("{name}/0123456789abcdef-0000000000000003"),
        })
    };
    let quota = Quota {
        namespace: "team".into(),
        create: false,
        pending_rows_max: None,
        running_rows_max: Some(70_000),
        runs_max: None,
    };
    ops([
        create("whole", spec()),
        create("bare", RunSpec::default()),
        OpKind::AddSegments(op::AddSegments { run: RunNo(300), segments: Vec::new() }),
        OpKind::RetryRows(op::RetryRows { run: RunNo(300), rows: Some(Rows::default()) }),
        OpKind::SettleWebhook(op::SettleWebhook {
            run: RunNo(300),
            index: 70_000,
            delivered: false,
        }),
        OpKind::SetQuota(quota),
        OpKind::Seal(op::Seal { run: RunNo(300), manifest: blob(3), ended_index: 70_000 }),
        OpKind::ReuseResults(op::ReuseResults {
            run: RunNo(300),
            segment: SegmentNo(200),
            segment_digest: [1; 32],
            part: PartDecl { blob: blob(4), tokens_in: 300, tokens_out: 70_000 },
            rows: Rows::range(5, 1),
        }),
    ])
}

fn workers() -> Command {
    let session = SessionId::at(300, 1);
    let slot = SlotRef { session, slot: SlotNo(300) };
    let cordon = |slot, cordoned| {
        OpKind::Cordon(op::Cordon { session, slot, cordoned, reason: "why".into() })
    };
    ops([
        OpKind::Register(Box::new(registration())),
        OpKind::Register(Box::default()),
        cordon(None, true),
        cordon(Some(SlotNo(300)), false),
        OpKind::Drain(op::DrainWorker { session, deadline_ms: 0 }),
        OpKind::ClaimSpeculatively(op::ClaimSpeculatively {
            slot,
            instance: 300,
            seq: 129,
            rows_max: 200,
        }),
    ])
}

fn rendezvous() -> Command {
    let job = || JobName { namespace: "default".into(), job: "train".into() };
    let config =
        RendezvousConfig { min: 200, max: 300, join_timeout_ms: 600_000, last_call_ms: 30_000 };
    let incarnation = SessionId::at(300, 1);
    ops([
        OpKind::Join(op::Join { job: job(), participant: participant("p"), config }),
        OpKind::LoseParticipant(op::LoseParticipant { incarnation, silent_ms: None }),
        OpKind::LoseParticipant(op::LoseParticipant { incarnation, silent_ms: Some(15_000) }),
    ])
}

fn datasets_and_checkpoints() -> Command {
    let (namespace, name) = ("default".to_owned(), "pile".to_owned());
    let spec = Box::new(DatasetSpec::default());
    let retain = |keep_last, now| CheckpointOp::Retain { job: training::job(), keep_last, now };
    ops([
        OpKind::Dataset(DatasetOp::Create { namespace, name, spec }),
        OpKind::Checkpoint(retain(0, true)),
        OpKind::Checkpoint(retain(300, false)),
    ])
}
