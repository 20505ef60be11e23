//! Converts the ledger's rejections and consensus' errors to the errors that clients see.
//!
//! *Invariant:* an error reports its true outcome: a rejection was not applied, the outcome of a proposal that lost its
//! leader is unknown, and a request that failed before the log was not applied.

use rollout_ledger::{JobRefusal, OpenAiRefusal, Rejection};
use rollout_proto::{ErrorCode, Outcome, RpcError};
use rollout_raft::{ClusterError, MemberRecord, ProposeError};

pub(crate) fn code_of(rejection: &Rejection) -> ErrorCode {
    match rejection {
        Rejection::EpochStale { .. } => ErrorCode::StaleEpoch,
        Rejection::ClockStep { .. } => ErrorCode::Overloaded,
        Rejection::Invalid(_) | Rejection::SlotUnknown | Rejection::PullStale { .. } => {
            ErrorCode::InvalidArgument
        }
        Rejection::Limit { .. } => ErrorCode::LimitExceeded,
        Rejection::NamespaceUnknown(_) => ErrorCode::NamespaceUnknown,
        Rejection::RunUnknown => ErrorCode::RunNotFound,
        Rejection::SpecConflict => ErrorCode::RunSpecConflict,
        Rejection::SegmentConflict { .. } => ErrorCode::SegmentConflict,
        Rejection::InputClosed => ErrorCode::InputClosed,
        Rejection::InputMismatch { .. } => ErrorCode::InputMismatch,
        Rejection::RunEnded => ErrorCode::RunEnded,
        Rejection::RunActive | Rejection::ManifestStale => ErrorCode::RunActive,
        Rejection::RunDeleting => ErrorCode::RunDeleting,
        Rejection::SessionUnknown => ErrorCode::SessionUnknown,
        Rejection::RequestForgotten => ErrorCode::RequestForgotten,
        Rejection::WorkerNameTaken { .. } => ErrorCode::WorkerNameTaken,
        Rejection::WorkerNotReady => ErrorCode::WorkerNotEligible,
        Rejection::AttemptStale | Rejection::AlreadyDecided => ErrorCode::AttemptStale,
        Rejection::Job(why) => code_of_job(why),
        Rejection::DeadlineExceeded => ErrorCode::DeadlineExceeded,
        Rejection::OverQuota { .. } => ErrorCode::OverQuota,
        Rejection::VersionLow { .. } => ErrorCode::VersionRefused,
        Rejection::TokenUnknown(_) => ErrorCode::TokenNotFound,
        Rejection::TokenConflict(_) => ErrorCode::TokenConflict,
        Rejection::TokenRefused(_) => ErrorCode::TokenRefused,
        Rejection::ApiKeyUnknown(_) => ErrorCode::ApiKeyNotFound,
        Rejection::ApiKeyConflict(_) => ErrorCode::ApiKeyConflict,
        Rejection::RevocationUnknown(_) => ErrorCode::RevocationNotFound,
        Rejection::AuthorRevoked(_) => ErrorCode::CertificateRevoked,
        Rejection::RevocationWider(_) => ErrorCode::RevocationConflict,
        Rejection::OpenAi(why) => code_of_openai(why),
        Rejection::NamespaceDenied(_) | Rejection::ClusterDenied => ErrorCode::PermissionDenied,
    }
}

/// Members that serve the HTTP API have errors of its own for these (`openai/error.rs`).
fn code_of_openai(refusal: &OpenAiRefusal) -> ErrorCode {
    match refusal {
        OpenAiRefusal::PartUnknown(_)
        | OpenAiRefusal::UploadUnknown(_)
        | OpenAiRefusal::UploadBytes { .. }
        | OpenAiRefusal::IdempotencyKeyReused(_)
        | OpenAiRefusal::ContentStale
        | OpenAiRefusal::FileConflict(_)
        | OpenAiRefusal::FileInUse { .. }
        | OpenAiRefusal::UploadEnded { .. } => ErrorCode::InvalidArgument,
        OpenAiRefusal::StorageLimit { .. } | OpenAiRefusal::KeyLimit { .. } => ErrorCode::OverQuota,
        OpenAiRefusal::FileUnknown(_)
        | OpenAiRefusal::FilePurpose(_)
        | OpenAiRefusal::BatchUnknown(_)
        | OpenAiRefusal::BatchFenceStale { .. }
        | OpenAiRefusal::BatchOtherEnd { .. } => ErrorCode::InvalidArgument,
        OpenAiRefusal::BatchEnded { .. } | OpenAiRefusal::RunOfBatch { .. } => ErrorCode::RunEnded,
        OpenAiRefusal::RunOfOpenBatch { .. } => ErrorCode::RunActive,
    }
}

