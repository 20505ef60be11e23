//! Why a call failed, as human-readable text and as an exit status.
//!
//! *Invariant:* a call that may have taken effect is never reported as one that did not.
//!
//! Absent: what the cluster's own refusals mean (`error`).

use crate::connect_error::{ConnectError, Phase};
use crate::endpoint::EndpointError;
use crate::error::{ErrorCode, RpcError};
use crate::tls::TlsError;

/// The members that were called, and the result of each.
pub type Tried = Vec<(String, String)>;

/// A call that failed permanently, or for longer than the client was willing to wait.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// There is no connection, for a reason that waiting does not fix.
    #[error("{0}")]
    Connect(ConnectError),
    /// No member led the cluster until the timeout. Nothing was applied.
    #[error("{what}: no leader within {waited_ms} ms: {}", list(tried))]
    NoLeader {
        /// The call.
        what: &'static str,
        /// How long the client tried.
        waited_ms: u64,
        /// The members that it called, and the last answer of each.
        tried: Tried,
    },
    /// There was a leader, but no answer until the timeout. Nothing was applied.
    #[error("{what}: no answer within {waited_ms} ms: {}", list(tried))]
    Timeout {
        /// The call.
        what: &'static str,
        /// How long the client tried.
        waited_ms: u64,
        /// The members that it called, and the last answer of each.
        tried: Tried,
    },
    /// The request was sent and no answer arrived: it may have taken effect. Repeat it with the same request id,
    /// unless its session is forgotten.
    #[error(
        "{what}: outcome unknown after {waited_ms} ms, {}: {}",
        advice(*forgotten),
        list(tried)
    )]
    OutcomeUnknown {
        /// The call.
        what: &'static str,
        /// How long the client tried.
        waited_ms: u64,
        /// The members that it called, and the last answer of each.
        tried: Tried,
        /// The cluster has forgotten the session, and with it the answer. The outcome will stay unknown, and a repeat
        /// in another session may execute the request twice.
        forgotten: bool,
    },
    /// The cluster refused.
    #[error("{0}")]
    Rpc(#[from] RpcError),
    /// Certificates or keys could not be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// An endpoint of the configuration is malformed.
    #[error("{0}")]
    Endpoint(#[from] EndpointError),
    /// There is no endpoint to call.
    #[error(
        "no endpoint is configured and no member list is saved; give a member with --endpoint or ROLLOUT_ENDPOINTS, \
         or a context file with ROLLOUT_CONTEXT"
    )]
    NoEndpoints,
    /// The saved member list cannot be read.
    #[error("members file {path}: {cause}: remove it to start from the configured endpoints")]
    MembersFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        cause: String,
    },
}

fn advice(forgotten: bool) -> &'static str {
    match forgotten {
        true => {
            "because the cluster has forgotten the session. \
             It may have taken effect; do not repeat it blindly"
        }
        false => "it is safe to repeat",
    }
}

fn list(tried: &[(String, String)]) -> String {
    let each: Vec<_> = tried.iter().map(|(who, why)| format!("{who} ({why})")).collect();
    if each.is_empty() { "no member was reached".to_owned() } else { each.join(", ") }
}

impl ClientError {
    /// The failure in the status of a call to one member.
    pub fn of_member(status: &tonic::Status, member: &impl std::fmt::Display) -> Self {
        match ConnectError::behind(status, member) {
            Some(error) => ClientError::Connect(error),
            None => ClientError::Rpc(RpcError::from_status(status)),
        }
    }

    /// Whether a member refused the caller's certificate as revoked. A single member's refusal is final.
    pub fn is_revoked(&self) -> bool {
        match self {
            ClientError::Connect(error) => error.is_revoked(),
            ClientError::Rpc(error) => error.code == ErrorCode::CertificateRevoked,
            _ => false,
        }
    }

    /// The exit status of a command that ends with this error: 1 failed, 2 wrong use, 3 unavailable or no leader, 4
    /// not found, 5 conflict, 7 TLS or permission, 8 outcome unknown, 9 no longer kept.
    pub fn exit_code(&self) -> u8 {
        match self {
            ClientError::Connect(error) if error.phase == Phase::Tls => 7,
            ClientError::Connect(_) => 3,
            ClientError::NoLeader { .. } | ClientError::Timeout { .. } => 3,
            ClientError::OutcomeUnknown { .. } => 8,
            ClientError::Rpc(error) => error.code.exit_code(),
            ClientError::Tls(_) => 7,
            ClientError::Endpoint(_) | ClientError::NoEndpoints => 2,
            ClientError::MembersFile { .. } => 1,
        }
    }

    /// Whether the same request may succeed later without any change.
    pub fn may_pass(&self) -> bool {
        match self {
            ClientError::NoLeader { .. } | ClientError::Timeout { .. } => true,
            ClientError::OutcomeUnknown { forgotten, .. } => !forgotten,
            ClientError::Rpc(error) => error.retryable,
            _ => false,
        }
    }

    /// The code of the refusal, if the cluster refused.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            ClientError::Rpc(error) => Some(error.code),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_a_forgotten_session_is_not_called_safe_to_repeat() {
        let unknown = |forgotten| ClientError::OutcomeUnknown {
            what: "add",
            waited_ms: 7,
            tried: vec![("c1".into(), "is down".into())],
            forgotten,
        };
        let (repeatable, forgotten) = (unknown(false), unknown(true));
        assert_eq!(
            repeatable.to_string(),
            "add: outcome unknown after 7 ms, it is safe to repeat: c1 (is down)"
        );
        assert_eq!(
            forgotten.to_string(),
            "add: outcome unknown after 7 ms, because the cluster has forgotten the session. \
             It may have taken effect; do not repeat it blindly: c1 (is down)"
        );
        assert!(repeatable.may_pass() && !forgotten.may_pass());
        assert_eq!((repeatable.exit_code(), forgotten.exit_code()), (8, 8));
    }
}
