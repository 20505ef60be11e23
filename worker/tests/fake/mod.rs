//! A cluster in the test's own process that speaks the worker's protocol and remembers what it was told. Its members
//! share one state, as if replication took no time; each has its own runtime, so that it can be killed.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rollout_proto::v1::cluster_server::{Cluster, ClusterServer};
use rollout_proto::v1::leader_message::Kind;
use rollout_proto::v1::worker_message::Kind as Up;
use rollout_proto::v1::worker_server::{Worker, WorkerServer};
use rollout_proto::v1::{self, ClusterHeader, LeaderMessage};
use rollout_proto::{ErrorCode, RpcError};
use rollout_storage::{BlobStore, Part, SegmentWriter, segment_key};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::{Request, Response, Status, Streaming};

pub(crate) type Out = mpsc::Sender<Result<LeaderMessage, Status>>;

/// What became of a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Outcome {
    Done(String),
    Failed(v1::FailureClass, String),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Row {
    pub(crate) attempt: u64,
    pub(crate) running: bool,
    pub(crate) grants: u32,
    /// Was started when an engine died: granted only alone.
    pub(crate) suspect: bool,
    pub(crate) outcome: Option<Outcome>,
}

#[derive(Default)]
pub(crate) struct SlotSeen {
    last_seq: u64,
    last_grant: Vec<v1::Grant>,
    parked: Option<(u64, u32, Out)>,
}

pub(crate) struct State {
    pub(crate) epoch: u64,
    pub(crate) leader: usize,
    pub(crate) addrs: Vec<String>,
    pub(crate) store: BlobStore,
    pub(crate) segments: Vec<v1::SegmentRef>,
    pub(crate) rows: Vec<Row>,
    pub(crate) sessions: HashSet<u64>,
    pub(crate) next: u64,
    pub(crate) slots: HashMap<u32, SlotSeen>,
    /// Every exchange with the member that it reached.
    pub(crate) exchanges: Vec<(usize, v1::Exchange)>,
    pub(crate) registers: Vec<v1::RegisterRequest>,
    pub(crate) deregistered: Vec<u64>,
    /// Rows of `held` that the next registration drops.
    pub(crate) drop_held: Vec<u64>,
    /// Nobody is registered: a live process has the name.
    pub(crate) name_taken: bool,
    pub(crate) heartbeats: Vec<v1::Heartbeat>,
    pub(crate) mute_heartbeats: bool,
    pub(crate) mute_exchanges: bool,
    pub(crate) hold_grants: bool,
    /// Members that answer nothing at all.
    pub(crate) hung: HashSet<usize>,
    pub(crate) out: Option<Out>,
    pub(crate) bad: Vec<String>,
}

pub(crate) struct Fake {
    pub(crate) state: Arc<Mutex<State>>,
    members: BTreeMap<usize, Runtime>,
}

#[derive(Clone)]
struct Member {
    index: usize,
    state: Arc<Mutex<State>>,
}

impl State {
    fn header(&self) -> ClusterHeader {
        let member = |(index, addr): (usize, &String)| v1::MemberInfo {
            id: index as u64 + 1,
            name: format!("c{index}"),
            client_addr: addr.clone(),
            voter: true,
            ..Default::default()
        };
        ClusterHeader {
            cluster_id: "ab".repeat(16),
            coord_epoch: self.epoch,
            applied_index: self.next,
            members: Some(v1::MemberList {
                version: 1,
                members: self.addrs.iter().enumerate().map(member).collect(),
                leader: format!("c{}", self.leader),
            }),
            restored_from: Vec::new(),
        }
    }

    pub(crate) fn count(&self, wanted: impl Fn(&Row) -> bool) -> usize {
        self.rows.iter().filter(|row| wanted(row)).count()
    }

    pub(crate) fn done(&self) -> usize {
        self.count(|row| row.outcome.is_some())
    }

    fn message(&self, kind: Kind) -> LeaderMessage {
        LeaderMessage { header: Some(self.header()), kind: Some(kind) }
    }

    pub(crate) fn post(&self, kind: Kind) {
        if let Some(out) = &self.out {
            let _ = out.try_send(Ok(self.message(kind)));
        }
    }

    fn decide(&mut self, attempt: u64, row: u64, outcome: Outcome) -> bool {
        let Some(state) = self.rows.get_mut(row as usize) else { return false };
        if state.attempt != attempt || !state.running {
            return state.outcome.as_ref() == Some(&outcome);
        }
        state.running = false;
        state.outcome = Some(outcome);
        true
    }

