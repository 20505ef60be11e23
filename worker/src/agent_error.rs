//! Owns: why an agent ends other than by a drain.
//!
//! Absent: the exit status, which the program chooses.

/// Why an agent ends other than by a drain.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The configuration, the directory, an engine or a certificate cannot be used.
    #[error("{0:#}")]
    Start(anyhow::Error),
    /// The local disk failed or is full, so finished rows may be lost.
    #[error("the local disk failed: {0}; rows that the leader has not answered for run again")]
    Disk(String),
    /// The cluster is not the one that this worker belongs to, or does not support its version.
    #[error("{0}")]
    Cluster(String),
    /// The cluster was restored from a snapshot and does not know this worker, so the rows that it held are void. The
    /// worker has forgotten the old cluster; after a restart it registers as a new worker.
    #[error("{0}; this worker has forgotten it, and registers as a new worker after a restart")]
    Restored(String),
    /// The leader refused to register this worker for as long as the configuration allows.
    #[error("registration refused for {refused_ms} ms, which an operator must fix: {reason}")]
    Refused {
        /// How long the worker retried.
        refused_ms: u64,
        /// The leader's last reason.
        reason: String,
    },
    /// A bug in the agent itself.
    #[error("the agent failed: {0}")]
    Internal(&'static str),
}
