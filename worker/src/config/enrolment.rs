//! Owns: the settings of an agent that has no certificate and enrolls with a join token.
//!
//! Invariant: such an agent has no certificate files from elsewhere.
//! Absent: the token itself, which is read when it is needed and never kept.

use std::path::PathBuf;

use serde::Deserialize;

use super::ConfigError;

/// A join token, and the endpoints to which it is presented.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EnrolmentConfig {
    /// The file with the token, as `rolloutctl token create` printed it.
    pub token_file: PathBuf,
    /// The members' enrollment addresses, `host:port`; list all of them, because the leader issues the certificate.
    pub endpoints: Vec<String>,
}

impl EnrolmentConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: &str| Err(ConfigError::Invalid { key, reason: reason.into() });
        if self.token_file.as_os_str().is_empty() {
            return invalid("enrolment.token_file", "name the file with the join token");
        }
        if self.endpoints.is_empty() {
            return invalid(
                "enrolment.endpoints",
                "give the members' enrolment addresses, host:port",
            );
        }
        Ok(())
    }
}
