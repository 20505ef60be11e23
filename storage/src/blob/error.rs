//! Owns: the errors of objects, sorted by what a caller can do about them.
//!
//! Invariant: [`BlobError::retryable`] is true only if the same call may succeed later without intervention.
//! Absent: retrying.

use std::io;

/// An operation on an object failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BlobError {
    /// There is no such object. On `file://` a likely reason is that a host sees another file system.
    #[error("object {key} is missing")]
    Missing {
        /// The object.
        key: String,
    },
    /// The object's bytes differ from those written.
    #[error("object {key} is corrupt: blake3 {found}, expected {expected}")]
    Corrupt {
        /// The object.
        key: String,
        /// The expected digest.
        expected: String,
        /// The digest of the bytes that the store returned.
        found: String,
    },
    /// The object has changed since it was found.
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
    /// The store denies access; an operator must correct the credentials or permissions.
    #[error("object {key}: access denied: {reason}")]
    PermissionDenied {
        /// The object.
        key: String,
        /// The store's own text.
        reason: String,
    },
    /// The store refuses the operation for another permanent reason.
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
    /// The object is larger than the limit.
    #[error("object {key} has {len} bytes, the most is {max}")]
    TooLarge {
        /// The object.
        key: String,
        /// Its length in bytes.
        len: u64,
        /// The bound in bytes.
        max: u64,
    },
    /// The name is not a key: lower-case folders and a name, of `a-z A-Z 0-9 . _ -`.
    #[error("{key:?} is not an object key")]
    Key {
        /// The given name.
        key: String,
    },
    /// The store's URL cannot be used.
    #[error("object store {url}: {reason}")]
    Url {
        /// The given URL.
        url: String,
        /// The reason.
        reason: String,
    },
}

impl BlobError {
    /// Whether a later retry may succeed by itself.
    pub fn retryable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }

    /// Classifies an error of the file system.
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

    /// Classifies an error of a remote store. The client has already retried, and an error without a more specific
    /// kind counts as transient, unless the store itself blames the caller.
    pub(super) fn from_remote(key: &str, error: object_store::Error) -> Self {
        use object_store::Error as E;
        if let E::Generic { .. } = &error
            && let Some(status) = client_error(&error)
        {
            let (key, reason) = (key.to_owned(), error.to_string());
            // S3 answers 400 to expired credentials, and names the reason in its code.
            let credentials = ["ExpiredToken", "InvalidToken", "TokenRefreshRequired"];
            let ended = credentials.iter().any(|c| reason.contains(&format!("<Code>{c}</Code>")));
            return match (status, ended) {
                (_, true) => Self::PermissionDenied { key, reason },
                // Timeouts and throttling are transient.
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

/// The status of an answer that blames the request. The client has it only in the text of its error.
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
