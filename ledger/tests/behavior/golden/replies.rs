//! One reply of each kind, with one refusal of each kind in it.
//!
//! *Invariant:* each kind has an example. When the ledger gains a kind, this file does not compile until the kind has
//! an example, and an example under the name of another kind fails the test. No part of an example is empty: each
//! field, each element of a list and each option is in the bytes.

use super::commands::blob;
use super::{hex, lock};
use rollout_ledger::id::{Attempt, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    GrantedRows, HeldRows, JobRefusal, OpenAiRefusal, RefusedRows, Rejection, Reply, Rows,
    SegmentRef, StoreAnswer, Superseded,
};
use std::fmt::Debug;

/// Defines a function that returns the examples of a type by the names of their kinds.
macro_rules! examples {
    ($all:ident, $kind:ident, { $($variant:ident: $example:expr,)* }) => {
        fn $all() -> Vec<(&'static str, $kind)> {
            fn name(value: &$kind) -> &'static str {
                match value {
                    $($kind::$variant { .. } => stringify!($variant),)*
                }
            }
            checked(vec![$((stringify!($variant), $example)),*], name)
        }
    };
}

/// Each example has the kind of its name.
fn checked<T: Debug>(
    examples: Vec<(&'static str, T)>,
    name: fn(&T) -> &'static str,
) -> Vec<(&'static str, T)> {
    for (kind, example) in &examples {
        assert_eq!(*kind, name(example), "{example:?}");
    }
    examples
}

fn slot() -> SlotRef {
    SlotRef { session: SessionId::at(300, 2), slot: SlotNo(7) }
}

fn held(index: u64) -> HeldRows {
    let rows = Rows::from_ranges([(0, 200), (70_000, 1)]).expect("ascending");
    HeldRows { run: RunNo(300), attempt: Attempt::at(index, 3), rows }
}

fn granted(alone: bool) -> GrantedRows {
    let number = SegmentNo(129);
    let segment = SegmentRef { number, first_row: 70_000, rows: 300, blob: blob(8) };
    GrantedRows { held: held(301), segments: vec![segment], alone }
}

fn refused(why: Rejection) -> RefusedRows {
    let HeldRows { run, attempt, rows } = held(302);
    RefusedRows { run, attempt, rows, why }
}

examples!(replies, Reply, {
    Ok: Reply::Ok,
    Rejected: Reply::Rejected(Rejection::RunUnknown),
    ClientOpened: Reply::ClientOpened { session: SessionId::at(300, 1) },
    Run: Reply::Run {
        run: RunNo(300),
        created: true,
        segments: 200,
        rows: 70_000,
        input_closed: true,
        folder: "chat/0123456789abcdef-0000000000000001".into(),
    },
    Registered: Reply::Registered {
        session: SessionId::at(300, 1),
        resumed: true,
        dropped: vec![held(299), held(300)],
    },
    Granted: Reply::Granted(vec![granted(true), granted(false)]),
    Taken: Reply::Taken { refused: vec![refused(Rejection::AttemptStale)] },
    EpochOpened: Reply::EpochOpened { at: LedgerMs(70_000) },
    Stolen: Reply::Stolen {
        granted: vec![granted(false)],
        refused: vec![refused(Rejection::AlreadyDecided)],
    },
    Retried: Reply::Retried { rows: 70_000 },
    Won: Reply::Won {
        refused: vec![refused(Rejection::RunEnded)],
        superseded: vec![Superseded { slot: slot(), held: held(303) }],
    },
    Store: Reply::Store(store_answers().into_iter().map(|(_, answer)| answer).collect()),
    Participant: Reply::Participant { incarnation: SessionId::at(300, 1), keep_alive_ms: 15_000 },
    Joined: Reply::Joined { incarnation: SessionId::at(300, 1), generation: 200 },
    NeedsRecovery: Reply::NeedsRecovery { trainer: "t0".into(), host: "h1".into() },
    KeptAlive: Reply::KeptAlive { lost: vec!["t0".into(), "t1".into()] },
    Shard: Reply::Shard { number: 200, token: Attempt::at(300, 1), from: 129 },
    NoShard: Reply::NoShard { finished: true },
    ShardEnded: Reply::ShardEnded { epoch_finished: true },
    Checkpoint: Reply::Checkpoint { number: 200, rank: 129 },
    Reported: Reply::Reported { complete: true },
    Pruned: Reply::Pruned { numbers: vec![1, 200] },
    Batch: Reply::Batch { id: "batch_1".into(), created: true },
});

examples!(store_answers, StoreAnswer, {
    Done: StoreAnswer::Done,
    Number: StoreAnswer::Number(-300),
    Value: StoreAnswer::Value(Some(b"a value".to_vec())),
    Refused: StoreAnswer::Refused(Rejection::Invalid("why".into())),
});

examples!(rejections, Rejection, {
    EpochStale: Rejection::EpochStale { got: 300, open: 301 },
    ClockStep: Rejection::ClockStep { step_ms: 70_000 },
    Invalid: Rejection::Invalid("why".into()),
    Limit: Rejection::Limit { what: "runs".into(), max: 300 },
    NamespaceUnknown: Rejection::NamespaceUnknown("team".into()),
    RunUnknown: Rejection::RunUnknown,
    SpecConflict: Rejection::SpecConflict,
    SegmentConflict: Rejection::SegmentConflict { number: 200, have: 129 },
    InputClosed: Rejection::InputClosed,
    InputMismatch: Rejection::InputMismatch { rows: 70_000 },
    RunEnded: Rejection::RunEnded,
    SessionUnknown: Rejection::SessionUnknown,
    RequestForgotten: Rejection::RequestForgotten,
    WorkerNameTaken: Rejection::WorkerNameTaken { name: "w1".into(), address: "w1:9000".into() },
    WorkerNotReady: Rejection::WorkerNotReady,
    SlotUnknown: Rejection::SlotUnknown,
    PullStale: Rejection::PullStale { last: 300 },
    AttemptStale: Rejection::AttemptStale,
    AlreadyDecided: Rejection::AlreadyDecided,
    RunActive: Rejection::RunActive,
    RunDeleting: Rejection::RunDeleting,
    Job: Rejection::Job(JobRefusal::JobUnknown),
    ManifestStale: Rejection::ManifestStale,
    DeadlineExceeded: Rejection::DeadlineExceeded,
    OverQuota: Rejection::OverQuota {
        namespace: "team".into(),
        what: "runs".into(),
        used: 301,
        max: 300,
    },
    VersionLow: Rejection::VersionLow { needs: 3, version: 2 },
    TokenUnknown: Rejection::TokenUnknown("rack-7".into()),
    TokenConflict: Rejection::TokenConflict("rack-7".into()),
    TokenRefused: Rejection::TokenRefused("why".into()),
    RevocationUnknown: Rejection::RevocationUnknown("worker/gpu-1".into()),
    AuthorRevoked: Rejection::AuthorRevoked("admin/ann".into()),
    RevocationWider: Rejection::RevocationWider("worker/gpu-1".into()),
    NamespaceDenied: Rejection::NamespaceDenied("team".into()),
    ClusterDenied: Rejection::ClusterDenied,
    ApiKeyUnknown: Rejection::ApiKeyUnknown("aB3dE6gH".into()),
    ApiKeyConflict: Rejection::ApiKeyConflict("aB3dE6gH".into()),
    OpenAi: Rejection::OpenAi(OpenAiRefusal::ContentStale),
});

examples!(openai_refusals, OpenAiRefusal, {
    FileConflict: OpenAiRefusal::FileConflict("file-1".into()),
    IdempotencyKeyReused: OpenAiRefusal::IdempotencyKeyReused("file-1".into()),
    FileInUse: OpenAiRefusal::FileInUse { id: "file-1".into(), users: 300 },
    ContentStale: OpenAiRefusal::ContentStale,
    UploadUnknown: OpenAiRefusal::UploadUnknown("upload_1".into()),
    UploadEnded: OpenAiRefusal::UploadEnded { id: "upload_1".into(), state: "cancelled".into() },
    PartUnknown: OpenAiRefusal::PartUnknown("part_1".into()),
    UploadBytes: OpenAiRefusal::UploadBytes { bytes: 300, declared: 70_000 },
    StorageLimit: OpenAiRefusal::StorageLimit { key: "aB3dE6gH".into(), used: 300, max: 70_000 },
    FileUnknown: OpenAiRefusal::FileUnknown("file-1".into()),
    FilePurpose: OpenAiRefusal::FilePurpose("file-1".into()),
    BatchUnknown: OpenAiRefusal::BatchUnknown("batch_1".into()),
    BatchEnded: OpenAiRefusal::BatchEnded { status: "completed".into() },
    BatchFenceStale: OpenAiRefusal::BatchFenceStale { status: "in_progress".into() },
    BatchOtherEnd: OpenAiRefusal::BatchOtherEnd {
        status: "cancelling".into(),
        ends_as: "completed".into(),
    },
    KeyLimit: OpenAiRefusal::KeyLimit {
        key: "aB3dE6gH".into(),
        what: "waiting rows".into(),
        used: 300,
        max: 70_000,
    },
    RunOfOpenBatch: OpenAiRefusal::RunOfOpenBatch { batch: "batch_1".into() },
    RunOfBatch: OpenAiRefusal::RunOfBatch { batch: "batch_1".into() },
});

examples!(job_refusals, JobRefusal, {
    JobUnknown: JobRefusal::JobUnknown,
    JobDeleting: JobRefusal::JobDeleting,
    JobActive: JobRefusal::JobActive,
    IncarnationVoid: JobRefusal::IncarnationVoid,
    NeedsRecovery: JobRefusal::NeedsRecovery { trainer: "t0".into(), host: "h1".into() },
    RoundConflict: JobRefusal::RoundConflict { round: 300 },
    DatasetUnknown: JobRefusal::DatasetUnknown,
    ClaimStale: JobRefusal::ClaimStale,
    StepStale: JobRefusal::StepStale { step: 300, last: 301 },
    Progress: JobRefusal::Progress { shard: 200, samples: 70_000, least: 129, most: 300 },
    ProgressTwice: JobRefusal::ProgressTwice { shard: 200 },
    TrainerMissing: JobRefusal::TrainerMissing("t1".into()),
    NotOfWorld: JobRefusal::NotOfWorld,
    CheckpointUnknown: JobRefusal::CheckpointUnknown,
    CheckpointClosed: JobRefusal::CheckpointClosed,
    ReportConflict: JobRefusal::ReportConflict,
    RendezvousClosed: JobRefusal::RendezvousClosed,
    RendezvousConflict: JobRefusal::RendezvousConflict { min: 200, max: 300 },
    ParticipantUnknown: JobRefusal::ParticipantUnknown,
    NotOfRound: JobRefusal::NotOfRound { round: 300, job: "train".into() },
    BarrierUnknown: JobRefusal::BarrierUnknown,
    BarrierConflict: JobRefusal::BarrierConflict,
    NotOfBarrier: JobRefusal::NotOfBarrier { name: "p".into() },
    BarrierGeneration: JobRefusal::BarrierGeneration { latest: 300, state: "waits".into() },
    DatasetConflict: JobRefusal::DatasetConflict,
    DatasetInUse: JobRefusal::DatasetInUse,
});

/// The refusals about jobs that are stored as kinds of rejections, in the order in which these are recorded.
const STORED_AS_REJECTIONS: [&str; 10] = [
    "RendezvousClosed",
    "RendezvousConflict",
    "ParticipantUnknown",
    "BarrierUnknown",
    "BarrierConflict",
    "NotOfBarrier",
    "BarrierGeneration",
    "DatasetConflict",
    "DatasetInUse",
    "NotOfRound",
];

/// The refusals by the names under which their bytes are recorded, in that order.
fn refusals() -> Vec<(String, Rejection)> {
    let (stored, of_jobs): (Vec<_>, Vec<_>) =
        job_refusals().into_iter().partition(|(name, _)| STORED_AS_REJECTIONS.contains(name));
    let stored = |name: &str| {
        let found = stored.iter().find(|example| example.0 == name).expect("an example");
        (format!("rejection.{name}"), Rejection::from(found.1.clone()))
    };
    let (last, first) = STORED_AS_REJECTIONS.split_last().expect("ten names");
    let mut all = Vec::new();
    for (name, why) in rejections() {
        match name {
            "Job" => {
                all.extend(first.iter().map(|name| stored(name)));
                all.push(("rejection.Training".to_owned(), why));
            }
            "NamespaceDenied" => {
                all.push(stored(last));
                all.push((format!("rejection.{name}"), why));
            }
            _ => all.push((format!("rejection.{name}"), why)),
        }
    }
    let of_jobs = of_jobs.into_iter();
    all.extend(of_jobs.map(|(name, why)| (format!("training.{}", recorded(name)), why.into())));
    let of_openai = openai_refusals().into_iter();
    all.extend(of_openai.map(|(name, why)| (format!("openai.{name}"), why.into())));
    all
}

/// The name under which the bytes of a kind are recorded: the name that it had first.
fn recorded(kind: &'static str) -> &'static str {
    match kind {
        "IncarnationVoid" => "TicketVoid",
        "KeptAlive" => "Kept",
        "NeedsRecovery" => "Torn",
        _ => kind,
    }
}

/// Every example, as a reply.
fn all() -> Vec<(String, Reply)> {
    let named = |of: &str, name: &'static str| format!("{of}.{}", recorded(name));
    let mut all: Vec<_> = replies().into_iter().map(|(n, r)| (named("reply", n), r)).collect();
    let answers = store_answers().into_iter();
    all.extend(answers.map(|(n, answer)| (named("store_answer", n), Reply::Store(vec![answer]))));
    let nothing = Reply::Store(vec![StoreAnswer::Value(None)]);
    all.push((named("store_answer", "Value_of_nothing"), nothing));
    all.extend(refusals().into_iter().map(|(name, why)| (name, Reply::Rejected(why))));
    all
}

#[test]
fn the_bytes_of_replies_are_locked() {
    let all = all();
    let lines: Vec<String> =
        all.iter().map(|(name, reply)| format!("{name} {}", hex(&reply.encode()))).collect();
    lock("replies.txt", &lines);
    for (name, reply) in all {
        assert_eq!(Reply::decode(&reply.encode()), Some(reply), "{name}");
    }
}

/// A refusal is a sentence that people read and that logs are searched for.
#[test]
fn the_texts_of_refusals_are_locked() {
    let lines: Vec<String> = all()
        .into_iter()
        .filter_map(|(name, reply)| match reply {
            Reply::Rejected(why) => Some(format!("{name} {why}")),
            _ => None,
        })
        .collect();
    lock("refusals.txt", &lines);
}
