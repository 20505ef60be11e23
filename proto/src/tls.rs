//! TLS on both ends: which certificate a host presents, which it trusts, and how both change while it runs.
//!
//! *Invariant:* under [`Security::Mtls`] both ends present a certificate of the configured authority that carries an
//! [`crate::Identity`], except in enrollment, where callers have none yet. A server is a member, and its callers check
//! that and its name. A file that cannot be used never replaces one that could.
//!
//! Absent: what a role may call (`authz.rs`), making certificates (`pki.rs`), dialing (`channel.rs`), the
//! source of the list of revoked certificates, and session resumption, because a resumed session would outlive the
//! certificate with which it was opened.

mod client;
mod conn;
mod incoming;
mod material;
mod pinned;
mod reload;
mod revoked;
mod server;
mod share;
#[cfg(test)]
mod tests;
mod verify;

use std::path::PathBuf;

pub use client::{ClientTls, server_name};
pub use conn::ServerConn;
pub use incoming::Incoming;
pub use server::{OnRevoked, ServerTls};

use crate::identity::{IdentityError, Role};
use crate::pki::TlsFiles;

/// The application protocol of every gRPC connection: HTTP/2.
pub(crate) const ALPN_H2: &[u8] = b"h2";
/// The other protocol of HTTPS.
pub(crate) const ALPN_HTTP1: &[u8] = b"http/1.1";

/// How connections are secured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// Both ends present certificates.
    Mtls(TlsFiles),
    /// No encryption and no identity: every caller of the port may do everything.
    InsecurePlaintext,
}

/// Why TLS cannot be set up.
#[derive(Debug, Clone, thiserror::Error)]
pub enum TlsError {
    /// A file could not be read.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::sync::Arc<std::io::Error>,
    },
    /// A file larger than any real PEM file.
    #[error("{path} is larger than {bytes_max} bytes, so it is not a PEM file of certificates")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The largest accepted size in bytes.
        bytes_max: u64,
    },
    /// A file without the expected PEM block, or with a malformed one.
    #[error("{path} holds no usable PEM {what}: {cause}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// What is wrong with it.
        cause: String,
    },
    /// The certificate carries no identity.
    #[error("{path}: {cause}")]
    Identity {
        /// The certificate's file.
        path: PathBuf,
        /// Why it has no identity.
        cause: IdentityError,
    },
    /// The certificate does not belong to a member, as every server's must.
    #[error("{path} is the certificate of {}; a server needs a member's", found.with_article())]
    NotMember {
        /// The certificate's file.
        path: PathBuf,
        /// The role in it.
        found: Role,
    },
    /// The certificate has expired.
    #[error("{path} expired at {}: issue a new certificate", utc(*not_after_unix))]
    Expired {
        /// The certificate's file.
        path: PathBuf,
        /// When it expired, in seconds since 1970.
        not_after_unix: i64,
    },
    /// Certificate, key and authority do not make a working configuration.
    #[error("{cert} and {key} cannot be used together: {cause}")]
    Config {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The error of rustls.
        cause: String,
    },
    /// A client without a certificate cannot be set up.
    #[error("cannot connect without a certificate: {0}")]
    Pinned(String),
    /// Enrollment is possible only with TLS.
    #[error("enrollment needs TLS: in plaintext there is nothing to enroll for")]
    EnrollmentInPlaintext,
    /// The host part of an endpoint is neither a DNS name nor an address.
    #[error("{0:?} is neither a host name nor an address")]
    ServerName(String),
}

/// A moment as RFC 3339, in UTC.
fn utc(unix_s: i64) -> String {
    let at = time::OffsetDateTime::from_unix_timestamp(unix_s).ok();
    let format = time::format_description::well_known::Rfc3339;
    at.and_then(|at| at.format(&format).ok()).unwrap_or_else(|| format!("{unix_s} s since 1970"))
}