fn code_of_job(refusal: &JobRefusal) -> ErrorCode {
    match refusal {
        JobRefusal::RendezvousClosed => ErrorCode::RendezvousClosed,
        JobRefusal::RendezvousConflict { .. } => ErrorCode::RendezvousConflict,
        JobRefusal::ParticipantUnknown => ErrorCode::ParticipantGone,
        JobRefusal::NotOfRound { .. } => ErrorCode::NotRoundMember,
        JobRefusal::BarrierUnknown => ErrorCode::BarrierNotFound,
        JobRefusal::BarrierConflict
        | JobRefusal::NotOfBarrier { .. }
        | JobRefusal::BarrierGeneration { .. } => ErrorCode::BarrierConflict,
        JobRefusal::JobUnknown => ErrorCode::TrainingJobNotFound,
        JobRefusal::JobDeleting | JobRefusal::JobActive | JobRefusal::RoundConflict { .. } => {
            ErrorCode::TrainingJobConflict
        }
        JobRefusal::IncarnationVoid => ErrorCode::IncarnationVoid,
        JobRefusal::NeedsRecovery { .. } => ErrorCode::NeedsRecovery,
        JobRefusal::DatasetUnknown => ErrorCode::DatasetNotFound,
        JobRefusal::DatasetConflict | JobRefusal::DatasetInUse => ErrorCode::DatasetConflict,
        JobRefusal::ClaimStale
        | JobRefusal::StepStale { .. }
        | JobRefusal::Progress { .. }
        | JobRefusal::ProgressTwice { .. } => ErrorCode::ShardConflict,
        JobRefusal::CheckpointUnknown => ErrorCode::CheckpointNotFound,
        JobRefusal::TrainerMissing(_) | JobRefusal::NotOfWorld | JobRefusal::ReportConflict => {
            ErrorCode::CheckpointConflict
        }
        JobRefusal::CheckpointClosed => ErrorCode::CheckpointClosed,
    }
}

pub(crate) fn rejected(rejection: &Rejection) -> RpcError {
    let outcome = match rejection {
        // The outcome of the first try is unknown.
        Rejection::RequestForgotten => Outcome::Unknown,
        _ => Outcome::NotApplied,
    };
    RpcError::new(code_of(rejection), rejection.to_string()).with_outcome(outcome)
}

pub(crate) fn not_leader(leader: Option<&MemberRecord>) -> RpcError {
    match leader {
        Some(l) => RpcError::new(ErrorCode::NotLeader, format!("{} leads", l.name))
            .with_leader(l.name.clone(), l.client_addr.clone()),
        None => RpcError::new(ErrorCode::NoLeader, "no leader is known"),
    }
    .with_outcome(Outcome::NotApplied)
}

pub(crate) fn proposal(error: &ProposeError) -> RpcError {
    match error {
        ProposeError::NotLeader { leader } => not_leader(leader.as_ref()),
        ProposeError::Unknown => RpcError::new(ErrorCode::OutcomeUnknown, error.to_string())
            .with_outcome(Outcome::Unknown),
        ProposeError::Stopped => {
            RpcError::new(ErrorCode::NoLeader, error.to_string()).with_outcome(Outcome::NotApplied)
        }
        ProposeError::Overloaded { .. } => RpcError::new(ErrorCode::Overloaded, error.to_string())
            .with_outcome(Outcome::NotApplied),
        ProposeError::TooLarge { .. } => RpcError::new(ErrorCode::LimitExceeded, error.to_string())
            .with_outcome(Outcome::NotApplied),
    }
}

/// The error of a leader that no quorum has confirmed for too long.
pub(crate) fn quorum_lost(outcome: Outcome) -> RpcError {
    let text = match outcome {
        Outcome::Unknown => {
            "a majority no longer confirms this leader: the request may still take effect"
        }
        _ => "a majority no longer confirms this leader",
    };
    RpcError::new(ErrorCode::NoQuorum, text).with_outcome(outcome)
}

/// Why a cluster was not formed.
pub(crate) fn forming(error: &ClusterError) -> RpcError {
    match error {
        ClusterError::Refused(why) => RpcError::new(ErrorCode::AlreadyBootstrapped, why.clone()),
        other => membership(other),
    }
}

/// Why the members were not changed.
pub(crate) fn membership(error: &ClusterError) -> RpcError {
    let (code, outcome) = match error {
        ClusterError::BadMembers(_) => (ErrorCode::InvalidArgument, Outcome::NotApplied),
        ClusterError::Unreachable { .. } => (ErrorCode::ConnectFailed, Outcome::NotApplied),
        ClusterError::Refused(_) => (ErrorCode::MemberConflict, Outcome::NotApplied),
        ClusterError::NoMember(_) => (ErrorCode::MemberNotFound, Outcome::NotApplied),
        ClusterError::Unsafe(_) => (ErrorCode::ChangeUnsafe, Outcome::NotApplied),
        ClusterError::NotLeader(e) => return not_leader(e.leader.as_ref()),
        _ => (ErrorCode::OutcomeUnknown, Outcome::Unknown),
    };
    RpcError::new(code, error.to_string()).with_outcome(outcome)
}
