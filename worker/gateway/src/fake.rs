//! A fake leader that counts the requests to its store.
//!
//! Invariant: a key has no value until a client waits for it. From then on it has [`VALUE`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use bytes::Bytes;
use rollout_proto::fakes::{cluster_server, store_server};
use rollout_proto::{Client, ClientConfig, Security, v1};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};
use v1::store_answer::Kind;

pub(crate) const VALUE: &[u8] = b"v";
/// Calls of one connection at a time, as in a member.
const STREAMS_MAX: u32 = 200;

/// The requests that the store has received.
#[derive(Clone, Default)]
pub(crate) struct ReceivedRequests {
    reads: Arc<AtomicUsize>,
    waits: Arc<AtomicUsize>,
    holds: Arc<AtomicBool>,
}

impl ReceivedRequests {
    /// From now on, waits are not answered.
    pub(crate) fn hold_waits(&self) {
        self.holds.store(true, Ordering::SeqCst);
    }

    /// The number of reads and of waits.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.reads.load(Ordering::SeqCst), self.waits.load(Ordering::SeqCst))
    }
}

/// Starts a fake leader and a client of it.
pub(crate) async fn start() -> (Client, ReceivedRequests, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let received = ReceivedRequests::default();
    let member = Member { address, received: received.clone() };
    let serving = tokio::spawn(async move {
        let served = tonic::transport::Server::builder()
            .max_concurrent_streams(STREAMS_MAX)
            .add_service(cluster_server::ClusterServer::new(member.clone()))
            .add_service(store_server::StoreServer::new(member))
            .serve_with_incoming(TcpIncoming::from(listener));
        served.await.expect("it serves");
    });
    let config = ClientConfig::new(vec![address.to_string()], Security::InsecurePlaintext);
    (Client::new(config).expect("a client"), received, serving)
}

#[derive(Clone)]
struct Member {
    address: SocketAddr,
    received: ReceivedRequests,
}

impl Member {
    fn header(&self) -> Option<v1::ClusterHeader> {
        let member = v1::MemberInfo {
            name: "c1".into(),
            client_addr: self.address.to_string(),
            voter: true,
            ..Default::default()
        };
        let members =
            Some(v1::MemberList { version: 1, members: vec![member], leader: "c1".into() });
        let cluster_id = "a".repeat(32);
        Some(v1::ClusterHeader { cluster_id, coord_epoch: 1, members, ..Default::default() })
    }
}

fn value(kind: Kind) -> v1::StoreAnswer {
    v1::StoreAnswer { kind: Some(kind) }
}

#[tonic::async_trait]
impl store_server::Store for Member {
    async fn read(
        &self,
        request: Request<v1::StoreReadRequest>,
    ) -> Result<Response<v1::StoreReadResponse>, Status> {
        self.received.reads.fetch_add(1, Ordering::SeqCst);
        let there = self.received.waits.load(Ordering::SeqCst) > 0;
        let kind = || if there { Kind::Value(VALUE.into()) } else { Kind::Nothing(true) };
        let values: Vec<_> = request.into_inner().keys.iter().map(|_| value(kind())).collect();
        let answered = values.len() as u32;
        let header = self.header();
        Ok(Response::new(v1::StoreReadResponse { header, values, answered, ..Default::default() }))
    }

    async fn wait(
        &self,
        request: Request<v1::StoreWaitRequest>,
    ) -> Result<Response<v1::StoreWaitResponse>, Status> {
        self.received.waits.fetch_add(1, Ordering::SeqCst);
        if self.received.holds.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        let request = request.into_inner();
        let count = if request.values { request.awaited.len() } else { 0 };
        let values = vec![value(Kind::Value(Bytes::from_static(VALUE))); count];
        let seen = (0..request.awaited.len() as u32).collect();
        let header = self.header();
        Ok(Response::new(v1::StoreWaitResponse { header, ready: true, seen, values }))
    }
}

#[tonic::async_trait]
impl cluster_server::Cluster for Member {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let role = "leader".to_owned();
        let this = v1::MemberStatus { name: "c1".into(), role, term: 1, ..Default::default() };
        Ok(Response::new(v1::StatusResponse {
            header: self.header(),
            self_: Some(this),
            has_quorum: true,
            ..Default::default()
        }))
    }
}
