//! One command of each kind, ordered so that each finds the objects that it names.

use super::training;
use rollout_ledger::id::{
    Attempt, CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef,
};
use rollout_ledger::{
    BarrierMembers, BarrierSpec, BlobRef, Body, Command, EngineSpec, Evidence, FailureClass,
    HeldRows, JobName, LeaderCause, MemberOp, Op, OpKind, PartDecl, ParticipantDecl, Policy, Quota,
    Registration, RendezvousConfig, RequestId, RevocationAuthor, RevocationOp, Revoked, Rows,
    RunAction, RunSpec, SegmentDecl, SettingOp, SlotOffer, StoreName, StoreOp, TokenOp, TokenRole,
    TokenSpec, TokenUse, op,
};
use std::collections::BTreeMap;

const RUN: RunNo = RunNo(1);

pub(crate) fn command(body: Body) -> Command {
    let at = LedgerMs(300);
    Command { epoch: CoordEpoch(1), at, wall_ms: 1_700_000_000_123, body }
}

pub(crate) fn op(kind: OpKind) -> Command {
    command(Body::Ops(vec![kind.into()]))
}

pub(crate) fn blob(fill: u8) -> BlobRef {
    BlobRef { digest: [fill; 32], bytes: 70_000 + u32::from(fill) }
}

fn labels() -> BTreeMap<String, String> {
    BTreeMap::from([("gpu".into(), "h200".into())])
}

pub(crate) fn spec() -> RunSpec {
    RunSpec {
        engine: EngineSpec {
            model: "hf://m".into(),
            revision: "main".into(),
            task: "generate".into(),
            options_json: "{\"dtype\":\"bf16\"}".into(),
        },
        sampling_json: "{\"seed\":1}".into(),
        selector: labels(),
        priority: 7,
        weight: 3,
        running_rows_max: 1000,
        attempt_timeout_ms: 60_000,
        failures_max: 100,
        attempts_max: 3,
        store_url: "s3://bucket".into(),
        input_name: "in.jsonl".into(),
        options_json: "{}".into(),
        tail_duplicates: true,
        canary_rows: 10,
        canary_failures_max: 2,
        run_ttl_ms: 5000,
        retention_ms: 6000,
        require: BTreeMap::from([("vllm".into(), ">=0.32".into())]),
        deadline_ms: 7_000_000,
        notify_url: "https://hooks.example/x".into(),
    }
}

pub(crate) fn registration() -> Registration {
    Registration {
        namespace: "team".into(),
        name: "w1".into(),
        instance: 77,
        address: "w1:9000".into(),
        resume: Some(SessionId::at(2, 1)),
        holder_alive: true,
        slots: vec![SlotOffer {
            models: vec!["hf://m".into(), "*".into()],
            tasks: vec!["generate".into()],
            labels: labels(),
            engine: "vllm".into(),
            ineligible: String::new(),
            versions: BTreeMap::from([("vllm".into(), "0.32.0".into())]),
        }],
        held: vec![held(9, &[(0, 2), (5, 1)])],
        stores: vec!["s3://bucket".into()],
        versions: BTreeMap::from([("agent".into(), "0.1.0".into())]),
        started: vec![held(9, &[(7, 1)])],
    }
}

fn held(index: u64, ranges: &[(u64, u32)]) -> HeldRows {
    let rows = Rows::from_ranges(ranges.iter().copied()).expect("ascending");
    HeldRows { run: RUN, attempt: Attempt::at(index, 0), rows }
}

pub(crate) fn fail(class: FailureClass, row: u64) -> OpKind {
    let (slot, held) = (slot(), held(11, &[(row, 1)]));
    let evidence = Evidence { signal: Some(9), text: Some(blob(9)), ..Evidence::default() };
    OpKind::Fail(op::Fail {
        slot,
        held,
        class,
        code: "RO-0001".into(),
        message: "why".into(),
        evidence,
    })
}

