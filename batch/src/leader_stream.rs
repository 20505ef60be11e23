//! Owns: reading a stream that only the leader serves.
//!
//! Invariant: a stream that breaks, ends or falls silent while another member leads is over, and the caller opens it
//! again at the new leader. A refusal is an error only if no member would answer differently.
//! Absent: where to continue; each caller knows what it has.

use std::time::{Duration, Instant};

use rollout_proto::{Client, ClientError, MemberRef, RpcError, v1};
use tonic::Streaming;

/// Silence after which other members are asked who leads.
const SILENCE: Duration = Duration::from_secs(2);
/// The pause before a stream is reopened.
const PAUSE: Duration = Duration::from_millis(20);

/// A stream, and the member that sends it.
pub struct LeaderStream<T> {
    client: Client,
    leader: Option<MemberRef>,
    stream: Streaming<T>,
}

impl<T> LeaderStream<T> {
    /// `stream` was just opened with `client`.
    pub fn new(client: &Client, stream: Streaming<T>) -> Self {
        Self { client: client.clone(), leader: client.leader(), stream }
    }

    /// The next valid message; None when the stream is over.
    pub async fn next(
        &mut self,
        header: impl Fn(&T) -> Option<&v1::ClusterHeader>,
    ) -> Result<Option<T>, ClientError> {
        let moved = async {
            tokio::time::sleep(SILENCE).await;
            match &self.leader {
                Some(leader) => self.client.other_leader(leader).await,
                None => std::future::pending().await,
            }
        };
        let message = tokio::select! {
            biased;
            message = self.stream.message() => message,
            _ = moved => return Ok(None),
        };
        let message = match message {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(None),
            Err(status) => {
                let error = RpcError::from_status(&status);
                return if error.retryable { Ok(None) } else { Err(error.into()) };
            }
        };
        let believed = header(&message).is_none_or(|header| self.client.observe(header).is_ok());
        Ok(believed.then_some(message))
    }

    /// Makes the next call search for the leader again.
    pub async fn abandon(self) {
        if let Some(leader) = &self.leader {
            self.client.leader_failed(&leader.addr);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Gives up on streams that open and never deliver anything.
pub struct IdleTimeout {
    client: Client,
    what: &'static str,
    since: Instant,
}

impl IdleTimeout {
    pub fn new(client: &Client, what: &'static str) -> Self {
        Self { client: client.clone(), what, since: Instant::now() }
    }

    /// Something arrived.
    pub fn renew(&mut self) {
        self.since = Instant::now();
    }

    /// How long nothing has arrived.
    pub fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// An error once nothing has arrived for the client's timeout.
    pub fn check(&self) -> Result<(), ClientError> {
        let waited = self.waited();
        if waited < self.client.config().timeout {
            return Ok(());
        }
        let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
        Err(ClientError::NoLeader { what: self.what, waited_ms, tried: Vec::new() })
    }
}
