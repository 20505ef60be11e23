//! The errors of refused calls: one table of codes, and the error that carries them over the wire.
//!
//! *Invariant:* a code keeps its number and its meaning forever; a retired code is never reused. Every code has its
//! page in `docs/errors`.
//!
//! Absent: how a client reacts to an error (`client`), and errors of a connection that carried no answer
//! (`connect_error`).

use std::fmt;
use std::str::FromStr;

use prost::Message;
use tonic::{Code, Status};

use crate::connect_error::ConnectError;
use crate::v1;

/// Whether a request that ended in an error changed anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It changed nothing, now or later.
    NotApplied,
    /// It took effect.
    Applied,
    /// It may have taken effect, or may still. Repeat it with the same request id.
    Unknown,
}

impl Outcome {
    fn to_wire(self) -> v1::Outcome {
        match self {
            Outcome::NotApplied => v1::Outcome::NotApplied,
            Outcome::Applied => v1::Outcome::Applied,
            Outcome::Unknown => v1::Outcome::Unknown,
        }
    }

    fn from_wire(wire: v1::Outcome) -> Self {
        match wire {
            v1::Outcome::NotApplied => Outcome::NotApplied,
            v1::Outcome::Applied => Outcome::Applied,
            v1::Outcome::Unknown | v1::Outcome::Unspecified => Outcome::Unknown,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Outcome::NotApplied => "not applied",
            Outcome::Applied => "applied",
            Outcome::Unknown => "outcome unknown",
        })
    }
}

macro_rules! codes {
    ($($name:ident, $code:literal, $retry:literal, $outcome:ident, $grpc:ident, $exit:literal, $summary:literal;)*) => {
        /// Why a call failed. The table below has the consequences of each code.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ErrorCode {
            $(#[doc = concat!($code, ": ", $summary, ".")] $name,)*
        }

        impl ErrorCode {
            /// Every code, in the order of their numbers.
            pub const ALL: &'static [ErrorCode] = &[$(ErrorCode::$name),*];

            /// The stable name on the wire, `RO-nnnn`.
            pub const fn code(self) -> &'static str {
                match self { $(ErrorCode::$name => $code),* }
            }

            /// What happened, in a few words, lower case.
            pub const fn summary(self) -> &'static str {
                match self { $(ErrorCode::$name => $summary),* }
            }

            /// Whether a repeat of the same request may succeed without any change.
            pub const fn retryable(self) -> bool {
                match self { $(ErrorCode::$name => $retry),* }
            }

            /// The outcome of the request, unless an error says otherwise.
            pub const fn default_outcome(self) -> Outcome {
                match self { $(ErrorCode::$name => Outcome::$outcome),* }
            }

            /// The gRPC status code that it travels under.
            pub const fn grpc(self) -> Code {
                match self { $(ErrorCode::$name => Code::$grpc),* }
            }

            /// The exit status of a command that ends with this code: 1 failed, 3 unavailable, 4 not found, 5
            /// conflict, 6 refused as unsafe, 7 identity or permission, 8 outcome unknown, 9 no longer kept.
            pub const fn exit_code(self) -> u8 {
                match self { $(ErrorCode::$name => $exit),* }
            }
        }
    };
}