    fn exchange(&mut self, exchange: v1::Exchange, out: &Out, parts: Vec<Vec<(u64, u64, String)>>) {
        let mut refused = Vec::new();
        for rows in parts {
            for (attempt, row, text) in rows {
                if !self.decide(attempt, row, Outcome::Done(text)) {
                    refused.push((attempt, row));
                }
            }
        }
        for failure in &exchange.failures {
            for row in list(failure.rows.as_ref()) {
                let outcome = Outcome::Failed(failure.class(), failure.code.clone());
                if !self.decide(failure.attempt, row, outcome) {
                    refused.push((failure.attempt, row));
                }
            }
        }
        for death in &exchange.deaths {
            let rows = death
                .started
                .iter()
                .flat_map(|set| list(set.rows.as_ref()).into_iter().map(|row| (set.attempt, row)));
            let rows: Vec<(u64, u64)> = rows.collect();
            for (attempt, row) in &rows {
                if rows.len() == 1 {
                    let outcome = Outcome::Failed(death.class(), death.code.clone());
                    self.decide(*attempt, *row, outcome);
                    continue;
                }
                let state = &mut self.rows[*row as usize];
                if state.attempt == *attempt && state.running {
                    (state.running, state.attempt, state.suspect) = (false, 0, true);
                }
            }
        }
        for nack in &exchange.nacks {
            for row in list(nack.rows.as_ref()) {
                let state = &mut self.rows[row as usize];
                if state.attempt == nack.attempt {
                    state.running = false;
                    state.attempt = 0;
                }
            }
        }
        let refused = refused.into_iter().map(|(attempt, row)| v1::Refused {
            run: 1,
            attempt,
            rows: Some(v1::Rows { starts: vec![row], lens: vec![1] }),
            code: ErrorCode::AttemptStale.code().into(),
        });
        let refused = refused.collect();
        let parked = self.slots.entry(exchange.slot).or_default().parked.take();
        if let Some((seq, _, _)) = parked.filter(|(seq, ..)| *seq < exchange.seq) {
            let empty = v1::ExchangeAnswer { slot: exchange.slot, seq, ..Default::default() };
            let _ = out.try_send(Ok(self.message(Kind::Exchange(empty))));
        }
        if !self.answer(exchange.slot, exchange.seq, exchange.credit_rows, out, refused) {
            let slot = self.slots.entry(exchange.slot).or_default();
            slot.parked = Some((exchange.seq, exchange.credit_rows, out.clone()));
        }
    }

    /// False where the pull has to wait.
    fn answer(
        &mut self,
        slot: u32,
        seq: u64,
        credit: u32,
        out: &Out,
        refused: Vec<v1::Refused>,
    ) -> bool {
        let mut grants = Vec::new();
        let seen = self.slots.entry(slot).or_default();
        if credit > 0 && seen.last_seq == seq {
            grants = seen.last_grant.clone();
        } else if credit > 0 {
            grants = self.grant(credit);
            if grants.is_empty() && refused.is_empty() {
                return false;
            }
            let seen = self.slots.entry(slot).or_default();
            (seen.last_seq, seen.last_grant) = (seq, grants.clone());
        }
        let answer = v1::ExchangeAnswer { slot, seq, grants, refused, ..Default::default() };
        let _ = out.try_send(Ok(self.message(Kind::Exchange(answer))));
        true
    }

    fn grant(&mut self, credit: u32) -> Vec<v1::Grant> {
        if self.hold_grants {
            return Vec::new();
        }
        let free = |row: &Row| !row.running && row.outcome.is_none();
        let trial = self.rows.iter().any(|row| free(row) && row.suspect);
        if trial && self.rows.iter().any(|row| row.running) {
            return Vec::new();
        }
        let credit = if trial { 1 } else { credit };
        let rows: Vec<u64> = (0..self.rows.len() as u64)
            .filter(|row| free(&self.rows[*row as usize]))
            .filter(|row| self.rows[*row as usize].suspect == trial)
            .take(credit as usize)
            .collect();
        if rows.is_empty() {
            return Vec::new();
        }
        self.next += 1;
        let attempt = self.next;
        for row in &rows {
            let state = &mut self.rows[*row as usize];
            (state.attempt, state.running, state.grants) = (attempt, true, state.grants + 1);
        }
        let holds = |segment: &&v1::SegmentRef| {
            let range = segment.first_row..segment.first_row + u64::from(segment.rows);
            rows.iter().any(|row| range.contains(row))
        };
        let segments = self.segments.iter().filter(holds).cloned().collect();
        let lens = vec![1; rows.len()];
        let rows = Some(v1::Rows { starts: rows, lens });
        vec![v1::Grant { run: 1, attempt, rows, segments, alone: trial }]
    }

    /// Lets parked pulls have what is there now.
    pub(crate) fn wake(&mut self) {
        let slots: Vec<u32> = self.slots.keys().copied().collect();
        for slot in slots {
            let Some(parked) = self.slots.get_mut(&slot).and_then(|s| s.parked.take()) else {
                continue;
            };
            let (seq, credit, out) = parked;
            if !self.answer(slot, seq, credit, &out, Vec::new()) {
                self.slots.entry(slot).or_default().parked = Some((seq, credit, out));
            }
        }
    }
}

