//! Why a member gave no answer: no member was reached, or the two sides do not trust each other.
//!
//! Invariant: a distrusted member runs, so no text here says that it is down. Each text names the file that decides
//! about trust.
//! Absent: the certificate of the other side, which a failed handshake does not reveal; how a survey of all members
//! groups the answers (`status::distrust`).

use std::fmt::Display;

use rollout_proto::{ClientError, ConnectError, Phase, Security};

/// What to do about it.
pub(in crate::rolloutctl) const COMPARE: &str = "compare the issuers: rolloutctl cert status";
/// What to do if the caller's certificate is revoked.
pub(in crate::rolloutctl) const REVOKED_FIX: &str =
    "get another certificate, or ask for an unrevoke: rolloutctl errors explain RO-3013";

/// What to do if the caller connects without TLS to members that use TLS.
pub(in crate::rolloutctl) const USE_TLS: &str =
    "give --ca-cert, --cert and --key, or a --context, instead of --insecure-plaintext";

/// Why a member gave no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::rolloutctl) struct NoAnswer {
    /// In words, with the phase of the connection that failed.
    pub(in crate::rolloutctl) problem: String,
    /// Whether one side does not trust the other.
    pub(in crate::rolloutctl) distrusted: bool,
    /// Whether it refuses the caller's certificate as revoked.
    pub(in crate::rolloutctl) revoked: bool,
    /// Whether it uses TLS and the caller does not.
    pub(in crate::rolloutctl) wants_tls: bool,
}

impl NoAnswer {
    /// For a reason that has nothing to do with trust.
    pub(super) fn silent(why: impl Display) -> Self {
        Self { problem: why.to_string(), distrusted: false, revoked: false, wants_tls: false }
    }

    /// From a call to one member.
    pub(super) fn of(error: &ClientError, security: &Security) -> Self {
        match error {
            ClientError::Connect(error) => Self::of_connection(error, security),
            revoked if revoked.is_revoked() => {
                Self { distrusted: true, revoked: true, ..Self::silent(revoked) }
            }
            ClientError::Timeout { tried, .. } | ClientError::NoLeader { tried, .. } => {
                Self::silent(
                    tried.first().map_or_else(|| error.to_string(), |(_, why)| why.clone()),
                )
            }
            other => Self::silent(other),
        }
    }

    /// From a failed connection.
    pub(in crate::rolloutctl) fn of_connection(error: &ConnectError, security: &Security) -> Self {
        let distrusted = is_distrust(error);
        let cause = match (distrusted, security) {
            (true, Security::Mtls(files)) => {
                let own = format!("your certificate {}", files.cert.display());
                words(&error.cause, &files.ca.display().to_string(), &own)
            }
            _ => error.cause.clone(),
        };
        let problem = format!("{}: {cause}", error.phase);
        let (revoked, wants_tls) = (error.is_revoked(), error.wants_tls());
        Self { problem, distrusted, revoked, wants_tls }
    }

    /// What to do if one side does not trust the other.
    pub(in crate::rolloutctl) fn fix(&self) -> &'static str {
        remedy(self.revoked, self.wants_tls)
    }
}

/// Whether a connection failed because of a certificate, not because of the network.
pub(in crate::rolloutctl) fn is_distrust(error: &ConnectError) -> bool {
    error.phase == Phase::Tls && error.permanent
}

/// Translates an error text of rustls into which side does not trust the other. `ca` is the file of the members'
/// authority, `own` the caller's certificate.
pub(in crate::rolloutctl) fn words(cause: &str, ca: &str, own: &str) -> String {
    if let Some(alert) = cause.strip_prefix("received fatal alert: ") {
        return match alert {
            // The second is the error for an authority of the same name with another key.
            "UnknownCA" | "DecryptError" => {
                format!("it refuses {own}: it trusts another authority")
            }
            "CertificateExpired" => {
                format!("it refuses {own}: it has expired or is not valid yet")
            }
            "CertificateRevoked" => format!("it refuses {own}: it is revoked"),
            "CertificateRequired"
            | "CertificateUnknown"
            | "BadCertificate"
            | "UnsupportedCertificate"
            | "AccessDenied" => format!("it refuses {own}: {alert}"),
            _ => cause.to_owned(),
        };
    }
    if cause.starts_with("received corrupt message") {
        return "it does not use TLS, or is not a member".to_owned();
    }
    match cause.strip_prefix("invalid peer certificate: ") {
        Some("UnknownIssuer" | "BadSignature") => {
            format!("its certificate is signed by another authority than {ca}")
        }
        Some(other) => format!("its certificate is refused here: {other}"),
        None => cause.to_owned(),
    }
}

/// What to do if one side does not trust the other.
pub(in crate::rolloutctl) fn remedy(revoked: bool, wants_tls: bool) -> &'static str {
    match (revoked, wants_tls) {
        (true, _) => REVOKED_FIX,
        (false, true) => USE_TLS,
        (false, false) => COMPARE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_of_the_same_name_with_another_key_is_another_one() {
        let told = |cause: &str| words(cause, "ca.pem", "your certificate a.pem");
        let other = "its certificate is signed by another authority than ca.pem";
        assert_eq!(told("invalid peer certificate: BadSignature"), other);
        assert_eq!(
            told("received fatal alert: DecryptError"),
            "it refuses your certificate a.pem: it trusts another authority"
        );
        assert_eq!(told("invalid peer certificate: X"), "its certificate is refused here: X");
        assert_eq!(
            told("received fatal alert: InternalError"),
            "received fatal alert: InternalError"
        );
    }

    #[test]
    fn a_handshake_that_is_late_is_no_distrust() {
        let error = ConnectError {
            endpoint: "c1".into(),
            phase: Phase::Tls,
            cause: "no answer within 1000 ms".into(),
            permanent: false,
        };
        let answer = NoAnswer::of_connection(&error, &Security::InsecurePlaintext);
        assert_eq!(answer, NoAnswer::silent("tls: no answer within 1000 ms"));
    }
}
