//! Owns: reading events from any member that answers, across members that die.
//!
//! Invariant: each event once and in order: a stream that breaks or falls silent is opened again, at the next member,
//! exactly where it stopped. The reader gets an error that the position is gone only if no member that answers holds
//! it.
//! Absent: what events mean.

use std::collections::BTreeMap;
use std::time::Duration;

use rollout_proto::{Client, ClientError, ErrorCode, MemberRef, services, v1};
use tonic::{Status, Streaming};

use crate::leader_stream::IdleTimeout;

/// Members report their position every second, so after this silence another one is asked.
const SILENCE: Duration = Duration::from_secs(4);
/// The limit for one member to open a stream.
const OPEN_LIMIT: Duration = Duration::from_secs(3);
/// How long unreachable members have to come back while others refuse the caller's certificate.
const REFUSED_AFTER: Duration = Duration::from_secs(3);
/// The pause between two rounds over all members.
const PAUSE: Duration = Duration::from_millis(100);

/// A position among the events: index and position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct LogPosition {
    pub index: u64,
    pub position: u32,
}

impl std::fmt::Display for LogPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.index, self.position)
    }
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// At this position.
    At(LogPosition),
    /// After all past events.
    Now,
    /// At the oldest event that a member holds.
    Oldest,
}

/// What a reader receives.
#[derive(Debug)]
pub enum StreamItem {
    /// These events happened; empty if none matched since the last time.
    Events(Vec<v1::Event>),
    /// The position is gone at every member that answers.
    Compacted {
        /// The oldest index that one of them holds.
        oldest: u64,
    },
    /// All events that had happened when the reading began were read.
    End,
}

/// A stream of events that is being read.
pub struct EventStream {
    client: Client,
    filter: v1::EventFilter,
    follow: bool,
    start: Start,
    /// Members omit everything before the first event of this wall time; 0 from that event on. Members of an older
    /// build send it anyway.
    not_before_ms: u64,
    open: Option<(MemberRef, Streaming<v1::WatchEventsResponse>)>,
    /// Counts the members asked, so that they take turns.
    turn: usize,
    /// The oldest index at each member that no longer holds the position.
    gone: BTreeMap<String, u64>,
    idle_timeout: IdleTimeout,
}

impl EventStream {
    pub fn new(client: &Client, filter: v1::EventFilter, follow: bool, start: Start) -> Self {
        Self {
            client: client.clone(),
            filter,
            follow,
            start,
            not_before_ms: 0,
            open: None,
            turn: 0,
            gone: BTreeMap::new(),
            idle_timeout: IdleTimeout::new(client, "watch events"),
        }
    }

    /// Omits events older than this, in milliseconds since 1970.
    pub fn not_before(mut self, wall_ms: u64) -> Self {
        self.not_before_ms = wall_ms;
        self
    }

    /// The position of the next event, once it is known.
    pub fn position(&self) -> Option<LogPosition> {
        match self.start {
            Start::At(position) => Some(position),
            Start::Now | Start::Oldest => None,
        }
    }

    /// Continues at another position.
    pub fn resume_at(&mut self, position: LogPosition) {
        (self.start, self.open) = (Start::At(position), None);
        self.gone.clear();
    }

    /// The next message. It is cancel-safe.
    pub async fn next(&mut self) -> Result<StreamItem, ClientError> {
        loop {
            let Some((member, stream)) = &mut self.open else {
                if let Some(oldest) = self.open_somewhere().await? {
                    return Ok(StreamItem::Compacted { oldest });
                }
                continue;
            };
            let member = member.clone();
            match tokio::time::timeout(SILENCE, stream.message()).await {
                Ok(Ok(Some(message))) => {
                    if let Some(events) = self.take(message) {
                        return Ok(StreamItem::Events(events));
                    }
                }
                Ok(Ok(None)) if !self.follow && self.position().is_some() => {
                    return Ok(StreamItem::End);
                }
                Ok(Err(status)) => {
                    self.open = None;
                    self.judge(&member, &status)?;
                }
                // It ended or is silent: the next member has the same events.
                Ok(Ok(None)) | Err(_) => self.open = None,
            }
        }
    }

