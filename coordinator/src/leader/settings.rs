//! Settings of what a member does while it leads.
//!
//! Absent: which values are refused together (`config`).

use serde::Deserialize;
use std::path::PathBuf;

/// Timings of workers' sessions.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Workers {
    /// Interval between a worker's heartbeats.
    pub heartbeat_ms: u64,
    /// Time without contact to the leader after which a worker stops starting new rows.
    pub self_fence_ms: u64,
    /// Silence of a worker after which its unstarted rows go to others.
    pub failure_ms: u64,
    /// How much longer a silent worker keeps the rows that it has started.
    pub started_grace_ms: u64,
}

impl Default for Workers {
    fn default() -> Self {
        Self { heartbeat_ms: 500, self_fence_ms: 4000, failure_ms: 5000, started_grace_ms: 60_000 }
    }
}

/// Completion webhooks of runs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WebhookSettings {
    /// The secret with which notifications are signed: `whsec_` and base64, or text.
    pub secret_file: Option<PathBuf>,
    /// Origins that runs may name, such as `https://hooks.example.com`. Empty: no notifications are sent.
    pub allow: Vec<String>,
}
