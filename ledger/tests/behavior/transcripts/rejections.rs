//! Which rejections the stories contain.
//!
//! *Invariant:* [`ALL`] lists every rejection of the ledger: a new one does not compile until it is listed here, and
//! the test then requires it in the stories.

use rollout_ledger::{JobRefusal, OpenAiRefusal, RefusedRows, Rejection, Reply, StoreAnswer};
use std::collections::BTreeSet;

macro_rules! refusals {
    ($($plain:ident)* ; $($job:ident)* ; $($openai:ident)*) => {
        /// Every refusal by its name.
        pub(crate) const ALL: &[&str] = &[$(stringify!($plain),)* $(stringify!($job),)* $(stringify!($openai),)*];

        fn name(why: &Rejection) -> &'static str {
            match why {
                $(Rejection::$plain { .. } => stringify!($plain),)*
                Rejection::Job(why) => match why {
                    $(JobRefusal::$job { .. } => stringify!($job),)*
                },
                Rejection::OpenAi(why) => match why {
                    $(OpenAiRefusal::$openai { .. } => stringify!($openai),)*
                },
            }
        }
    };
}

refusals! {
    EpochStale ClockStep Invalid Limit NamespaceUnknown RunUnknown SpecConflict SegmentConflict InputClosed InputMismatch
    RunEnded SessionUnknown RequestForgotten WorkerNameTaken WorkerNotReady SlotUnknown PullStale AttemptStale AlreadyDecided
    RunActive RunDeleting ManifestStale DeadlineExceeded OverQuota VersionLow TokenUnknown TokenConflict TokenRefused
    RevocationUnknown RevocationWider AuthorRevoked NamespaceDenied ClusterDenied ApiKeyUnknown ApiKeyConflict ;
    JobUnknown JobDeleting JobActive IncarnationVoid NeedsRecovery RoundConflict DatasetUnknown ClaimStale StepStale Progress ProgressTwice
    TrainerMissing NotOfWorld CheckpointUnknown CheckpointClosed ReportConflict RendezvousClosed RendezvousConflict
    ParticipantUnknown NotOfRound BarrierUnknown BarrierConflict NotOfBarrier BarrierGeneration DatasetConflict
    DatasetInUse ;
    FileConflict IdempotencyKeyReused ContentStale UploadUnknown UploadEnded PartUnknown UploadBytes StorageLimit
    FileInUse FileUnknown FilePurpose BatchUnknown BatchEnded BatchFenceStale BatchOtherEnd KeyLimit RunOfOpenBatch
    RunOfBatch
}

/// The refusals in a reply, by their names.
pub(crate) fn of(reply: &Reply) -> BTreeSet<&'static str> {
    let rows = |refused: &[RefusedRows]| refused.iter().map(|r| name(&r.why)).collect();
    match reply {
        Reply::Rejected(why) => [name(why)].into(),
        Reply::Taken { refused } | Reply::Won { refused, .. } | Reply::Stolen { refused, .. } => {
            rows(refused)
        }
        Reply::Store(answers) => {
            let refused = |answer: &StoreAnswer| match answer {
                StoreAnswer::Refused(why) => Some(name(why)),
                _ => None,
            };
            answers.iter().filter_map(refused).collect()
        }
        _ => BTreeSet::new(),
    }
}