fn died(class: FailureClass, ranges: &[(u64, u32)]) -> OpKind {
    let evidence = Evidence { exit_code: Some(1), exception: "Oom".into(), ..Evidence::default() };
    let (slot, started) = (slot(), vec![held(11, ranges)]);
    let (code, message) = ("CUDA_OUT_OF_MEMORY".into(), "why".into());
    let number = 5;
    OpKind::EngineDied(op::EngineDied { slot, number, started, class, code, message, evidence })
}

fn quota() -> OpKind {
    OpKind::SetQuota(Quota {
        namespace: "team".into(),
        create: true,
        pending_rows_max: Some(70_000),
        running_rows_max: None,
        runs_max: Some(3),
    })
}

fn tokens() -> [OpKind; 3] {
    let create = |name: &str, role, holder: Option<&str>| TokenOp::Create {
        name: name.into(),
        secret_hash: [6; 32],
        spec: TokenSpec {
            role,
            holder: holder.map(str::to_owned),
            namespaces: vec!["team".into()],
            labels: if role == TokenRole::Worker { labels() } else { BTreeMap::new() },
            ttl_ms: 3_600_000,
            uses_max: 8,
        },
    };
    let used = TokenUse {
        token: "rack-7".into(),
        secret_hash: [6; 32],
        holder: "gpu-1".into(),
        key_hash: [5; 32],
    };
    [
        create("rack-7", TokenRole::Worker, None),
        create("alice", TokenRole::Client, Some("alice")),
        TokenOp::Spend(used),
    ]
    .map(OpKind::Token)
}

fn revoke_certificates() -> Command {
    let revoke = |whose, issued_before_s| {
        let reason = "the host was stolen".into();
        let by = Some(RevocationAuthor { identity: "admin/ann".into(), not_before_s: 7 });
        OpKind::Revocation(RevocationOp::Revoke { whose, issued_before_s, reason, by }).into()
    };
    command(Body::Ops(vec![
        revoke(Revoked::Everyone, Some(1_764_200_000)),
        revoke(Revoked::Identity("worker/gpu-1".into()), None),
    ]))
}

/// A leader's reports of members, so that the ledger has one in each state.
pub(crate) fn members() -> Command {
    let started = |id, name: &str| MemberOp::Started { id, name: name.into(), started_ms: 900 };
    let started_ms = 900;
    let ops = [
        MemberOp::Leads { name: "c1".into(), cause: LeaderCause::ElectionTimeout },
        started(1, "c1"),
        started(2, "c2"),
        started(3, "c3"),
        started(4, "c4"),
        MemberOp::Stopped { id: 2, started_ms },
        MemberOp::Unreachable { id: 1, started_ms },
        MemberOp::Reachable { id: 1, started_ms },
        MemberOp::Unreachable { id: 3, started_ms },
        MemberOp::Removed { id: 4 },
    ];
    command(Body::Ops(ops.map(|op| OpKind::Member(op).into()).to_vec()))
}

fn cordon(slot_no: Option<u16>) -> OpKind {
    let (session, slot) = (slot().session, slot_no.map(SlotNo));
    OpKind::Cordon(op::Cordon { session, slot, cordoned: true, reason: "a fan is broken".into() })
}

/// `registration` is entry 9.
fn slot() -> SlotRef {
    SlotRef { session: SessionId::at(9, 0), slot: SlotNo(0) }
}

/// Every command, in the order in which they are applied, from index 1 on.
pub(crate) fn all() -> Vec<(&'static str, Command)> {
    let mut all = of_runs_and_stores();
    all.extend(training::all(all.len() as u64 + 1));
    all.push(("set_quota", command(Body::Ops(vec![quota().into()]))));
    let settle_webhook =
        OpKind::SettleWebhook(op::SettleWebhook { run: RUN, index: 300, delivered: true });
    all.push(("noticed", command(Body::Ops(vec![settle_webhook.into()]))));
    all.push(("token", command(Body::Ops(tokens().map(Op::from).to_vec()))));
    let revoke = OpKind::Token(TokenOp::Revoke { name: "alice".into() });
    all.push(("revoke_token", op(revoke)));
    all.push(("suspect_unheard", suspect_with_unreported_starts(all.len() as u64 + 1)));
    all.push(("revoke_certificates", revoke_certificates()));
    let whose = Revoked::Identity("worker/gpu-1".into());
    all.push((
        "withdraw_revocation",
        op(OpKind::Revocation(RevocationOp::Withdraw { whose, by: None })),
    ));
    all.push(("members", members()));
    all
}