pub(crate) fn list(rows: Option<&v1::Rows>) -> Vec<u64> {
    let Some(rows) = rows else { return Vec::new() };
    let range = |(start, len): (&u64, &u32)| *start..start + u64::from(*len);
    rows.starts.iter().zip(&rows.lens).flat_map(range).collect()
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

impl Member {
    async fn ready(&self) -> Result<(), Status> {
        if self.state.lock().hung.contains(&self.index) {
            std::future::pending::<()>().await;
        }
        let state = self.state.lock();
        if state.leader != self.index {
            let leader = state.leader;
            let error = RpcError::new(ErrorCode::NotLeader, "not me")
                .with_leader(format!("c{leader}"), state.addrs[leader].clone());
            return Err(error.into());
        }
        Ok(())
    }

    async fn serve(self, mut up: Streaming<v1::WorkerMessage>, out: Out) {
        while let Ok(Some(message)) = up.message().await {
            if self.state.lock().hung.contains(&self.index) {
                continue;
            }
            if !self.state.lock().sessions.contains(&message.session) {
                let error = RpcError::new(ErrorCode::SessionUnknown, "who are you");
                let _ = out.send(Err(error.into())).await;
                return;
            }
            match message.kind {
                Some(Up::Heartbeat(heartbeat)) => {
                    let mut state = self.state.lock();
                    let seq = heartbeat.seq;
                    state.heartbeats.push(heartbeat);
                    if !state.mute_heartbeats {
                        let answer = Kind::Heartbeat(v1::HeartbeatAnswer { seq });
                        let _ = out.try_send(Ok(state.message(answer)));
                    }
                }
                Some(Up::Exchange(exchange)) => self.exchange(exchange, &out).await,
                None => self.state.lock().bad.push("a message of no kind".into()),
            }
        }
    }

    async fn exchange(&self, exchange: v1::Exchange, out: &Out) {
        let store = {
            let mut state = self.state.lock();
            state.exchanges.push((self.index, exchange.clone()));
            if state.mute_exchanges {
                return;
            }
            state.store.clone()
        };
        let mut parts = Vec::new();
        for result in &exchange.parts {
            match read_part(&store, result).await {
                Ok(rows) => parts.push(rows),
                Err(error) => self.state.lock().bad.push(error),
            }
        }
        self.state.lock().exchange(exchange, out, parts);
    }
}

/// The rows of a part, checked against the sets that announce it.
async fn read_part(
    store: &BlobStore,
    result: &v1::PartResult,
) -> Result<Vec<(u64, u64, String)>, String> {
    let blob = result.part.clone().ok_or("a result without a part")?;
    let digest =
        <[u8; 32]>::try_from(&blob.digest[..]).map_err(|_| "a digest of a strange length")?;
    let bytes = store.get(&blob.key, &digest).await.map_err(|error| error.to_string())?;
    let part = Part::decode(bytes).map_err(|error| error.to_string())?;
    let mut rows = Vec::new();
    for row in part.rows() {
        let body: serde_json::Value =
            serde_json::from_slice(row.body).map_err(|error| error.to_string())?;
        let text = body["completion"].as_str().ok_or("a result without a completion")?.to_owned();
        rows.push((row.attempt, row.row, text));
    }
    let of_set = |set: &v1::HeldRows| {
        list(set.rows.as_ref()).into_iter().map(|row| (set.attempt, row)).collect::<Vec<_>>()
    };
    let announced: Vec<_> = result.sets.iter().flat_map(of_set).collect();
    if announced != rows.iter().map(|(attempt, row, _)| (*attempt, *row)).collect::<Vec<_>>() {
        return Err("the sets do not name the part's rows in their order".into());
    }
    Ok(rows)
}

#[tonic::async_trait]
impl Worker for Member {
    async fn probe(
        &self,
        _: Request<v1::ProbeRequest>,
    ) -> Result<Response<v1::ProbeResponse>, Status> {
        self.ready().await?;
        let state = self.state.lock();
        let store_url = state.store.url().to_owned();
        let probe = state.segments.first().and_then(|segment| segment.blob.clone());
        Ok(Response::new(v1::ProbeResponse { header: Some(state.header()), store_url, probe }))
    }

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterResponse>, Status> {
        self.ready().await?;
        let request = request.into_inner();
        let mut state = self.state.lock();
        if state.name_taken {
            let text = "w1 runs at host-one:pid-1";
            return Err(RpcError::new(ErrorCode::WorkerNameTaken, text).into());
        }
        let resumed = state.sessions.contains(&request.resume_session);
        state.next += 1;
        let session = if resumed { request.resume_session } else { state.next };
        state.sessions.insert(session);
        let new_instance =
            state.registers.last().is_none_or(|last| last.instance != request.instance);
        if new_instance || !resumed {
            state.slots.clear();
        }
        let drop = state.drop_held.clone();
        let held: HashSet<(u64, u64)> = request
            .held
            .iter()
            .flat_map(|set| list(set.rows.as_ref()).into_iter().map(|row| (set.attempt, row)))
            .filter(|(_, row)| !drop.contains(row))
            .collect();
        for (row, held_row) in state.rows.iter_mut().enumerate() {
            if held_row.running && !held.contains(&(held_row.attempt, row as u64)) {
                (held_row.running, held_row.attempt) = (false, 0);
            }
        }
        let dropped = request.held.iter().map(|set| {
            let rows = list(set.rows.as_ref()).into_iter().filter(|row| drop.contains(row));
            let starts: Vec<u64> = rows.collect();
            let lens = vec![1; starts.len()];
            v1::HeldRows {
                run: set.run,
                attempt: set.attempt,
                rows: Some(v1::Rows { starts, lens }),
            }
        });
        let dropped = dropped.collect();
        state.registers.push(request);
        Ok(Response::new(v1::RegisterResponse {
            header: Some(state.header()),
            session,
            resumed,
            dropped,
            heartbeat_ms: 50,
            self_fence_ms: 4000,
            store_url: state.store.url().to_owned(),
            ..Default::default()
        }))
    }

    async fn get_run(
        &self,
        request: Request<v1::GetRunRequest>,
    ) -> Result<Response<v1::GetRunResponse>, Status> {
        self.ready().await?;
        let engine = Some(v1::EngineSpec { model: "m".into(), ..Default::default() });
        Ok(Response::new(v1::GetRunResponse {
            header: Some(self.state.lock().header()),
            run: request.into_inner().run,
            namespace: "default".into(),
            name: "r".into(),
            spec: Some(v1::RunSpec { engine, ..Default::default() }),
            folder: "r".into(),
        }))
    }

    type WorkStream = ReceiverStream<Result<LeaderMessage, Status>>;

    async fn work(
        &self,
        request: Request<Streaming<v1::WorkerMessage>>,
    ) -> Result<Response<Self::WorkStream>, Status> {
        self.ready().await?;
        let (out, messages) = mpsc::channel(1024);
        self.state.lock().out = Some(out.clone());
        tokio::spawn(self.clone().serve(request.into_inner(), out));
        Ok(Response::new(ReceiverStream::new(messages)))
    }

    async fn deregister(
        &self,
        request: Request<v1::DeregisterRequest>,
    ) -> Result<Response<v1::DeregisterResponse>, Status> {
        self.ready().await?;
        let mut state = self.state.lock();
        state.deregistered.push(request.into_inner().session);
        Ok(Response::new(v1::DeregisterResponse { header: Some(state.header()) }))
    }
}

fn unused<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("no worker asks for this"))
}

