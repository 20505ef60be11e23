//! `Events`: what happened, from what this member has applied, whoever leads.
//!
//! *Invariant:* a reader holds no more than one page and a few messages here: it reads from the
//! ring at its own pace, and where it falls behind the ring, or takes nothing for long, it is told
//! so and goes on elsewhere or later. Every message says where to go on.

use super::{Shared, caller, check_namespace};
use crate::event_out::Filter;
use crate::fair_room::{FairRoom, Place};
use crate::revoked_certificates;
use rollout_proto::{ErrorCode, Role, RpcError, v1};
use rollout_raft::{Compacted, EventPosition};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// Readers at one member.
const READERS_MAX: usize = 256;
/// Events looked at for one message.
const PAGE_EVENTS: usize = 512;
/// Messages that wait for a slow reader.
const STREAM_AHEAD: usize = 4;
/// A reader that takes nothing for so long is let go.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// How often a reader hears how far this member is, when there is nothing for it.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Events that come close together travel together.
const MERGE: Duration = Duration::from_millis(5);

/// The service.
#[derive(Clone)]
pub(crate) struct EventsService {
    shared: Arc<Shared>,
    room: FairRoom,
}

type Batch = Result<v1::WatchEventsResponse, Status>;

impl EventsService {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, room: FairRoom::new(READERS_MAX) }
    }
}

#[tonic::async_trait]
impl v1::events_server::Events for EventsService {
    type WatchEventsStream = Pin<Box<dyn Stream<Item = Batch> + Send>>;

    async fn watch_events(
        &self,
        request: Request<v1::WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let wanted = r.filter.clone().unwrap_or_default();
        if !wanted.namespace.is_empty() {
            check_namespace(&identity, &wanted.namespace)?;
        }
        let filter = Filter::new(&identity, wanted)?;
        let reads_the_past =
            !r.follow && (identity.acts_as(Role::Admin) || identity.role == Role::Member);
        if !reads_the_past {
            revoked_certificates::check_contact(&self.shared)?;
        }
        let node = &self.shared.node;
        let Some(told) = node.events_told() else {
            let message = "this member belongs to no cluster yet";
            return Err(RpcError::new(ErrorCode::NotBootstrapped, message).into());
        };
        let Some(place) = self.room.take(&identity) else {
            let message = format!(
                "{READERS_MAX} readers follow this member's events already, or three quarters of that are {identity}"
            );
            return Err(RpcError::new(ErrorCode::Overloaded, message).into());
        };
        let (oldest, end) = node.event_bounds();
        let from = match r.start() {
            v1::EventStart::At => EventPosition { index: r.from_index, position: r.from_position },
            v1::EventStart::Now => EventPosition { index: end, position: 0 },
            v1::EventStart::Oldest => EventPosition { index: oldest, position: 0 },
            v1::EventStart::Unspecified => {
                return Err(crate::convert::invalid("where to start is missing").into());
            }
        };
        let (out, stream) = mpsc::channel(STREAM_AHEAD);
        let reader = Reader {
            shared: self.shared.clone(),
            filter,
            from,
            until: (!r.follow).then_some(end),
            _place: place,
        };
        tokio::spawn(reader.run(told, out));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// One stream.
struct Reader {
    shared: Arc<Shared>,
    filter: Filter,
    from: EventPosition,
    /// Where to end; never, for one that follows.
    until: Option<u64>,
    _place: Place,
}

impl Reader {
    async fn run(mut self, mut told: watch::Receiver<u64>, out: mpsc::Sender<Batch>) {
        let mut said: Option<Instant> = None;
        loop {
            told.mark_unchanged();
            if self.until.is_none()
                && let Err(error) = revoked_certificates::check_contact(&self.shared)
            {
                let _ = tokio::time::timeout(STALLED_AFTER, out.send(Err(error.into()))).await;
                return;
            }
            let (events, more) = match self.page() {
                Ok(page) => page,
                Err(compacted) => {
                    let _ = out.send(Err(compacted_out(compacted).into())).await;
                    return;
                }
            };
            let ends = !more && self.until.is_some_and(|end| self.from.index >= end);
            let silent = said.is_none_or(|at| at.elapsed() >= TELL_EVERY);
            if !events.is_empty() || ends || silent {
                if !self.send(events, &out).await {
                    return;
                }
                said = Some(Instant::now());
            }
            if ends {
                return;
            }
            if more {
                continue;
            }
            tokio::select! {
                changed = told.changed() => match changed {
                    Ok(()) => tokio::time::sleep(MERGE).await,
                    Err(_) => return,
                },
                () = tokio::time::sleep(TELL_EVERY) => {}
                () = out.closed() => return,
            }
        }
    }

    /// What is there for this reader, and whether there is more to look at.
    fn page(&mut self) -> Result<(Vec<v1::Event>, bool), Compacted> {
        let page = self.shared.node.events(self.from, PAGE_EVENTS)?;
        self.from = page.next;
        Ok((page.records.iter().filter_map(|r| self.filter.pass(r)).collect(), page.more))
    }

    /// False where the stream is over.
    async fn send(&self, events: Vec<v1::Event>, out: &mpsc::Sender<Batch>) -> bool {
        let message = v1::WatchEventsResponse {
            header: Some(self.shared.header()),
            member: self.shared.config.name.clone(),
            events,
            next_index: self.from.index,
            next_position: self.from.position,
            oldest_index: self.shared.node.event_bounds().0,
        };
        match tokio::time::timeout(STALLED_AFTER, out.send(Ok(message))).await {
            Ok(sent) => sent.is_ok(),
            Err(_) => {
                let message = format!(
                    "the reader took nothing for {STALLED_AFTER:?}; it may go on where it is"
                );
                // For the case that it reads what it was sent after all.
                let error = RpcError::new(ErrorCode::Overloaded, message);
                let last = out.send(Err(error.into()));
                let _ = tokio::time::timeout(STALLED_AFTER, last).await;
                false
            }
        }
    }
}

fn compacted_out(Compacted { oldest }: Compacted) -> RpcError {
    let message = format!("this member holds events from index {oldest} on");
    RpcError::new(ErrorCode::Compacted, message).with_oldest(oldest)
}