codes! {
    // name, code, retryable, outcome, gRPC code, exit status, summary
    NotLeader, "RO-1001", true, NotApplied, Unavailable, 3, "this member does not lead";
    NoQuorum, "RO-1002", true, Unknown, Unavailable, 3, "this member cannot reach a majority";
    NoLeader, "RO-1003", true, NotApplied, Unavailable, 3, "the cluster has no leader now";
    StaleEpoch, "RO-1004", true, NotApplied, FailedPrecondition, 3, "the sender's coord_epoch is out of date";
    OtherCluster, "RO-1005", false, NotApplied, FailedPrecondition, 5, "the member belongs to another cluster";
    NotBootstrapped, "RO-1006", true, NotApplied, FailedPrecondition, 3, "the member is part of no cluster yet";
    AlreadyBootstrapped, "RO-1007", false, NotApplied, AlreadyExists, 5, "the member is part of a cluster already";
    OutcomeUnknown, "RO-1008", true, Unknown, Unavailable, 8, "the request may or may not have taken effect";
    Fenced, "RO-1009", true, NotApplied, Unavailable, 3, "a newer leader took over";
    EpochUnknown, "RO-1010", false, NotApplied, FailedPrecondition, 5, "no leader of this cluster has opened the sender's coord_epoch";
    MemberNotFound, "RO-1011", false, NotApplied, NotFound, 4, "the cluster has no such member";
    MemberConflict, "RO-1012", false, NotApplied, FailedPrecondition, 5, "the member differs from the request";
    ChangeUnsafe, "RO-1013", false, NotApplied, FailedPrecondition, 6, "the change would cost the cluster its majority";
    ClusterRestored, "RO-1014", false, NotApplied, FailedPrecondition, 5, "the cluster was restored; sessions of the old cluster are void";
    Unconfirmed, "RO-1015", false, NotApplied, FailedPrecondition, 6, "the command may lose acknowledged work and was not confirmed";
    VersionRefused, "RO-1016", false, NotApplied, FailedPrecondition, 5, "the cluster's version does not allow this";
    RunNotFound, "RO-2001", false, NotApplied, NotFound, 4, "there is no such run";
    RunSpecConflict, "RO-2002", false, NotApplied, AlreadyExists, 5, "a run of this name has another spec";
    SegmentConflict, "RO-2003", false, NotApplied, FailedPrecondition, 5, "the segment differs from what the run has";
    InputClosed, "RO-2004", false, NotApplied, FailedPrecondition, 5, "the run's input is closed";
    InputMismatch, "RO-2005", false, NotApplied, FailedPrecondition, 5, "the input's rows or digest do not match";
    RunEnded, "RO-2006", false, NotApplied, FailedPrecondition, 5, "the run has ended";
    RunPaused, "RO-2007", false, NotApplied, FailedPrecondition, 5, "the run is paused";
    NamespaceUnknown, "RO-2008", false, NotApplied, NotFound, 4, "there is no such namespace";
    AttemptStale, "RO-2009", false, NotApplied, FailedPrecondition, 5, "the row was given to a later attempt";
    SessionUnknown, "RO-2010", false, Unknown, FailedPrecondition, 8, "the cluster does not know this session";
    RequestForgotten, "RO-2011", false, Unknown, FailedPrecondition, 8, "the answer to this request is no longer kept";
    RowNotFound, "RO-2012", false, NotApplied, NotFound, 4, "the run has no such row";
    RunActive, "RO-2013", false, NotApplied, FailedPrecondition, 5, "the run has not ended";
    RunDeleting, "RO-2014", true, NotApplied, FailedPrecondition, 5, "a run of this name is being deleted";
    OverQuota, "RO-2015", false, NotApplied, ResourceExhausted, 1, "the namespace has as much as its quota allows";
    DeadlineExceeded, "RO-2016", false, NotApplied, FailedPrecondition, 5, "the run's deadline has passed";
    Unauthenticated, "RO-3001", false, NotApplied, Unauthenticated, 7, "the caller showed no valid certificate";
    PermissionDenied, "RO-3002", false, NotApplied, PermissionDenied, 7, "the caller's role or namespace does not allow this";
    ConnectFailed, "RO-3003", true, NotApplied, Unavailable, 3, "the connection failed";
    TimedOut, "RO-3004", true, Unknown, DeadlineExceeded, 3, "no answer arrived in time";
    WorkerNameTaken, "RO-3005", false, NotApplied, AlreadyExists, 5, "another live worker has this name";
    WorkerNotEligible, "RO-3006", false, NotApplied, FailedPrecondition, 5, "the worker may take no work";
    UnsupportedVersion, "RO-3007", false, NotApplied, Unimplemented, 5, "the other side does not speak this version";
    WorkerNotFound, "RO-3008", false, NotApplied, NotFound, 4, "no worker of this name is registered";
    TokenRefused, "RO-3009", false, NotApplied, PermissionDenied, 7, "the join token is not valid";
    EnrollmentOff, "RO-3010", false, NotApplied, FailedPrecondition, 5, "this member issues no certificates";
    TokenNotFound, "RO-3011", false, NotApplied, NotFound, 4, "there is no such join token";
    TokenConflict, "RO-3012", false, NotApplied, AlreadyExists, 5, "another join token has this name";
    CertificateRevoked, "RO-3013", false, NotApplied, Unauthenticated, 7, "the caller's certificate is revoked";
    RevocationUnsafe, "RO-3014", false, NotApplied, FailedPrecondition, 6, "the revocation would shut out the caller or current members";
    RevocationNotFound, "RO-3015", false, NotApplied, NotFound, 4, "there is no such revocation";
    RevocationConflict, "RO-3016", false, NotApplied, FailedPrecondition, 5, "a revocation in force covers more";
    ApiKeyNotFound, "RO-3017", false, NotApplied, NotFound, 4, "there is no such API key";
    ApiKeyConflict, "RO-3018", false, NotApplied, AlreadyExists, 5, "another API key has this id";
    InvalidArgument, "RO-4001", false, NotApplied, InvalidArgument, 1, "the request is malformed";
    LimitExceeded, "RO-4002", false, NotApplied, ResourceExhausted, 1, "the request is over a limit";
    Overloaded, "RO-4003", true, NotApplied, ResourceExhausted, 3, "too much is in flight";
    Compacted, "RO-4004", false, NotApplied, OutOfRange, 9, "the events asked for are no longer kept";
    DiskFull, "RO-4005", true, NotApplied, ResourceExhausted, 3, "the leader's disk is full";
    StoreRefused, "RO-5001", false, NotApplied, FailedPrecondition, 1, "the object store refused a write or read";
    StoreUnavailable, "RO-5002", true, NotApplied, Unavailable, 3, "the object store did not answer";
    SegmentUnreadable, "RO-5003", true, NotApplied, DataLoss, 1, "an input segment is missing or corrupt";
    SnapshotUnusable, "RO-5004", false, NotApplied, DataLoss, 1, "the snapshot file cannot be used";
    DirectoryInUse, "RO-5005", false, NotApplied, FailedPrecondition, 6, "the data directory is not empty";
    JobNotFound, "RO-6001", false, NotApplied, NotFound, 4, "there is no such training job";
    RendezvousClosed, "RO-6002", false, NotApplied, FailedPrecondition, 5, "the job's rendezvous is closed";
    RendezvousConflict, "RO-6003", false, NotApplied, FailedPrecondition, 5, "the job's participants have another min or max";
    ParticipantGone, "RO-6004", false, NotApplied, FailedPrecondition, 5, "the participant's incarnation is void";
    BarrierNotFound, "RO-6005", false, NotApplied, NotFound, 4, "there is no such barrier";
    BarrierConflict, "RO-6006", false, NotApplied, FailedPrecondition, 5, "the barrier refuses this arrival";
    NotRoundMember, "RO-6007", false, NotApplied, PermissionDenied, 7, "the caller has no member in the round";
    TrainingJobNotFound, "RO-6101", false, NotApplied, NotFound, 4, "there is no such training job";
    TrainingJobConflict, "RO-6102", false, NotApplied, FailedPrecondition, 5, "the training job is in another state or round";
    IncarnationVoid, "RO-6103", false, NotApplied, FailedPrecondition, 5, "the trainer's incarnation is void";
    NeedsRecovery, "RO-6104", false, NotApplied, FailedPrecondition, 5, "the training job must recover";
    DatasetNotFound, "RO-6105", false, NotApplied, NotFound, 4, "there is no such dataset";
    DatasetConflict, "RO-6106", false, NotApplied, AlreadyExists, 5, "the dataset has another spec, or is in use";
    ShardConflict, "RO-6107", false, NotApplied, FailedPrecondition, 5, "the report contradicts the shard's state";
    CheckpointNotFound, "RO-6108", false, NotApplied, NotFound, 4, "there is no such checkpoint";
    CheckpointConflict, "RO-6109", false, NotApplied, FailedPrecondition, 5, "the checkpoint refuses this report";
    CheckpointClosed, "RO-6110", false, NotApplied, FailedPrecondition, 5, "the checkpoint is no longer open";
    Internal, "RO-9001", false, Unknown, Internal, 1, "a defect in rollout";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// A text that is not a code of this version.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an error code of this version")]
pub struct UnknownCode(pub String);

impl FromStr for ErrorCode {
    type Err = UnknownCode;

    fn from_str(text: &str) -> Result<Self, UnknownCode> {
        let found = ErrorCode::ALL.iter().find(|code| code.code() == text);
        found.copied().ok_or_else(|| UnknownCode(text.to_owned()))
    }
}

/// A refusal on the wire: a code, human-readable text, and hints for the caller.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct RpcError {
    /// What happened.
    pub code: ErrorCode,
    /// Human-readable text: what happened to what, and what to do about it.
    pub message: String,
    /// Whether the request took effect.
    pub outcome: Outcome,
    /// Whether a repeat may succeed. Follows from the code, unless a newer member said otherwise.
    pub retryable: bool,
    /// Name of the leader, empty while unknown.
    pub leader_name: String,
    /// Client address of the leader, empty while unknown.
    pub leader_addr: String,
    /// The epoch of the member that answered; 0: not known.
    pub coord_epoch: u64,
    /// The members, as the member that answered knows them.
    pub members: Option<Box<v1::MemberList>>,
    /// With [`ErrorCode::Compacted`]: the oldest index that can still be read; else 0.
    pub oldest_index: u64,
}

