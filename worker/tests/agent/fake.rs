//! A fake cluster in the test's own process that speaks the worker's protocol and records what it receives. Its
//! members share one state, as if replication took no time; each has its own runtime, so that it can be killed.

mod cluster;
mod member;
mod state;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollout_proto::fakes::cluster_server::ClusterServer;
use rollout_proto::v1;
use rollout_proto::v1::worker_server::WorkerServer;
use rollout_storage::{BlobStore, SegmentWriter, segment_key};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;

use self::member::Member;
use self::state::Row;
pub(crate) use self::state::{Outcome, State, list};

pub(crate) struct Fake {
    pub(crate) state: Arc<Mutex<State>>,
    members: BTreeMap<usize, Runtime>,
}

impl Fake {
    /// Members that listen, and a run of the given rows in segments of 100.
    pub(crate) async fn start(members: usize, dir: &Path, bodies: &[String]) -> Self {
        let store = BlobStore::open(&format!("file://{}", dir.join("store").display())).unwrap();
        let mut segments = Vec::new();
        for (number, chunk) in bodies.chunks(100).enumerate() {
            let mut writer = SegmentWriter::new();
            for (line, body) in chunk.iter().enumerate() {
                let id = *blake3::hash(body.as_bytes()).as_bytes();
                writer.push(id, line as u64 + 1, body.as_bytes()).unwrap();
            }
            let bytes = writer.finish();
            let key = segment_key("default", "r", blake3::hash(&bytes).as_bytes());
            let blob = store.put(&key, bytes).await.unwrap();
            segments.push(v1::SegmentRef {
                number: number as u32,
                first_row: number as u64 * 100,
                rows: chunk.len() as u32,
                blob: Some(v1::BlobRef {
                    key,
                    digest: blob.digest.to_vec().into(),
                    bytes: blob.len,
                }),
            });
        }
        let state = Arc::new(Mutex::new(State {
            epoch: 5,
            leader: 0,
            addrs: Vec::new(),
            store,
            segments,
            rows: vec![Row::default(); bodies.len()],
            sessions: HashSet::new(),
            next: 100,
            slots: HashMap::new(),
            exchanges: Vec::new(),
            registers: Vec::new(),
            deregistered: Vec::new(),
            drop_held: Vec::new(),
            name_taken: false,
            heartbeats: Vec::new(),
            mute_heartbeats: false,
            heartbeat_ms: 0,
            mute_exchanges: false,
            hold_grants: false,
            hung: HashSet::new(),
            out: None,
            bad: Vec::new(),
        }));
        let mut fake = Self { state, members: BTreeMap::new() };
        for index in 0..members {
            fake.start_member(index);
        }
        fake
    }

    fn start_member(&mut self, index: usize) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        self.state.lock().addrs.push(listener.local_addr().unwrap().to_string());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let member = Member { index, state: self.state.clone() };
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            tonic::transport::Server::builder()
                .add_service(WorkerServer::new(member.clone()))
                .add_service(ClusterServer::new(member))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        self.members.insert(index, runtime);
    }

    /// Ends a member and all its connections at once.
    pub(crate) fn kill(&mut self, index: usize) {
        self.members.remove(&index).unwrap().shutdown_background();
    }

    /// Another member leads from now on.
    pub(crate) fn elect(&self, index: usize) {
        let mut state = self.state.lock();
        state.epoch += 1;
        state.leader = index;
        state.slots.values_mut().for_each(|slot| slot.parked = None);
    }

    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let start = Instant::now();
        while !condition(&self.state.lock()) {
            if start.elapsed() > Duration::from_secs(30) {
                let state = self.state.lock();
                panic!(
                    "never: {what}; {} of {} rows decided, {} registrations, {} exchanges, bad: {:?}",
                    state.done(),
                    state.rows.len(),
                    state.registers.len(),
                    state.exchanges.len(),
                    state.bad
                );
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(self.state.lock().bad, Vec::<String>::new());
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for (_, runtime) in std::mem::take(&mut self.members) {
            runtime.shutdown_background();
        }
    }
}
