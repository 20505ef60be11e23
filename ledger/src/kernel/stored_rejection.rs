//! The stored form of a [`Rejection`].
//!
//! *Invariant:* replies are stored and digested, so the order of variants and fields here never changes. A new variant
//! is added at the end, and under its name in the list below. The refusals of participants are variants of their own,
//! because they were stored before [`JobRefusal`] had them. A new refusal about a job goes to [`JobRefusal`] only.

use crate::kernel::job_refusal::JobRefusal;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::Rejection;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub(super) enum StoredRejection {
    EpochStale {
        got: u64,
        open: u64,
    },
    ClockStep {
        step_ms: u64,
    },
    Invalid(String),
    Limit {
        what: String,
        max: u64,
    },
    NamespaceUnknown(String),
    RunUnknown,
    SpecConflict,
    SegmentConflict {
        number: u32,
        have: u32,
    },
    InputClosed,
    InputMismatch {
        rows: u64,
    },
    RunEnded,
    SessionUnknown,
    RequestForgotten,
    WorkerNameTaken {
        name: String,
        address: String,
    },
    WorkerNotReady,
    SlotUnknown,
    PullStale {
        last: u64,
    },
    AttemptStale,
    AlreadyDecided,
    RunActive,
    RunDeleting,
    RendezvousClosed,
    RendezvousConflict {
        min: u32,
        max: u32,
    },
    ParticipantUnknown,
    BarrierUnknown,
    BarrierConflict,
    NotOfBarrier {
        name: String,
    },
    BarrierGeneration {
        latest: u64,
        state: String,
    },
    DatasetConflict,
    DatasetInUse,
    /// Every refusal about a job that has no variant of its own here.
    Training(JobRefusal),
    ManifestStale,
    DeadlineExceeded,
    OverQuota {
        namespace: String,
        what: String,
        used: u64,
        max: u64,
    },
    VersionLow {
        needs: u32,
        version: u32,
    },
    TokenUnknown(String),
    TokenConflict(String),
    TokenRefused(String),
    RevocationUnknown(String),
    AuthorRevoked(String),
    RevocationWider(String),
    NotOfRound {
        round: u64,
        job: String,
    },
    NamespaceDenied(String),
    ClusterDenied,
    ApiKeyUnknown(String),
    ApiKeyConflict(String),
    OpenAi(OpenAiRefusal),
}

/// Defines both conversions. `same`: variants that both types have. `of_jobs`: those of [`JobRefusal`] that are stored
/// as variants of their own.
macro_rules! conversions {
    (
        same: { $($same:ident $(($inner:ident))? $({ $($field:ident),* })?,)* }
        of_jobs: { $($job:ident $({ $($part:ident),* })?,)* }
    ) => {
        impl From<Rejection> for StoredRejection {
            fn from(why: Rejection) -> Self {
                match why {
                    $(Rejection::$same $(($inner))? $({ $($field),* })? => {
                        Self::$same $(($inner))? $({ $($field),* })?
                    })*
                    $(Rejection::Job(JobRefusal::$job $({ $($part),* })?) => {
                        Self::$job $({ $($part),* })?
                    })*
                    Rejection::Job(other) => Self::Training(other),
                }
            }
        }

        impl From<StoredRejection> for Rejection {
            fn from(stored: StoredRejection) -> Self {
                match stored {
                    $(StoredRejection::$same $(($inner))? $({ $($field),* })? => {
                        Self::$same $(($inner))? $({ $($field),* })?
                    })*
                    $(StoredRejection::$job $({ $($part),* })? => {
                        Self::Job(JobRefusal::$job $({ $($part),* })?)
                    })*
                    StoredRejection::Training(other) => Self::Job(other),
                }
            }
        }
    };
}

conversions! {
    same: {
        EpochStale { got, open },
        ClockStep { step_ms },
        Invalid(text),
        Limit { what, max },
        NamespaceUnknown(namespace),
        RunUnknown,
        SpecConflict,
        SegmentConflict { number, have },
        InputClosed,
        InputMismatch { rows },
        RunEnded,
        SessionUnknown,
        RequestForgotten,
        WorkerNameTaken { name, address },
        WorkerNotReady,
        SlotUnknown,
        PullStale { last },
        AttemptStale,
        AlreadyDecided,
        RunActive,
        RunDeleting,
        ManifestStale,
        DeadlineExceeded,
        OverQuota { namespace, what, used, max },
        VersionLow { needs, version },
        TokenUnknown(name),
        TokenConflict(name),
        TokenRefused(text),
        RevocationUnknown(subject),
        AuthorRevoked(author),
        RevocationWider(subject),
        NamespaceDenied(namespace),
        ClusterDenied,
        ApiKeyUnknown(id),
        ApiKeyConflict(id),
        OpenAi(refusal),
    }
    of_jobs: {
        RendezvousClosed,
        RendezvousConflict { min, max },
        ParticipantUnknown,
        BarrierUnknown,
        BarrierConflict,
        NotOfBarrier { name },
        BarrierGeneration { latest, state },
        DatasetConflict,
        DatasetInUse,
        NotOfRound { round, job },
    }
}
