//! Owns: the `[compute]` block: which cloud's notices the worker watches, and at which address.
//!
//! Invariant: a checked block has a usable address, and an interval that neither spins nor misses a notice.
//! Absent: the requests.

use serde::Deserialize;

use super::ConfigError;

/// Which metadata service is polled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComputeProvider {
    /// The service that answers when the worker starts.
    #[default]
    Auto,
    /// EC2's instance metadata service, version 2.
    Aws,
    /// Google Compute Engine's.
    Gcp,
    /// Azure's instance metadata service.
    Azure,
    /// No cloud.
    None,
}

impl ComputeProvider {
    /// Reads a flag's value.
    pub(super) fn from_flag(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "aws" => Ok(Self::Aws),
            "gcp" => Ok(Self::Gcp),
            "azure" => Ok(Self::Azure),
            "none" => Ok(Self::None),
            _ => Err("auto, aws, gcp, azure or none".to_owned()),
        }
    }

    /// The name in the configuration and in logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
            Self::None => "none",
        }
    }
}

/// Notices of a cloud that reclaims its machines.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeConfig {
    /// The cloud whose notices count.
    pub provider: ComputeProvider,
    /// The address of its metadata service, if not the usual one: `http://host[:port]`.
    pub endpoint: Option<String>,
    /// How often AWS is polled, in milliseconds; Azure at least every second. GCP answers when something changes.
    pub poll_ms: u64,
}

impl Default for ComputeConfig {
    fn default() -> Self {
        Self { provider: ComputeProvider::default(), endpoint: None, poll_ms: 5000 }
    }
}

impl ComputeConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        if let Some(endpoint) = &self.endpoint {
            let usable = reqwest::Url::parse(endpoint)
                .is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
            if !usable {
                let reason = format!("{endpoint:?} is not http://host or http://host:port");
                return Err(ConfigError::Invalid { key: "compute.endpoint", reason });
            }
        }
        if !(100..=30_000).contains(&self.poll_ms) {
            let reason = format!("{} is not in 100 to 30000", self.poll_ms);
            return Err(ConfigError::Invalid { key: "compute.poll_ms", reason });
        }
        Ok(())
    }
}
