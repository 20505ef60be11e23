//! Tests against a peer that answers on request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::stream;
use parking_lot::RwLock;
use rollout_proto::fakes::peer_server::{Peer, PeerServer};
use rollout_proto::{DialMap, Security};
use tokio::sync::Semaphore;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response};

use super::*;
use crate::codec::{decode_append, encode_append_result};
use crate::config::RaftConfig;
use crate::member::MemberRecord;
use crate::peer::dial::{Dialer, Lane};
use crate::peer::followers::Followers;
use crate::peer::handovers::Handovers;
use crate::types::{Vote, log_id};

const LATE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(30);
const ME: u64 = 1;
const PEER: u64 = 2;

/// The permitted behavior of the peer.
#[derive(Clone)]
struct Permits {
    /// Streams that may be opened, and answers that may be given.
    open: Arc<Semaphore>,
    answer: Arc<Semaphore>,
    /// Streams that were asked for.
    streams: Arc<AtomicU32>,
}

struct Slow(Permits);

type Frames = Pin<Box<dyn Stream<Item = Result<PeerMessage, Status>> + Send>>;

#[tonic::async_trait]
impl Peer for Slow {
    async fn append(
        &self,
        request: Request<Streaming<PeerMessage>>,
    ) -> Result<Response<Frames>, Status> {
        self.0.streams.fetch_add(1, Ordering::SeqCst);
        self.0.open.acquire().await.expect("never closed").forget();
        let told = self.0.clone();
        // Each heartbeat is answered with the index that it says is committed.
        let answers = stream::unfold((request.into_inner(), told), async |(mut asked, told)| {
            let message = asked.message().await.ok()??;
            let request = decode_append(message.payload).expect("a heartbeat");
            told.answer.acquire().await.expect("never closed").forget();
            let payload = encode_append_result(&Ok(request.leader_commit)).into();
            let cluster_id = message.cluster_id;
            let answer =
                PeerMessage { cluster_id, from: PEER, to: ME, payload, ..Default::default() };
            Some((Ok(answer), (asked, told)))
        });
        Ok(Response::new(Box::pin(answers)))
    }
}

struct Heartbeats {
    context: PeerContext,
    member: MemberRecord,
    kept: Option<BeatStream>,
    told: Permits,
}

impl Heartbeats {
    async fn to_a_slow_peer(opens: usize) -> Self {
        let told = Permits {
            open: Arc::new(Semaphore::new(opens)),
            answer: Arc::new(Semaphore::new(0)),
            streams: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let peer_addr = listener.local_addr().expect("its address").to_string();
        let serving = tonic::transport::Server::builder()
            .add_service(PeerServer::new(Slow(told.clone())))
            .serve_with_incoming(TcpListenerStream::new(listener));
        tokio::spawn(serving);
        let plain = Security::InsecurePlaintext;
        let config = RaftConfig::new("/nowhere", "a", DialMap::default(), plain);
        let context = PeerContext {
            cluster_text: "cluster".to_owned(),
            me: ME,
            dialer: Arc::new(Dialer::new(&config).expect("no certificates")),
            member_records: RwLock::default(),
            promise_ms: 0,
            followers: Followers::default(),
            handovers: Handovers::default(),
        };
        let member = MemberRecord { name: "b".to_owned(), peer_addr, ..MemberRecord::default() };
        Self { context, member, kept: None, told }
    }

    /// The answer to the heartbeat with this index within the time; `None` if there is none.
    async fn beat(&mut self, index: u64, within: Duration) -> Option<u64> {
        let client = self.context.dialer.client(&self.member, Lane::Heartbeat).expect("an address");
        let request = AppendEntriesRequest::<Types> {
            vote: Vote::new_committed(1, ME),
            prev_log_id: None,
            leader_commit: Some(log_id(1, index)),
            entries: vec![],
        };
        let one = stream::iter([request]);
        let beat = BeatStream::beat(&mut self.kept, &self.context, PEER, client, one);
        let answer = tokio::time::timeout(within, beat).await.ok()?;
        Some(
            answer
                .expect("an answer")
                .expect("to one heartbeat")
                .expect("that it accepts")
                .map_or(0, |id| id.index()),
        )
    }
}

#[tokio::test]
async fn an_answer_counts_for_its_own_heartbeat_alone() {
    let mut heartbeats = Heartbeats::to_a_slow_peer(1).await;
    assert_eq!(heartbeats.beat(1, LATE).await, None);
    assert_eq!(heartbeats.beat(2, LATE).await, None);
    // The answers to both have come when the next one is sent, and must not count for it.
    heartbeats.told.answer.add_permits(2);
    assert_eq!(heartbeats.beat(3, LATE).await, None);
    heartbeats.told.answer.add_permits(2);
    assert_eq!(heartbeats.beat(4, LIMIT).await, Some(4));
    assert_eq!(heartbeats.told.streams.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_stream_that_takes_longer_to_open_than_a_heartbeat_may_is_opened_once() {
    let mut heartbeats = Heartbeats::to_a_slow_peer(0).await;
    for index in 1..4 {
        assert_eq!(heartbeats.beat(index, LATE).await, None);
    }
    heartbeats.told.open.add_permits(1);
    heartbeats.told.answer.add_permits(4);
    assert_eq!(heartbeats.beat(4, LIMIT).await, Some(4));
    assert_eq!(heartbeats.told.streams.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_stream_that_answers_nothing_is_replaced() {
    let mut heartbeats = Heartbeats::to_a_slow_peer(2).await;
    for index in 0..UNANSWERED_MAX {
        assert_eq!(heartbeats.beat(index, Duration::from_millis(10)).await, None);
    }
    heartbeats.told.answer.add_permits(1 + UNANSWERED_MAX as usize);
    assert_eq!(heartbeats.beat(99, LIMIT).await, Some(99));
    assert_eq!(heartbeats.told.streams.load(Ordering::SeqCst), 2);
}