impl RpcError {
    /// An error with the code's default outcome and no hints.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        RpcError {
            code,
            message: message.into(),
            outcome: code.default_outcome(),
            retryable: code.retryable(),
            leader_name: String::new(),
            leader_addr: String::new(),
            coord_epoch: 0,
            members: None,
            oldest_index: 0,
        }
    }

    /// Sets the leader's name and client address.
    pub fn with_leader(mut self, name: impl Into<String>, addr: impl Into<String>) -> Self {
        self.leader_name = name.into();
        self.leader_addr = addr.into();
        self
    }

    /// Sets the outcome of the request.
    pub fn with_outcome(mut self, outcome: Outcome) -> Self {
        self.outcome = outcome;
        self
    }

    /// Sets the epoch of the answer.
    pub fn with_epoch(mut self, coord_epoch: u64) -> Self {
        self.coord_epoch = coord_epoch;
        self
    }

    /// Sets the oldest index that can still be read.
    pub fn with_oldest(mut self, oldest_index: u64) -> Self {
        self.oldest_index = oldest_index;
        self
    }

    /// Adds the member list.
    pub fn with_members(mut self, members: v1::MemberList) -> Self {
        self.members = Some(Box::new(members));
        self
    }

    /// Reads the error from a status. A status without details of this protocol is classified by its gRPC code; one
    /// that this process made from a broken connection is `ConnectFailed`.
    pub fn from_status(status: &Status) -> Self {
        let detail = v1::ErrorDetail::decode(status.details()).unwrap_or_default();
        if detail.code.is_empty() {
            return RpcError::from_bare_status(status);
        }
        // Even an unknown code of a newer member comes with the advice whether to repeat the request.
        let code = detail.code.parse().unwrap_or(ErrorCode::Internal);
        let message = match code == ErrorCode::Internal && detail.code != code.code() {
            true => format!("{} ({})", status.message(), detail.code),
            false => status.message().to_owned(),
        };
        RpcError {
            code,
            message,
            outcome: Outcome::from_wire(detail.outcome()),
            retryable: detail.retryable,
            leader_name: detail.leader_name,
            leader_addr: detail.leader_addr,
            coord_epoch: detail.coord_epoch,
            members: detail.members.map(Box::new),
            oldest_index: detail.oldest_index,
        }
    }

    fn from_bare_status(status: &Status) -> Self {
        // A local transport failure has a source; an error from the peer has none.
        let local = std::error::Error::source(status).is_some();
        let code = match status.code() {
            Code::DeadlineExceeded => ErrorCode::TimedOut,
            Code::OutOfRange | Code::ResourceExhausted => ErrorCode::LimitExceeded,
            Code::Unavailable | Code::Cancelled | Code::Aborted => ErrorCode::ConnectFailed,
            _ if local => ErrorCode::ConnectFailed,
            Code::InvalidArgument => ErrorCode::InvalidArgument,
            Code::Unauthenticated => ErrorCode::Unauthenticated,
            Code::PermissionDenied => ErrorCode::PermissionDenied,
            Code::Unimplemented => ErrorCode::UnsupportedVersion,
            _ => ErrorCode::Internal,
        };
        let error = RpcError::new(code, message_with_sources(status));
        let maybe_sent = code == ErrorCode::ConnectFailed && ConnectError::find(status).is_none();
        if maybe_sent { error.with_outcome(Outcome::Unknown) } else { error }
    }
}

