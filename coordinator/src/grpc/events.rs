//! `Events`: the events that this member has applied. Any member answers, not only the leader.
//!
//! *Invariant:* a reader holds no more than one page and a few messages here: it reads from the ring at its own pace.
//! If it falls behind the ring, or takes nothing for long, the member ends the stream with that reason, and the reader
//! continues elsewhere or later. Every message says where to continue.

use super::{Shared, caller, check_namespace};
use crate::grpc::event_out::Filter;
use crate::grpc::revoked_certificates;
use crate::leader::fair_room::{FairRoom, Permit};
use rollout_proto::{ErrorCode, Role, RpcError, v1};
use rollout_raft::{Compacted, EventPosition, EventRecord};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

/// The most readers of one member.
const READERS_MAX: usize = 256;
/// Events read for one message.
const PAGE_EVENTS: usize = 512;
/// Messages that wait for a slow reader.
const STREAM_AHEAD: usize = 4;
/// A reader that takes nothing for this long is disconnected.
const STALLED_AFTER: Duration = Duration::from_secs(30);
/// How often a reader without new events hears how far this member is.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// Events that occur within this time share a message.
const MERGE: Duration = Duration::from_millis(5);

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
        let Some(applied) = node.watch_events() else {
            let message = "this member belongs to no cluster yet";
            return Err(RpcError::new(ErrorCode::NotBootstrapped, message).into());
        };
        let Some(permit) = self.room.take(&identity) else {
            let message = format!(
                "this member has {READERS_MAX} readers of events already, or three quarters of that from {identity}: try again later"
            );
            return Err(RpcError::new(ErrorCode::Overloaded, message).into());
        };
        let (oldest, end) = node.event_bounds();
        let from = match r.start() {
            v1::EventStart::At => EventPosition { index: r.from_index, position: r.from_position },
            v1::EventStart::Now => EventPosition { index: end, position: 0 },
            v1::EventStart::Oldest => EventPosition { index: oldest, position: 0 },
            v1::EventStart::Unspecified => {
                return Err(crate::grpc::convert::invalid("the start position is missing").into());
            }
        };
        let (out, stream) = mpsc::channel(STREAM_AHEAD);
        let reader = Reader {
            shared: self.shared.clone(),
            filter,
            from,
            not_before: Some(r.not_before_wall_ms).filter(|wall_ms| *wall_ms > 0),
            until: (!r.follow).then_some(end),
            _permit: permit,
        };
        tokio::spawn(reader.run(applied, out));
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// One stream.
struct Reader {
    shared: Arc<Shared>,
    filter: Filter,
    from: EventPosition,
    /// No event is sent until one is at least this recent.
    not_before: Option<u64>,
    /// Where to end; `None` for a reader that follows.
    until: Option<u64>,
    _permit: Permit,
}

impl Reader {
    async fn run(mut self, mut applied: watch::Receiver<u64>, out: mpsc::Sender<Batch>) {
        let mut sent_at: Option<Instant> = None;
        loop {
            applied.mark_unchanged();
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
            let silent = sent_at.is_none_or(|at| at.elapsed() >= TELL_EVERY);
            if !events.is_empty() || ends || silent {
                if !self.send(events, &out).await {
                    return;
                }
                sent_at = Some(Instant::now());
            }
            if ends {
                return;
            }
            if more {
                // A page that is filtered out does not wait at the channel.
                tokio::task::yield_now().await;
                continue;
            }
            tokio::select! {
                changed = applied.changed() => match changed {
                    Ok(()) => tokio::time::sleep(MERGE).await,
                    Err(_) => return,
                },
                () = tokio::time::sleep(TELL_EVERY) => {}
                () = out.closed() => return,
            }
        }
    }

    /// The next events for this reader, and whether there are more to read.
    fn page(&mut self) -> Result<(Vec<v1::Event>, bool), Compacted> {
        let page = self.shared.node.events(self.from, PAGE_EVENTS)?;
        self.from = page.next;
        let records = late_enough(&page.records, &mut self.not_before);
        Ok((records.iter().filter_map(|r| self.filter.pass(r)).collect(), page.more))
    }

    /// Returns false if the stream is over.
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
                    "the reader took nothing for {STALLED_AFTER:?}; it may continue from its position"
                );
                // In case the reader does read the rest.
                let error = RpcError::new(ErrorCode::Overloaded, message);
                let last = out.send(Err(error.into()));
                let _ = tokio::time::timeout(STALLED_AFTER, last).await;
                false
            }
        }
    }
}

/// The events from the first one on that is recent enough. After that, `not_before` is cleared, and all following
/// events count.
fn late_enough<'a>(
    records: &'a [Arc<EventRecord>],
    not_before: &mut Option<u64>,
) -> &'a [Arc<EventRecord>] {
    let Some(wall_ms) = *not_before else { return records };
    let Some(first) = records.iter().position(|r| r.event.wall_ms >= wall_ms) else { return &[] };
    *not_before = None;
    &records[first..]
}

fn compacted_out(Compacted { oldest }: Compacted) -> RpcError {
    let message = format!("this member holds events from index {oldest} on");
    RpcError::new(ErrorCode::Compacted, message).with_oldest(oldest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::CoordEpoch;
    use rollout_ledger::{Event, EventKind};

    fn records(walls: &[u64]) -> Vec<Arc<EventRecord>> {
        let record = |wall_ms: &u64| {
            let kind = EventKind::EpochOpened { epoch: CoordEpoch(1) };
            let event = Event { index: 1, position: 0, wall_ms: *wall_ms, kind };
            Arc::new(EventRecord { event, worker: None, victim: None, run: None })
        };
        walls.iter().map(record).collect()
    }

    #[test]
    fn events_before_the_first_recent_one_are_skipped_and_no_later_ones() {
        let mut not_before = Some(100);
        let mut sent = Vec::new();
        for page in [&[1, 99][..], &[50, 100, 98], &[97, 200]] {
            let page = records(page);
            sent.extend(late_enough(&page, &mut not_before).iter().map(|r| r.event.wall_ms));
        }
        assert_eq!(sent, [100, 98, 97, 200]);
        // An older client's request has no such time.
        assert_eq!(late_enough(&records(&[1]), &mut None).len(), 1);
    }
}