/// Of version 3.
pub(crate) fn round_store() -> Command {
    op(OpKind::RoundStore(op::UseRoundStore {
        store: store(2),
        incarnation: SessionId(7),
        ops: Vec::new(),
    }))
}

/// Of version 3.
pub(crate) fn setting() -> Command {
    op(OpKind::Setting(SettingOp::CordonAfter(5)))
}

/// A worker that may have started more rows than it reported, of its own run; as entry `index`.
fn suspect_with_unreported_starts(index: u64) -> Command {
    let (run, session) = (RunNo(2), SessionId::at(index, 2));
    let slot = SlotRef { session, slot: SlotNo(0) };
    let create = OpKind::CreateRun(op::CreateRun {
        namespace: "team".into(),
        name: "late".into(),
        spec: Box::new(RunSpec { priority: 9, ..spec() }),
        folder: "late/0123456789abcdef-0000000000000002".into(),
    });
    let segments = vec![SegmentDecl { number: SegmentNo(0), rows: 4, blob: blob(4) }];
    let (name, instance, resume, held) = ("w2".into(), 78, None, Vec::new());
    let worker = Registration { name, instance, resume, held, ..registration() };
    let of = |first| HeldRows { run, attempt: Attempt::at(index, 0), rows: Rows::range(first, 2) };
    command(Body::Ops(vec![
        create.into(),
        OpKind::AddSegments(op::AddSegments { run, segments }).into(),
        OpKind::Register(Box::new(worker)).into(),
        OpKind::Claim(op::Claim { slot, instance, seq: 1, rows_max: 4 }).into(),
        OpKind::SuspectWithUnreportedStarts(op::SuspectWithUnreportedStarts {
            session,
            started: vec![of(0)],
            unreported_starts: vec![of(2)],
            grace_ms: 60_000,
        })
        .into(),
    ]))
}

