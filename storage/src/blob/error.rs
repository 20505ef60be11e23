//! Owns: the errors of objects, sorted by what a caller can do about them.
//!
//! Invariant: [`BlobError::retryable`] is true only if the same call may succeed later without intervention.
//! Absent: retrying.

use std::io;

/// An operation on an object failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// There is no such object. On `file://` a likely reason is a host that sees another file system.
    #[error("object {key} is missing")]
    Missing {
        /// The object.
        key: String,
    },
    /// The object's bytes are not those that were written.
    #[error("object {key} is corrupt: blake3 {found}, expected {expected}")]
    Corrupt {
        /// The object.
        key: String,
        /// The digest that the reader asked for.
        expected: String,
        /// The digest of what the store returned.
        found: String,
    },
    /// The object is another one than when it was found.
    #[error("{key} was changed while it was read")]
    Changed {
        /// The object.
        key: String,
    },
    /// The store is out of space.
    #[error("object {key}: no space left: {reason}")]
    NoSpace {
        /// The object.
        key: String,
        /// The store's own text.
        reason: String,
    },
    /// The store denies access; its credentials or permissions need a person.
    #[error("object {key}: access denied: {reason}")]
    PermissionDenied {
        /// The object.
        key: String,
        /// The store's own text.
        reason: String,
    },
    /// The store refuses the operation for another lasting reason.
    #[error("object {key}: refused: {reason}")]
    Refused {
        /// The object.
        key: String,
        /// The store's own text.
        reason: String,
    },
    /// The store cannot be reached or is overloaded.
    #[error("object {key}: the store is unavailable: {reason}")]
    Unavailable {
        /// The object.
        key: String,
        /// The store's own text.
        reason: String,
    },
    /// The object is larger than any object may be.
    #[error("object {key} has {len} bytes, the most is {max}")]
    TooLarge {
        /// The object.
        key: String,
        /// Its length in bytes.
        len: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The name is no key: lower-case folders and a name, of `a-z A-Z 0-9 . _ -`.
    #[error("{key:?} is no object key")]
    Key {
        /// What was given.
        key: String,
    },
    /// The store's URL cannot be used.
    #[error("object store {url}: {reason}")]
    Url {
        /// What was given.
        url: String,
        /// Why not.
        reason: String,
    },
}

impl BlobError {
    /// True where trying again later may help by itself.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Sorts an error of the file system.
    pub(super) fn from_io(key: &str, error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        let (key, reason) = (key.to_owned(), error.to_string());
        match error.kind() {
            Kind::NotFound => Self::Missing { key },
            Kind::StorageFull | Kind::QuotaExceeded => Self::NoSpace { key, reason },
            Kind::PermissionDenied | Kind::ReadOnlyFilesystem => {
                Self::PermissionDenied { key, reason }
            }
            Kind::TimedOut
            | Kind::Interrupted
            | Kind::WouldBlock
            | Kind::ResourceBusy
            | Kind::StaleNetworkFileHandle
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
            | Kind::OutOfMemory => Self::Unavailable { key, reason },
            _ => Self::Refused { key, reason },
        }
    }

    /// Sorts an error of a remote store. What it does not name is taken for a passing failure, after the
    /// client's own retries, unless the store itself says that it is the caller's.
    pub(super) fn from_remote(key: &str, error: object_store::Error) -> Self {
        use object_store::Error as E;
        if let E::Generic { .. } = &error
            && let Some(status) = client_error(&error)
        {
            let (key, reason) = (key.to_owned(), error.to_string());
            // S3 answers 400 to credentials that have ended, and says so in its code.
            let credentials = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"];
            let ended = credentials.iter().any(|c| reason.contains(&format!("<Code>{c}</Code>")));
            return match (status, ended) {
                (_, true) => Self::PermissionDenied { key, reason },
                // Time-outs and floods pass.
                (408 | 425 | 429, _) => Self::Unavailable { key, reason },
                _ => Self::Refused { key, reason },
            };
        }
        let (key, reason) = (key.to_owned(), error.to_string());
        match error {
            E::NotFound { .. } => Self::Missing { key },
            E::Precondition { .. } => Self::Changed { key },
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                Self::PermissionDenied { key, reason }
            }
            E::Generic { .. } | E::JoinError { .. } => Self::Unavailable { key, reason },
            _ => Self::Refused { key, reason },
        }
    }
}

/// The status of an answer that blames the request. The client keeps it in the text of its error alone.
fn client_error(error: &object_store::Error) -> Option<u16> {
    let mut cause: Option<&dyn std::error::Error> = Some(error);
    while let Some(error) = cause {
        let text = error.to_string();
        let status = text.strip_prefix("Server returned non-2xx status code: ");
        if let Some(status) = status.and_then(|text| text.get(..3)?.parse().ok()) {
            return (400..500).contains(&status).then_some(status);
        }
        cause = error.source();
    }
    None
}