    /// The events of a message; None if the message must be ignored.
    fn take(&mut self, message: v1::WatchEventsResponse) -> Option<Vec<v1::Event>> {
        if message.header.as_ref().is_some_and(|header| self.client.observe_any(header).is_err()) {
            self.open = None;
            return None;
        }
        let from = self.position().unwrap_or_default();
        let next = LogPosition { index: message.next_index, position: message.next_position };
        self.start = Start::At(next.max(from));
        self.gone.clear();
        self.idle_timeout.renew();
        let position =
            |event: &v1::Event| LogPosition { index: event.index, position: event.position };
        let events: Vec<v1::Event> =
            message.events.into_iter().filter(|event| position(event) >= from).collect();
        if events.iter().any(|event| event.wall_ms >= self.not_before_ms) {
            self.not_before_ms = 0;
        }
        Some(events)
    }

    /// Opens a stream at the next member that answers. Some: the position is gone at all of them.
    async fn open_somewhere(&mut self) -> Result<Option<u64>, ClientError> {
        if self.client.members().is_empty() {
            // Any member that answers lists all members.
            self.client.leader_channel().await?;
        }
        let members = self.client.member_channels()?;
        let (mut answered, mut silent, mut refusal) = (0, 0, None);
        let mut refused = 0;
        for _ in 0..members.len() {
            let (member, channel) = &members[self.turn % members.len()];
            self.turn += 1;
            if self.gone.contains_key(&member.addr) {
                answered += 1;
                continue;
            }
            let mut service = services::events(channel.clone());
            match tokio::time::timeout(OPEN_LIMIT, service.watch_events(self.request())).await {
                Ok(Ok(stream)) => {
                    self.open = Some((member.clone(), stream.into_inner()));
                    return Ok(None);
                }
                Ok(Err(status)) => match self.judge(member, &status)? {
                    Some(ClientError::Connect(error)) if error.permanent => {
                        refused += 1;
                        refusal = Some(ClientError::Connect(error));
                    }
                    Some(_) => silent += 1,
                    None => {}
                },
                Err(_) => silent += 1,
            }
        }
        // Waiting does not fix a certificate; unreachable members have a moment to come back.
        if let Some(refusal) = refusal
            && refused + silent == members.len()
            && (silent == 0 || self.idle_timeout.waited() >= REFUSED_AFTER)
        {
            return Err(refusal);
        }
        if answered > 0
            && let Some(oldest) = self.gone.values().min()
        {
            return Ok(Some(*oldest));
        }
        self.idle_timeout.check()?;
        tokio::time::sleep(PAUSE).await;
        Ok(None)
    }

    fn request(&self) -> v1::WatchEventsRequest {
        let position = self.position().unwrap_or_default();
        let start = match self.start {
            Start::At(_) => v1::EventStart::At,
            Start::Now => v1::EventStart::Now,
            Start::Oldest => v1::EventStart::Oldest,
        };
        v1::WatchEventsRequest {
            start: start.into(),
            from_index: position.index,
            from_position: position.position,
            follow: self.follow,
            filter: Some(self.filter.clone()),
            not_before_wall_ms: self.not_before_ms,
        }
    }

    /// An error if no other member would answer differently. Some: there was no connection, for this reason.
    fn judge(
        &mut self,
        member: &MemberRef,
        status: &Status,
    ) -> Result<Option<ClientError>, ClientError> {
        match ClientError::of_member(status, member) {
            revoked if revoked.is_revoked() => Err(revoked),
            failed @ ClientError::Connect(_) => Ok(Some(failed)),
            ClientError::Rpc(error) if error.code == ErrorCode::Compacted => {
                self.gone.insert(member.addr.clone(), error.oldest_index);
                Ok(None)
            }
            ClientError::Rpc(error) if !error.retryable => Err(error.into()),
            ClientError::Rpc(error) if error.code == ErrorCode::ConnectFailed => {
                Ok(Some(error.into()))
            }
            _ => Ok(None),
        }
    }
}
