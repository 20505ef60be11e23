//! Owns: connections to other members, shared by all callers that need one to the same place for the same purpose.
//!
//! Invariant: pings detect a dead connection within seconds, so a healed partition is used at once.
//! Absent: names and certificates; `rollout-proto` decides how a connection is secured.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use rollout_proto::v1::HelloRequest;
use rollout_proto::v1::peer_client::PeerClient;
use rollout_proto::{ChannelOptions, ClientTls, DialMap, Endpoint, TlsError, channel};
use tonic::transport::Channel;

use super::MESSAGE_BYTES_MAX;
use crate::config::RaftConfig;
use crate::member::MemberRecord;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Lane {
    /// Log entries and votes.
    Log,
    /// Heartbeats alone.
    Heartbeat,
    /// Snapshots alone.
    Snapshot,
    /// Questions while a cluster is formed or changed.
    Control,
}

/// Within these times members detect a dead connection, so that a healed partition is used at once.
const KEEPALIVE_INTERVAL: Duration = Duration::from_millis(1000);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_millis(1500);

/// An address that cannot be dialed.
#[derive(Debug, thiserror::Error)]
#[error("{addr}: {why}")]
pub(crate) struct DialError {
    addr: String,
    why: String,
}

/// Makes connections and keeps them.
pub(crate) struct Dialer {
    map: DialMap,
    tls: ClientTls,
    options: ChannelOptions,
    answer_limit: Duration,
    /// Channels by name, address and purpose. There are few members, and an unused channel costs only an idle entry.
    channels: Mutex<HashMap<(String, String, Lane), Channel>>,
}

impl Dialer {
    pub(crate) fn new(config: &RaftConfig) -> Result<Self, TlsError> {
        Ok(Self {
            map: config.dial_map.clone(),
            tls: ClientTls::refusing(&config.security, config.revocations.clone())?,
            options: ChannelOptions {
                connect_timeout: config.connect_limit(),
                handshake_timeout: config.connect_limit(),
                keepalive_interval: KEEPALIVE_INTERVAL,
                keepalive_timeout: KEEPALIVE_TIMEOUT,
                // Members connect again within an election, and share one setting of TLS.
                recognize_tls: false,
            },
            answer_limit: config.answer_limit(),
            channels: Mutex::default(),
        })
    }

    /// Time limit for opening a connection.
    pub(crate) fn connect_limit(&self) -> Duration {
        self.options.connect_timeout
    }

    /// How long the answer to a heartbeat may take, and so the answer to a vote; see [`RaftConfig::answer_limit`].
    pub(crate) fn answer_limit(&self) -> Duration {
        self.answer_limit
    }

    /// A client for `member`. Connects when it is first used, and again after a failure.
    pub(crate) fn client(
        &self,
        member: &MemberRecord,
        lane: Lane,
    ) -> Result<PeerClient<Channel>, DialError> {
        let channel = self.channel(member, lane)?;
        Ok(PeerClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX))
    }

    fn channel(&self, member: &MemberRecord, lane: Lane) -> Result<Channel, DialError> {
        let key = (member.name.clone(), member.peer_addr.clone(), lane);
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(&key) {
            return Ok(channel.clone());
        }
        let failed = |why: String| DialError { addr: member.peer_addr.clone(), why };
        let endpoint = Endpoint::with_name(&member.name, &member.peer_addr)
            .map_err(|error| failed(error.to_string()))?;
        let channel = channel(&endpoint, &self.tls, &self.map, &self.options)
            .map_err(|error| failed(error.to_string()))?;
        channels.insert(key, channel.clone());
        Ok(channel)
    }

    /// Opens the connections for votes in advance. Failures show when votes are requested.
    pub(crate) async fn warm(&self, members: Vec<MemberRecord>) {
        let greetings = members.iter().filter_map(|member| {
            let mut client = self.client(member, Lane::Log).ok()?;
            Some(async move { drop(client.hello(HelloRequest::default()).await) })
        });
        drop(
            tokio::time::timeout(self.connect_limit(), futures::future::join_all(greetings)).await,
        );
    }
}
