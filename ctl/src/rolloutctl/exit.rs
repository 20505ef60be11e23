//! Exit statuses, and the messages on stderr when a command fails.
//!
//! Invariant: 1 failed, 2 usage (clap), 3 unavailable or no leader, 4 not found, 5 conflict, 6 refused as unsafe, 7
//! TLS or permission, 8 outcome unknown, 9 events no longer kept. Absent: a failure without a message on
//! stderr.

use rollout_proto::ClientError;

use super::distrust;
use super::request::Repeatable;
use crate::connect::ConnectError;

#[cfg(test)]
mod golden;

/// A failure whose exit status the command itself decides.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// Exit status 1.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// Exit status 2: the request is invalid.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// Exit status 3: no leader serves now; try again.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self { code: 3, message: message.into() }
    }

    /// Exit status 4.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self { code: 4, message: message.into() }
    }

    /// Exit status 5: the state does not allow the command.
    pub fn conflict(message: impl Into<String>) -> Self {
        Self { code: 5, message: message.into() }
    }

    /// Exit status 6: it would be unsafe, or there is no consent.
    pub fn refused(message: impl Into<String>) -> Self {
        Self { code: 6, message: message.into() }
    }

    /// Exit status 7: one side does not trust the other's certificate.
    pub fn distrusted(message: impl Into<String>) -> Self {
        Self { code: 7, message: message.into() }
    }

    /// The exit status of a program that has already printed the reason on stderr: no message is added.
    pub fn reported(code: u8) -> Self {
        Self { code, message: String::new() }
    }

    /// Exit status 9: the requested events are no longer kept.
    pub fn compacted(message: impl Into<String>) -> Self {
        Self { code: 9, message: message.into() }
    }
}

/// The exit status of an error.
pub(crate) fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return failure.code;
        }
        if let Some(client) = client_error(cause) {
            return client.exit_code();
        }
        if cause.downcast_ref::<ConnectError>().is_some() {
            return 2;
        }
    }
    1
}

/// The error in words, with the command that explains its code if it has one.
pub(crate) fn explain(error: &anyhow::Error) -> String {
    let is_silent = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<Failure>().is_some_and(|failure| failure.message.is_empty())
    };
    if error.chain().any(is_silent) {
        return String::new();
    }
    let mut text = format!("error: {}\n", sentence(error));
    let rpc = error.chain().find_map(|cause| match client_error(cause) {
        Some(ClientError::Rpc(rpc)) => Some(rpc.code),
        _ => None,
    });
    if let Some(rpc) = rpc {
        text.push_str(&format!("  explain: rolloutctl errors explain {}\n", rpc.code()));
    }
    let distrust = error.chain().find_map(|cause| match client_error(cause) {
        Some(ClientError::Connect(failed)) if distrust::is_distrust(failed) => Some(failed),
        _ => None,
    });
    if let Some(failed) = distrust {
        let reason = match failed.wants_tls() {
            true => "you connect without TLS".to_owned(),
            false => distrust::words(&failed.cause, "your CA file", "your certificate"),
        };
        let fix = distrust::remedy(failed.is_revoked(), failed.wants_tls());
        text.push_str(&format!("  that is: {reason}; {fix}\n"));
    }
    let repeatable = error.chain().find_map(|cause| cause.downcast_ref::<Repeatable>());
    if let Some(repeatable) = repeatable.filter(|_| code(error) == 8) {
        let again = format!("the same command with --request-id {}", repeatable.name);
        text.push_str(&format!("  repeat:  {again} takes effect once, however often it is sent\n"));
    }
    text
}

/// The error and its causes, each printed once: many error types here repeat their cause in their own text.
fn sentence(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |mut text, cause| {
        let words = cause.to_string();
        if !text.contains(&words) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&words);
        }
        text
    })
}

fn client_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a ClientError> {
    cause.downcast_ref::<ClientError>().or_else(|| match cause.downcast_ref::<ConnectError>() {
        Some(ConnectError::Client(client)) => Some(client),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use rollout_proto::{ConnectError as Unconnected, ErrorCode, Phase, RpcError};

    use super::*;

    #[test]
    fn a_failure_decides_its_exit_code_through_any_context() {
        let error = anyhow::Error::from(Failure::not_found("there is no such code"));
        assert_eq!(code(&error.context("cannot explain")), 4);
        assert_eq!(code(&anyhow::anyhow!("something else")), 1);
    }

    #[test]
    fn a_certificate_of_another_authority_is_explained_with_the_command_that_compares() {
        let error = anyhow::Error::from(ClientError::Connect(Unconnected {
            endpoint: "c1:7420".into(),
            phase: Phase::Tls,
            cause: "invalid peer certificate: UnknownIssuer".into(),
            permanent: true,
        }));
        assert_eq!(code(&error), 7);
        let text = explain(&error);
        let told = "  that is: its certificate is signed by another authority than your CA file; \
                    compare the issuers: rolloutctl cert status\n";
        assert!(text.ends_with(told), "{text}");
    }

    #[test]
    fn a_revoked_certificate_is_reported_with_its_remedy() {
        let error = anyhow::Error::from(ClientError::Connect(Unconnected {
            endpoint: "c1:7420".into(),
            phase: Phase::Tls,
            cause: "received fatal alert: CertificateRevoked".into(),
            permanent: true,
        }));
        assert_eq!(code(&error), 7);
        let text = explain(&error);
        let told =
            format!("it refuses your certificate: it is revoked; {}\n", distrust::REVOKED_FIX);
        assert!(text.ends_with(&told), "{text}");
    }

    #[test]
    fn a_cause_is_printed_once() {
        let refusal = RpcError::new(ErrorCode::RunNotFound, "no run eval");
        let error = anyhow::Error::from(ClientError::from(refusal)).context("cannot describe");
        assert_eq!(
            explain(&error),
            "error: cannot describe: RO-2001: no run eval\n  explain: rolloutctl errors explain RO-2001\n"
        );
        assert_eq!(code(&error), 4);
    }
}
