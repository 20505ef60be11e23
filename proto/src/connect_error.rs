//! The error of a connection that could not be made, and how to find it behind the status of a call.
//!
//! *Invariant:* such an error means that nothing of the call was sent.
//!
//! Absent: making a connection (`channel`), and errors that the other side answered (`error`).

use std::fmt;
use std::io;

/// How rustls reports a TLS alert of the peer; the alert's name follows.
const ALERT: &str = "received fatal alert: ";
/// The alert of a server that refuses a revoked certificate.
const REVOKED: &str = "CertificateRevoked";
/// Alerts about this side's certificate. A server sends them before it reads any request.
const ABOUT_THE_CERTIFICATE: [&str; 8] = [
    REVOKED,
    "DecryptError",
    "CertificateExpired",
    "UnknownCA",
    "BadCertificate",
    "CertificateUnknown",
    "UnsupportedCertificate",
    "CertificateRequired",
];
/// The error for a plaintext connection to a server that speaks TLS.
pub(crate) const ANSWERS_WITH_TLS: &str =
    "it answers with TLS; drop --insecure-plaintext (insecure_plaintext in files)";

/// A step of making a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Resolving a name.
    Dns,
    /// Reaching the port.
    Tcp,
    /// TLS handshake.
    Tls,
    /// HTTP/2 handshake.
    Http2,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Dns => "dns",
            Phase::Tcp => "tcp",
            Phase::Tls => "tls",
            Phase::Http2 => "http2",
        })
    }
}

/// A connection that could not be made. Nothing of the call was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot connect to {endpoint}: {cause} (at {phase})")]
pub struct ConnectError {
    /// The endpoint, with the address actually dialed.
    pub endpoint: String,
    /// The step that failed.
    pub phase: Phase,
    /// The cause, as human-readable text.
    pub cause: String,
    /// A retry cannot help until a certificate, a name or a setting is changed.
    pub permanent: bool,
}

impl ConnectError {
    /// The connect error behind a status, if the status reports a failed connection.
    pub fn find(status: &tonic::Status) -> Option<&ConnectError> {
        let mut next = std::error::Error::source(status);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref::<ConnectError>() {
                return Some(found);
            }
            // `source` of an io::Error skips the error that it wraps, and returns that one's source.
            let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
            if let Some(found) = wrapped.and_then(|inner| inner.downcast_ref::<ConnectError>()) {
                return Some(found);
            }
            next = error.source();
        }
        None
    }

    /// The connect error behind a status, as in [`Self::find`]. On a busy server the refusal of a certificate may
    /// arrive after this side considered the connection made: that counts as a connect error of `endpoint` too.
    pub fn behind(status: &tonic::Status, endpoint: &impl fmt::Display) -> Option<ConnectError> {
        if let Some(found) = Self::find(status) {
            return Some(found.clone());
        }
        let mut next = std::error::Error::source(status);
        while let Some(error) = next {
            // HTTP/2 keeps only the text of the error that ended the connection.
            if let Some(cause) = certificate_alert(&error.to_string()) {
                let (endpoint, phase) = (endpoint.to_string(), Phase::Tls);
                return Some(ConnectError { endpoint, phase, cause, permanent: true });
            }
            next = error.source();
        }
        None
    }

    /// Whether the peer refuses this side's certificate as revoked.
    pub fn is_revoked(&self) -> bool {
        self.phase == Phase::Tls && self.cause.strip_prefix(ALERT) == Some(REVOKED)
    }

    /// Whether this side connects without TLS to a server that speaks TLS.
    pub fn wants_tls(&self) -> bool {
        self.phase == Phase::Tls && self.cause == ANSWERS_WITH_TLS
    }
}

/// The part of an error's text that reports an alert about the certificate.
fn certificate_alert(text: &str) -> Option<String> {
    let (_, rest) = text.split_once(ALERT)?;
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
    let alert = &rest[..end];
    ABOUT_THE_CERTIFICATE.contains(&alert).then(|| format!("{ALERT}{alert}"))
}
