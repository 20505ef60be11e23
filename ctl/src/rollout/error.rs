//! Owns: why a command of `rollout` ends early, and with which exit status.
//!
//! Invariant: if the user can fix the problem, the text says how.
//! Absent: what fails in a batch itself; that is in `rollout_batch`.

use rollout_batch::canonical::CanonicalError;
use rollout_batch::input::files::FilesError;
use rollout_batch::input::scan::ScanError;
use rollout_batch::submission::config::ConfigError;
use rollout_batch::submission::error::BatchError;
use rollout_proto::ClientError;
use rollout_storage::BlobError;

use crate::connect::ConnectError;

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommandError {
    /// The batch: its file, input, run or output.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// The flags.
    #[error("{0}")]
    Usage(String),
    /// Endpoints or certificates.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Ctrl-C. The next step was printed.
    #[error("interrupted")]
    Interrupted,
}

/// For `?` where a step fails with a part of [`BatchError`].
macro_rules! from_parts {
    ($($part:ty)*) => {
        $(impl From<$part> for CommandError {
            fn from(error: $part) -> Self {
                Self::Batch(error.into())
            }
        })*
    };
}

from_parts! { ConfigError FilesError ScanError CanonicalError BlobError ClientError }

impl CommandError {
    /// 1 failed, 2 usage or input, 3 unavailable, 4 not found, 5 conflict, 7 TLS or permission, 8 outcome unknown,
    /// 130 interrupted. Never [`ROWS_FAILED`](rollout_batch::submission::error::ROWS_FAILED).
    pub(super) fn exit_code(&self) -> u8 {
        match self {
            Self::Batch(error) => error.exit_code(),
            Self::Connect(ConnectError::Client(error)) => error.exit_code(),
            Self::Usage(_) | Self::Connect(_) => 2,
            Self::Interrupted => 130,
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_proto::{ErrorCode, RpcError};

    use super::*;

    #[test]
    fn the_message_and_the_exit_status_of_each_failure_are_kept() {
        let no_leader = || ClientError::Rpc(RpcError::new(ErrorCode::NoLeader, "why"));
        let incomplete = ConnectError::TlsIncomplete { missing: "--key".into() };
        let all: [(CommandError, u8, &str); 6] = [
            (BatchError::Empty.into(), 2, "the input has no rows, nothing was submitted"),
            (no_leader().into(), 3, "RO-1003: why"),
            (CommandError::Usage("why".into()), 2, "why"),
            (ConnectError::Client(no_leader()).into(), 3, "RO-1003: why"),
            (incomplete.into(), 2, "tls needs --key too; give --ca-cert,"),
            (CommandError::Interrupted, 130, "interrupted"),
        ];
        for (error, exit_code, text) in all {
            assert_eq!(error.exit_code(), exit_code, "{error}");
            assert!(error.to_string().starts_with(text), "{error}");
        }
    }
}