fn of_runs_and_stores() -> Vec<(&'static str, Command)> {
    let session = slot().session;
    let request = RequestId { session: SessionId::at(4, 0), seq: 2, ack_upto: 1 };
    let namespace =
        OpKind::SetNamespace(op::SetNamespace { name: "team".into(), running_rows_max: 5000 });
    let create = OpKind::CreateRun(op::CreateRun {
        namespace: "team".into(),
        name: "chat".into(),
        spec: Box::new(spec()),
        folder: "chat/0123456789abcdef-0000000000000001".into(),
    });
    let decl = |number: u32, rows| SegmentDecl {
        number: SegmentNo(number),
        rows,
        blob: blob(number as u8),
    };
    let segments =
        OpKind::AddSegments(op::AddSegments { run: RUN, segments: vec![decl(0, 8), decl(1, 300)] });
    let digest = *blake3::hash(&[[0; 32], [1; 32]].concat()).as_bytes();
    let part = PartDecl { blob: blob(200), tokens_in: 1234, tokens_out: 56_789 };
    let sets = vec![held(11, &[(0, 2), (7, 2)])];
    let control =
        |action| OpKind::ControlRun(op::ControlRun { run: RUN, action, reason: "because".into() });
    let started = vec![held(11, &[(10, 3)])];
    vec![
        ("open_epoch", command(Body::OpenEpoch)),
        ("tick", command(Body::Tick)),
        ("digest_at", command(Body::DigestAt)),
        (
            "open_client",
            op(OpKind::OpenClient(op::OpenClient {
                name: "cli".into(),
                holder: "client/alice".into(),
            })),
        ),
        ("set_namespace", op(namespace)),
        (
            "create_run_by_request",
            command(Body::Ops(vec![Op { request: Some(request), kind: create }])),
        ),
        ("add_segments", op(segments)),
        ("close_input", op(OpKind::CloseInput(op::CloseInput { run: RUN, rows: 308, digest }))),
        ("register", op(OpKind::Register(Box::new(registration())))),
        ("set_version", command(Body::SetVersion(2))),
        (
            "claim",
            op(OpKind::Claim(op::Claim { slot: slot(), instance: 77, seq: 1, rows_max: 256 })),
        ),
        ("complete", op(OpKind::Complete(op::Complete { slot: slot(), run: RUN, part, sets }))),
        (
            "fail",
            command(Body::Ops(vec![
                fail(FailureClass::InvalidRow, 2).into(),
                fail(FailureClass::Transient, 3).into(),
                fail(FailureClass::OutOfMemory, 4).into(),
                fail(FailureClass::EngineDied, 5).into(),
                fail(FailureClass::InputUnreadable, 6).into(),
                fail(FailureClass::StoreRefused, 9).into(),
            ])),
        ),
        (
            "engine_died",
            command(Body::Ops(vec![
                died(FailureClass::EngineDied, &[(30, 4)]).into(),
                died(FailureClass::OutOfMemory, &[(40, 3), (50, 1)]).into(),
                died(FailureClass::EngineDied, &[(60, 1)]).into(),
            ])),
        ),
        ("cordon", command(Body::Ops(vec![cordon(None).into(), cordon(Some(0)).into()]))),
        (
            "retry_rows",
            command(Body::Ops(vec![
                OpKind::RetryRows(op::RetryRows { run: RUN, rows: Some(Rows::range(2, 1)) }).into(),
                OpKind::RetryRows(op::RetryRows { run: RUN, rows: None }).into(),
            ])),
        ),
        ("nack", op(OpKind::Nack(op::Nack { slot: slot(), held: vec![held(11, &[(20, 5)])] }))),
        (
            "steal",
            op(OpKind::Steal(op::Steal {
                victim: slot(),
                held: vec![held(11, &[(25, 2)])],
                idle_slot: slot(),
                instance: 77,
                seq: 2,
            })),
        ),
        (
            "control_run",
            command(Body::Ops(vec![
                control(RunAction::Pause).into(),
                control(RunAction::Resume).into(),
            ])),
        ),
        (
            "carry",
            op(OpKind::ReuseResults(op::ReuseResults {
                run: RUN,
                segment: SegmentNo(1),
                segment_digest: [1; 32],
                part: PartDecl { blob: blob(201), tokens_in: 0, tokens_out: 0 },
                rows: Rows::from_ranges([(300, 3), (305, 1)]).expect("ascending"),
            })),
        ),
        ("suspect", op(OpKind::Suspect(op::Suspect { session, started, grace_ms: 60_000 }))),
        ("unsuspect", op(OpKind::Unsuspect(op::Unsuspect { session }))),
        ("drain", op(OpKind::Drain(op::DrainWorker { session, deadline_ms: 60_000 }))),
        (
            "suspect_what_drains",
            op(OpKind::Suspect(op::Suspect {
                session,
                started: vec![held(11, &[(10, 1)])],
                grace_ms: 60_000,
            })),
        ),
        (
            "deregister_nobody",
            op(OpKind::Deregister(op::Deregister { session: SessionId::at(1, 0) })),
        ),
        (
            "cancel_nothing",
            op(OpKind::ControlRun(op::ControlRun {
                run: RunNo(9),
                action: RunAction::Cancel,
                reason: String::new(),
            })),
        ),
        (
            "seal_delete_and_forget_nothing",
            command(Body::Ops(vec![
                OpKind::Seal(op::Seal { run: RunNo(9), manifest: blob(3), ended_index: 7 }).into(),
                OpKind::Swept(op::Swept { run: RunNo(9) }).into(),
                OpKind::DeleteRun(op::DeleteRun { run: RunNo(9) }).into(),
                OpKind::ForgetRun(op::ForgetRun { run: RunNo(9) }).into(),
            ])),
        ),
        (
            "store",
            op(OpKind::Store(op::UseStore {
                store: store(1),
                ops: vec![
                    StoreOp::Set { pairs: vec![(b"a".to_vec(), b"1".to_vec())] },
                    StoreOp::Add { key: b"n".to_vec(), delta: -5 },
                    StoreOp::CompareSet {
                        key: b"a".to_vec(),
                        expected: b"1".to_vec(),
                        desired: b"2".to_vec(),
                    },
                    StoreOp::Append { key: b"a".to_vec(), value: b"3".to_vec() },
                    StoreOp::Delete { key: b"b".to_vec() },
                    StoreOp::Push { queue: b"q".to_vec(), value: b"x".to_vec() },
                    StoreOp::Push { queue: b"q".to_vec(), value: b"y".to_vec() },
                    StoreOp::Pop { queue: b"q".to_vec() },
                ],
            })),
        ),
        ("use_store", op(OpKind::Store(op::UseStore { store: store(2), ops: Vec::new() }))),
        ("drop_store", op(OpKind::DropStore(op::DropStore { store: store(2) }))),
        ("join", command(Body::Ops(vec![join("n0").into(), join("n1").into()]))),
        (
            "participate",
            op(OpKind::Participate(op::Participate { job: job(), participant: participant("p") })),
        ),
        (
            "arrive",
            command(Body::Ops(vec![
                arrive(BarrierMembers::Round, Policy::Fail, "n0").into(),
                arrive(BarrierMembers::Members(vec!["p".into(), "q".into()]), Policy::Shrink, "p")
                    .into(),
                arrive(BarrierMembers::Count(2), Policy::Fail, "p").into(),
            ])),
        ),
        (
            "lose_and_leave",
            command(Body::Ops(vec![
                OpKind::LoseParticipant(op::LoseParticipant {
                    incarnation: SessionId::at(31, 1),
                    silent_ms: Some(15_000),
                })
                .into(),
                OpKind::LoseParticipant(op::LoseParticipant {
                    incarnation: SessionId::at(1, 0),
                    silent_ms: None,
                })
                .into(),
                OpKind::Leave(op::Leave { incarnation: SessionId::at(1, 0) }).into(),
            ])),
        ),
        (
            "abort_barrier",
            op(OpKind::AbortBarrier(op::AbortBarrier {
                job: job(),
                barrier: "count".into(),
                generation: 0,
                reason: "why".into(),
            })),
        ),
        ("close_rendezvous", op(OpKind::CloseRendezvous(op::CloseRendezvous { job: job() }))),
    ]
}

fn job() -> JobName {
    JobName { namespace: "default".into(), job: "train".into() }
}

pub(crate) fn participant(name: &str) -> Box<ParticipantDecl> {
    Box::new(ParticipantDecl {
        name: name.into(),
        host: "h1".into(),
        addr: "h1:29400".into(),
        local_world_size: 8,
        keep_alive_ms: 15_000,
    })
}

fn join(name: &str) -> OpKind {
    let config =
        RendezvousConfig { min: 1, max: 2, join_timeout_ms: 600_000, last_call_ms: 30_000 };
    OpKind::Join(op::Join { job: job(), participant: participant(name), config })
}

pub(crate) fn arrive(members: BarrierMembers, policy: Policy, name: &str) -> OpKind {
    let barrier = match members {
        BarrierMembers::Round => "round",
        BarrierMembers::Members(_) => "members",
        BarrierMembers::Count(_) => "count",
    };
    OpKind::Arrive(op::Arrive {
        job: job(),
        barrier: barrier.into(),
        generation: 3,
        incarnation: None,
        participant: participant(name),
        spec: BarrierSpec { members, policy, timeout_ms: 300_000 },
    })
}

fn store(round: u64) -> StoreName {
    StoreName { namespace: "default".into(), job: "train".into(), round }
}
