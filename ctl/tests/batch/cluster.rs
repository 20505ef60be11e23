//! A fake leader that keeps runs in memory and works on their rows itself.
//!
//! Invariant: it checks segments and inputs as a ledger does, so a client that passes here declares correctly.

mod members;
mod runs;
mod work;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rollout_proto::fakes::cluster_server::ClusterServer;
use rollout_proto::fakes::runs_server::RunsServer;
use rollout_proto::{ErrorCode, RpcError, v1};
use rollout_storage::BlobStore;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;

pub(crate) use self::work::answer;

/// How the fake cluster behaves for the rows of a run.
#[derive(Clone, Default)]
pub(crate) struct FakeBehavior {
    /// Rows that fail permanently.
    pub(crate) fails: Vec<u64>,
    /// The message of these failures.
    pub(crate) failure_message: Option<String>,
    /// Rows from here on get no outcome until `release`.
    pub(crate) holds_from: Option<u64>,
    /// Streams end after this many messages.
    pub(crate) cuts_streams_after: Option<usize>,
    /// After this many streams were opened, results are no longer listed: later streams send nothing.
    pub(crate) lists_nothing_after: Option<u32>,
    /// Results claim to belong to the next row.
    pub(crate) shifts_rows: bool,
    /// A request (create, add, close) that is refused.
    pub(crate) refuses: Option<(&'static str, ErrorCode)>,
    /// A request that gets no answer, and whether it takes effect anyway.
    pub(crate) hangs: Option<(&'static str, bool)>,
    /// Sessions are opened only once this many clients have asked for one.
    pub(crate) together: u32,
    /// Every session except the first is opened only once a run has its whole input.
    pub(crate) only_one_is_early: bool,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) runs: BTreeMap<u32, Run>,
    pub(crate) behavior: FakeBehavior,
    pub(crate) streams_opened: u32,
    /// Requests that are unanswered.
    pub(crate) hanging: u32,
    /// Sessions that were requested.
    sessions: u32,
    /// Request IDs, to check that a repeat has the same one.
    requests: HashMap<u64, u32>,
}

#[derive(Clone, Default)]
pub(crate) struct Run {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) spec: v1::RunSpec,
    pub(crate) segments: Vec<v1::SegmentDecl>,
    pub(crate) closed: bool,
    pub(crate) state: i32,
    pub(crate) reason: String,
    /// The part and the row in it, or a failure.
    pub(crate) outcomes: Vec<Option<(v1::BlobRef, u32)>>,
    pub(crate) failures: Vec<v1::FailedRow>,
    pub(crate) folder: String,
}

/// The cluster of a test.
pub(crate) struct TestCluster {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) addr: SocketAddr,
    pub(crate) state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
    runtime: Option<tokio::runtime::Runtime>,
}

#[derive(Clone)]
struct Service {
    state: Arc<Mutex<State>>,
    store: BlobStore,
    changed: Arc<Notify>,
}

impl TestCluster {
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (state, changed) = (Arc::<Mutex<State>>::default(), Arc::<Notify>::default());
        let store = BlobStore::open(&format!("file://{}/store", dir.path().display())).unwrap();
        let service = Service { state: state.clone(), store, changed: changed.clone() };
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let addr = listener.local_addr().unwrap();
        runtime.spawn(
            tonic::transport::Server::builder()
                .add_service(RunsServer::new(service.clone()))
                .add_service(ClusterServer::new(service))
                .serve_with_incoming(TcpListenerStream::new(listener)),
        );
        Self { dir, addr, state, changed, runtime: Some(runtime) }
    }

    pub(crate) fn set_behavior(&self, behavior: FakeBehavior) {
        self.state.lock().behavior = behavior;
    }

    /// Releases every row.
    pub(crate) fn release(&self) {
        self.state.lock().behavior.holds_from = None;
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    pub(crate) fn run(&self, name: &str) -> Option<Run> {
        self.state.lock().runs.values().find(|run| run.name == name).cloned()
    }

    /// Waits until `seen` returns true, within a generous limit.
    pub(crate) fn wait_for(&self, what: &str, seen: impl Fn(&State) -> bool) {
        for _ in 0..3000 {
            if seen(&self.state.lock()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("never happened: {what}");
    }
}

impl Service {
    /// Refuses a request or leaves it unanswered, as the test's [`FakeBehavior`] specifies.
    async fn hinder(&self, request: &str, has_its_effect: bool) -> Result<(), Status> {
        let behavior = self.state.lock().behavior.clone();
        if let Some((_, code)) =
            behavior.refuses.filter(|(of, _)| *of == request && !has_its_effect)
        {
            return refuse(code);
        }
        if behavior.hangs.is_some_and(|hangs| hangs == (request, has_its_effect)) {
            self.state.lock().hanging += 1;
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

impl Drop for TestCluster {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn header() -> Option<v1::ClusterHeader> {
    Some(v1::ClusterHeader {
        cluster_id: "c".repeat(32),
        coord_epoch: 3,
        applied_index: 9,
        ..Default::default()
    })
}

fn refuse<T>(code: ErrorCode) -> Result<T, Status> {
    Err(RpcError::new(code, code.summary()).into())
}
