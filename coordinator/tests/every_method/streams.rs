//! The streams of a worker: the newest is served, and an older one ends.

use crate::fixture::registration;
use crate::member::Member;
use rollout_proto::{ErrorCode, RpcError, v1};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use v1::leader_message::Kind as Down;
use v1::worker_client::WorkerClient;
use v1::worker_message::Kind as Up;

/// For an answer of an otherwise idle member.
const PATIENCE: Duration = Duration::from_secs(60);

struct Stream {
    session: u64,
    epoch: u64,
    out: mpsc::Sender<v1::WorkerMessage>,
    answers: Streaming<v1::LeaderMessage>,
}

impl Stream {
    /// Opens a stream on a connection of its own.
    async fn open(member: &Member, session: u64) -> Self {
        let (out, queue) = mpsc::channel(4);
        let mut client = WorkerClient::new(member.channel());
        let opened = client.work(ReceiverStream::new(queue)).await.expect("a stream");
        let mut answers = opened.into_inner();
        let welcome = answers.message().await.expect("a welcome").expect("a welcome");
        let epoch = welcome.header.expect("a header").coord_epoch;
        Self { session, epoch, out, answers }
    }

    /// Sends a heartbeat, and waits for the answer or for the reason of the stream's end.
    async fn beat(&mut self) -> Result<(), RpcError> {
        let kind = Some(Up::Heartbeat(v1::Heartbeat { seq: 1, ..Default::default() }));
        let (session, coord_epoch) = (self.session, self.epoch);
        // On a stream that has ended, the answers say why.
        let _ = self.out.send(v1::WorkerMessage { session, coord_epoch, kind, instance: 5 }).await;
        loop {
            let answer = tokio::time::timeout(PATIENCE, self.answers.message()).await;
            match answer.expect("in time") {
                Ok(Some(message)) if matches!(message.kind, Some(Down::Heartbeat(_))) => {
                    return Ok(());
                }
                Ok(Some(_)) => {}
                Ok(None) => panic!("it ended without a reason"),
                Err(status) => return Err(RpcError::from_status(&status)),
            }
        }
    }
}

async fn register(member: &Member, name: &str) -> u64 {
    let mut client = WorkerClient::new(member.channel());
    let answer = client.register(registration(name)).await.expect("registered");
    answer.into_inner().session
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_opens_another_stream_ends_its_older_one() {
    let member = Member::leading().await;
    let session = register(&member, "w1").await;
    let mut older = Stream::open(&member, session).await;
    let mut other = Stream::open(&member, register(&member, "w2").await).await;
    assert_eq!((older.beat().await, other.beat().await), (Ok(()), Ok(())));
    let mut newer = Stream::open(&member, session).await;
    assert_eq!(older.beat().await, Ok(()), "the newer one has not named its worker yet");
    assert_eq!(newer.beat().await, Ok(()));
    let ended = older.beat().await.expect_err("it is closed");
    assert_eq!(ended.code, ErrorCode::ConnectFailed, "{ended}");
    assert!(ended.message.contains("worker default/w1 has opened another stream"), "{ended}");
    assert_eq!((newer.beat().await, other.beat().await), (Ok(()), Ok(())));
}