#[tonic::async_trait]
impl Cluster for Member {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        if self.state.lock().hung.contains(&self.index) {
            std::future::pending::<()>().await;
        }
        let state = self.state.lock();
        let leads = state.leader == self.index;
        let role = if leads { "leader" } else { "follower" };
        Ok(Response::new(v1::StatusResponse {
            header: Some(state.header()),
            self_: Some(v1::MemberStatus {
                name: format!("c{}", self.index),
                id: self.index as u64 + 1,
                role: role.into(),
                term: state.epoch,
                ..Default::default()
            }),
            has_quorum: true,
            ..Default::default()
        }))
    }
    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        unused()
    }
    async fn request_digest(
        &self,
        _: Request<v1::RequestDigestRequest>,
    ) -> Result<Response<v1::RequestDigestResponse>, Status> {
        unused()
    }
    async fn digests(
        &self,
        _: Request<v1::DigestsRequest>,
    ) -> Result<Response<v1::DigestsResponse>, Status> {
        unused()
    }
    async fn bootstrap(
        &self,
        _: Request<v1::BootstrapRequest>,
    ) -> Result<Response<v1::BootstrapResponse>, Status> {
        unused()
    }
    async fn cordon_worker(
        &self,
        _: Request<v1::CordonWorkerRequest>,
    ) -> Result<Response<v1::CordonWorkerResponse>, Status> {
        unused()
    }

    async fn upgrade_cluster(
        &self,
        _: Request<v1::UpgradeClusterRequest>,
    ) -> Result<Response<v1::UpgradeClusterResponse>, Status> {
        unused()
    }
    async fn drain_worker(
        &self,
        _: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        unused()
    }
    async fn counters(
        &self,
        _: Request<v1::CountersRequest>,
    ) -> Result<Response<v1::CountersResponse>, Status> {
        unused()
    }
}
