//! A fake member whose answers a test sets.
//!
//! *Invariant:* it decides nothing: every answer follows from [`MemberAnswers`].

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status};

use crate::error::RpcError;
use crate::fakes::{cluster_server, runs_server};
use crate::revocations::Revocations;
use crate::tls::{Security, ServerTls};
use crate::v1;

#[derive(Clone)]
pub(super) struct MemberAnswers {
    pub(super) cluster_id: String,
    pub(super) coord_epoch: u64,
    pub(super) term: u64,
    pub(super) leads: bool,
    pub(super) members: Option<v1::MemberList>,
    /// Never answers anything, like a stopped process.
    pub(super) hangs: bool,
    /// The error of every status request.
    pub(super) status_refused: Option<RpcError>,
    /// Errors for the next calls, in order; after them calls succeed.
    pub(super) refusals: Vec<RpcError>,
}

/// A running member. Dropping it cuts its connections and frees its port.
pub(super) struct Fake {
    pub(super) name: String,
    pub(super) addr: SocketAddr,
    pub(super) says: Arc<Mutex<MemberAnswers>>,
    /// The request ids that it received, in order.
    pub(super) request_ids: Arc<Mutex<Vec<v1::RequestId>>>,
    accepted: Arc<AtomicUsize>,
    runtime: Option<Runtime>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Waits until the port is closed, on a thread that may block.
            let limit = std::time::Duration::from_secs(10);
            let stopped = std::thread::spawn(move || runtime.shutdown_timeout(limit)).join();
            assert!(stopped.is_ok() || std::thread::panicking());
        }
    }
}

impl Fake {
    pub(super) fn start(name: &str) -> Fake {
        Fake::start_with(name, &Security::InsecurePlaintext)
    }

    pub(super) fn start_with(name: &str, security: &Security) -> Fake {
        Self::start_refusing(name, security, Revocations::default())
    }

    /// Refuses these certificates in the handshake.
    pub(super) fn start_refusing(
        name: &str,
        security: &Security,
        revocations: Revocations,
    ) -> Fake {
        // A runtime of its own, so that dropping the member cuts its connections like a kill.
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let addr = listener.local_addr().unwrap();
        let says = Arc::new(Mutex::new(MemberAnswers {
            cluster_id: "a".repeat(32),
            coord_epoch: 1,
            term: 1,
            leads: false,
            members: None,
            hangs: false,
            status_refused: None,
            refusals: Vec::new(),
        }));
        let request_ids = Arc::new(Mutex::new(Vec::new()));
        let service =
            Service { name: name.to_owned(), says: says.clone(), request_ids: request_ids.clone() };
        let tls = ServerTls::refusing(security, revocations).unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counted = accepted.clone();
        runtime.spawn(async move {
            let incoming = tls.incoming(TcpListener::from_std(listener).unwrap());
            let incoming = incoming.inspect(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
            });
            tonic::transport::Server::builder()
                .add_service(cluster_server::ClusterServer::new(service.clone()))
                .add_service(runs_server::RunsServer::new(service))
                .serve_with_incoming(incoming)
                .await
        });
        Fake { name: name.to_owned(), addr, says, request_ids, accepted, runtime: Some(runtime) }
    }

    pub(super) fn set(&self, change: impl FnOnce(&mut MemberAnswers)) {
        change(&mut self.says.lock());
    }

    /// The total number of connections to it.
    pub(super) fn connections(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub(super) fn leads(&self, term: u64) {
        self.set(|says| (says.leads, says.term, says.coord_epoch) = (true, term, term));
    }

    pub(super) fn info(&self) -> v1::MemberInfo {
        v1::MemberInfo {
            name: self.name.clone(),
            client_addr: self.addr.to_string(),
            voter: true,
            ..Default::default()
        }
    }
}

/// Tells each of them about the others.
pub(super) fn introduce(fakes: &[&Fake]) {
    let members: Vec<_> = fakes.iter().map(|fake| fake.info()).collect();
    for fake in fakes {
        let list = v1::MemberList { version: 1, members: members.clone(), leader: String::new() };
        fake.set(|says| says.members = Some(list));
    }
}

#[derive(Clone)]
struct Service {
    name: String,
    says: Arc<Mutex<MemberAnswers>>,
    request_ids: Arc<Mutex<Vec<v1::RequestId>>>,
}

impl Service {
    fn header(&self) -> v1::ClusterHeader {
        let says = self.says.lock();
        v1::ClusterHeader {
            cluster_id: says.cluster_id.clone(),
            coord_epoch: says.coord_epoch,
            applied_index: 0,
            members: says.members.clone(),
            restored_from: Vec::new(),
        }
    }

    async fn hang_if_set(&self) {
        if self.says.lock().hangs {
            std::future::pending::<()>().await;
        }
    }
}

#[tonic::async_trait]
impl cluster_server::Cluster for Service {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        self.hang_if_set().await;
        let (leads, term, refused) = {
            let says = self.says.lock();
            (says.leads, says.term, says.status_refused.clone())
        };
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        let role = if leads { "leader" } else { "follower" }.to_owned();
        let member = v1::MemberStatus { name: self.name.clone(), role, term, ..Default::default() };
        Ok(Response::new(v1::StatusResponse {
            header: Some(self.header()),
            self_: Some(member),
            has_quorum: leads,
            ..Default::default()
        }))
    }

    async fn counters(
        &self,
        _: Request<v1::CountersRequest>,
    ) -> Result<Response<v1::CountersResponse>, Status> {
        self.hang_if_set().await;
        let member = self.name.clone();
        Ok(Response::new(v1::CountersResponse { member, ..Default::default() }))
    }
}

#[tonic::async_trait]
impl runs_server::Runs for Service {
    async fn open_session(
        &self,
        _: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let header = Some(self.header());
        let store_url = "file:///store".to_owned();
        Ok(Response::new(v1::OpenSessionResponse { header, session: 77, store_url }))
    }

    async fn create_run(
        &self,
        request: Request<v1::CreateRunRequest>,
    ) -> Result<Response<v1::CreateRunResponse>, Status> {
        self.request_ids.lock().push(request.into_inner().request.unwrap_or_default());
        self.hang_if_set().await;
        let refusal = {
            let mut says = self.says.lock();
            (!says.refusals.is_empty()).then(|| says.refusals.remove(0))
        };
        if let Some(refusal) = refusal {
            return Err(refusal.into());
        }
        let header = Some(self.header());
        Ok(Response::new(v1::CreateRunResponse { header, run: 5, ..Default::default() }))
    }
}