/// The texts of the status and of its sources, each once.
fn message_with_sources(status: &Status) -> String {
    let mut message = status.message().to_owned();
    let mut next = std::error::Error::source(status);
    while let Some(cause) = next {
        let words = cause.to_string();
        if !words.is_empty() && !message.contains(&words) {
            message = if message.is_empty() { words } else { format!("{message}: {words}") };
        }
        next = cause.source();
    }
    message
}

impl From<RpcError> for Status {
    fn from(error: RpcError) -> Status {
        let detail = v1::ErrorDetail {
            code: error.code.code().to_owned(),
            retryable: error.retryable,
            outcome: error.outcome.to_wire() as i32,
            leader_name: error.leader_name,
            leader_addr: error.leader_addr,
            coord_epoch: error.coord_epoch,
            members: error.members.map(|members| *members),
            oldest_index: error.oldest_index,
        };
        Status::with_details(error.code.grpc(), error.message, detail.encode_to_vec().into())
    }
}

impl From<&Status> for RpcError {
    fn from(status: &Status) -> RpcError {
        RpcError::from_status(status)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_code_has_its_page_and_every_page_its_code() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/errors");
        for code in ErrorCode::ALL {
            let page = folder.join(format!("{code}.md"));
            let text = std::fs::read_to_string(&page)
                .unwrap_or_else(|error| panic!("{}: {error}", page.display()));
            let title = text.lines().next().unwrap_or_default();
            assert_eq!(title, format!("# {code}: {}", code.summary()), "{}", page.display());
            for heading in ["## What happened", "## Why", "## What to do"] {
                assert!(text.contains(heading), "{} lacks {heading:?}", page.display());
            }
        }
        for page in std::fs::read_dir(&folder).unwrap() {
            let name = page.unwrap().file_name().into_string().unwrap();
            if let Some(code) = name.strip_suffix(".md").filter(|name| name.starts_with("RO-")) {
                assert!(code.parse::<ErrorCode>().is_ok(), "{name} is the page of no code");
            }
        }
    }

