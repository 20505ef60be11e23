//! Owns: the settings of the training job whose store an agent serves.
//!
//! Invariant: a port that other hosts can reach needs a flag that allows it.
//! Absent: the protocol; crate `rollout-gateway` has it.

use std::net::{Ipv4Addr, SocketAddr};

use serde::Deserialize;

use super::ConfigError;

/// A training job's store, for the torch processes of this host.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreGatewayConfig {
    /// The job; its namespace is the worker's.
    pub job: String,
    /// The round of its rendezvous; 0 for data that outlives rounds.
    pub round: u64,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Everyone who can connect may read and write the store, without TLS: other hosts, and all users of this one.
    pub insecure_tcpstore: bool,
    /// Users of this host that it serves besides the worker's own and root.
    pub allow_uids: Vec<u32>,
}

impl Default for StoreGatewayConfig {
    fn default() -> Self {
        // torchrun's own port.
        let listen = (Ipv4Addr::LOCALHOST, 29400).into();
        let (insecure_tcpstore, allow_uids) = (false, Vec::new());
        Self { job: String::new(), round: 0, listen, insecure_tcpstore, allow_uids }
    }
}

impl StoreGatewayConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let invalid = |key, reason: &str| Err(ConfigError::Invalid { key, reason: reason.into() });
        if self.job.is_empty() {
            return invalid("store_gateway.job", "name the job whose store it is");
        }
        if !self.listen.ip().is_loopback() && !self.insecure_tcpstore {
            return invalid(
                "store_gateway.listen",
                "TCPStore has no TLS: listen on 127.0.0.1, or set insecure_tcpstore = true",
            );
        }
        Ok(())
    }
}