    #[test]
    fn codes_are_distinct_and_ascending_and_parse_back() {
        let texts: Vec<_> = ErrorCode::ALL.iter().map(|code| code.code()).collect();
        assert!(texts.is_sorted());
        assert_eq!(texts.iter().collect::<HashSet<_>>().len(), texts.len());
        for code in ErrorCode::ALL {
            assert_eq!(code.code().parse(), Ok(*code));
        }
        assert!("RO-0000".parse::<ErrorCode>().is_err());
    }

    #[test]
    fn an_error_survives_the_way_through_a_status() {
        let members = v1::MemberList { version: 7, members: vec![], leader: "c2".into() };
        let error = RpcError::new(ErrorCode::NotLeader, "ask c2")
            .with_leader("c2", "127.0.0.1:7")
            .with_epoch(9)
            .with_oldest(12)
            .with_members(members);
        assert_eq!(RpcError::from_status(&error.clone().into()), error);
    }

    #[test]
    fn a_code_of_a_newer_member_keeps_its_retry_advice() {
        let detail = v1::ErrorDetail {
            code: "RO-1999".into(),
            retryable: true,
            outcome: v1::Outcome::NotApplied as i32,
            ..Default::default()
        };
        let bytes = detail.encode_to_vec().into();
        let error =
            RpcError::from_status(&Status::with_details(Code::Unavailable, "new thing", bytes));
        assert_eq!((error.code, error.retryable), (ErrorCode::Internal, true));
        assert!(error.message.contains("RO-1999"));
    }

    #[test]
    fn a_foreign_status_is_classified_by_its_grpc_code() {
        let code = |status: Status| RpcError::from_status(&status).code;
        assert_eq!(code(Status::unavailable("x")), ErrorCode::ConnectFailed);
        assert_eq!(code(Status::permission_denied("x")), ErrorCode::PermissionDenied);
        assert_eq!(code(Status::unimplemented("x")), ErrorCode::UnsupportedVersion);
        assert_eq!(code(Status::internal("x")), ErrorCode::Internal);
    }
}
