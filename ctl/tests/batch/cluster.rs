//! A leader that keeps runs in memory and works on their rows itself.
//!
//! Invariant: it checks what a ledger checks of segments and inputs, so that a client that gets through here declares
//! what it should.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use parking_lot::Mutex;
use rollout_proto::{ErrorCode, RpcError, v1};
use rollout_storage::{BlobStore, PartRow, PartRowKind, PartWriter, Segment, part_key};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};
use v1::cluster_server::{Cluster, ClusterServer};
use v1::runs_server::{Runs, RunsServer};

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// How the rows of a run fare.
#[derive(Clone, Default)]
pub(crate) struct Conduct {
    /// Rows that fail for good.
    pub(crate) fails: Vec<u64>,
    /// What is said of these.
    pub(crate) says: Option<String>,
    /// Rows from here on get no outcome until `release`.
    pub(crate) holds_from: Option<u64>,
    /// Streams end after this many messages.
    pub(crate) cuts_streams_after: Option<usize>,
    /// Results say that they are of the row behind theirs.
    pub(crate) shifts_rows: bool,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) runs: BTreeMap<u32, Run>,
    pub(crate) conduct: Conduct,
    pub(crate) streams_opened: u32,
    /// Request ids, to see that a repeat has the same one.
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
    /// Part and row in it; a failure.
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

    pub(crate) fn conduct(&self, conduct: Conduct) {
        self.state.lock().conduct = conduct;
    }

    /// Lets every row go on.
    pub(crate) fn release(&self) {
        self.state.lock().conduct.holds_from = None;
        self.changed.notify_waiters();
        self.changed.notify_one();
    }

    pub(crate) fn run(&self, name: &str) -> Option<Run> {
        self.state.lock().runs.values().find(|run| run.name == name).cloned()
    }

    /// Waits until `seen` says so, for a generous time.
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

impl Run {
    fn summary(&self, number: u32) -> v1::RunSummary {
        let failed = self.failures.len() as u64;
        let decided = self.outcomes.iter().filter(|outcome| outcome.is_some()).count() as u64;
        v1::RunSummary {
            run: number,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            state: self.state,
            reason: self.reason.clone(),
            counts: Some(v1::RunCounts {
                rows: self.outcomes.len() as u64,
                pending: self.outcomes.len() as u64 - decided,
                done: decided - failed,
                failed,
                tokens_out: decided * 3,
                ..Default::default()
            }),
            segments: self.segments.len() as u32,
            input_closed: self.closed,
            model: self.spec.engine.clone().unwrap_or_default().model,
            folder: self.folder.clone(),
            ..Default::default()
        }
    }
}

impl Service {
    /// Works on the rows of a run as far as it may, in parts of 300 rows taken from its end.
    async fn work(self, number: u32) {
        loop {
            let (run, conduct) = {
                let state = self.state.lock();
                (state.runs[&number].clone(), state.conduct.clone())
            };
            if run.state == v1::RunState::Cancelled as i32 {
                return;
            }
            let holds = conduct.holds_from.unwrap_or(u64::MAX);
            let mut bodies = Vec::new();
            for segment in &run.segments {
                let blob = segment.blob.clone().unwrap();
                let digest = blob.digest[..].try_into().unwrap();
                let bytes = self.store.get(&blob.key, &digest).await.unwrap();
                let segment = Segment::decode(bytes).unwrap();
                bodies.extend(segment.rows().map(|row| row.body.to_vec()));
            }
            let todo: Vec<u64> = (0..bodies.len() as u64)
                .filter(|row| *row < holds && run.outcomes[*row as usize].is_none())
                .rev()
                .collect();
            for rows in todo.chunks(300) {
                self.part(number, &run, &conduct, rows, &bodies).await;
            }
            if holds == u64::MAX {
                let mut state = self.state.lock();
                let run = state.runs.get_mut(&number).unwrap();
                if run.state == v1::RunState::Running as i32 {
                    run.state = v1::RunState::Finished as i32;
                }
                return;
            }
            self.changed.notified().await;
        }
    }

    async fn part(
        &self,
        number: u32,
        run: &Run,
        conduct: &Conduct,
        rows: &[u64],
        bodies: &[Vec<u8>],
    ) {
        let mut writer = PartWriter::new();
        for row in rows {
            let (kind, body) = match conduct.fails.contains(row) {
                true => (PartRowKind::Failed, br#"{"error":"x"}"#.to_vec()),
                false => (PartRowKind::Completed, answer(&bodies[*row as usize])),
            };
            let named = if conduct.shifts_rows { row + 1 } else { *row };
            writer.push(PartRow { row: named, attempt: 7, kind, body: &body }).unwrap();
        }
        let bytes = writer.finish();
        let digest = *blake3::hash(&bytes).as_bytes();
        let key = part_key(&run.namespace, &run.folder, &digest);
        let blob = self.store.put(&key, bytes).await.unwrap();
        let digest = blob.digest.to_vec().into();
        let blob = v1::BlobRef { key: blob.key, digest, bytes: blob.len };
        let says = conduct.says.clone().unwrap_or_else(|| "the engine said no".to_owned());
        // As members do: the beginning of a long text, and an object with all of it.
        let text = match says.len() > 512 {
            true => {
                let key = "runs/default/evidence";
                let text = self.store.put(key, says.clone().into_bytes().into()).await.unwrap();
                let digest = text.digest.to_vec().into();
                Some(v1::BlobRef { key: text.key, digest, bytes: text.len })
            }
            false => None,
        };
        let mut state = self.state.lock();
        let run = state.runs.get_mut(&number).unwrap();
        for (at, row) in rows.iter().enumerate() {
            run.outcomes[*row as usize] = Some((blob.clone(), at as u32));
            if conduct.fails.contains(row) {
                run.failures.push(v1::FailedRow {
                    row: *row,
                    class: "transient".into(),
                    code: "RO-7001".into(),
                    message: says.chars().take(512).collect(),
                    attempts: 3,
                    evidence: text
                        .clone()
                        .map(|text| v1::Evidence { text: Some(text), ..Default::default() }),
                });
            }
        }
        run.failures.sort_by_key(|failure| failure.row);
    }
}

/// What the model says to a row.
pub(crate) fn answer(body: &[u8]) -> Vec<u8> {
    let row: serde_json::Value = serde_json::from_slice(body).unwrap();
    if !row["custom_id"].is_null() {
        let text = format!("MOCK:{}", row["body"]["messages"][0]["content"].as_str().unwrap_or(""));
        let body = serde_json::json!({"object": "x", "choices": [{"message": {"content": text}}]});
        let response = serde_json::json!({"status_code": 200, "request_id": "r", "body": body});
        return serde_json::json!({
            "completion": "",
            "finish_reason": "stop",
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "generated_at": "2026-01-01T00:00:00Z",
            "extra": {"response": response},
        })
        .to_string()
        .into_bytes();
    }
    let prompt = match row["prompt"].as_str() {
        Some(prompt) => prompt.to_owned(),
        None => row["messages"].to_string(),
    };
    serde_json::json!({
        "completion": format!("MOCK:{prompt}"),
        "finish_reason": "stop",
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "generated_at": "2026-01-01T00:00:00Z",
    })
    .to_string()
    .into_bytes()
}

#[tonic::async_trait]
impl Runs for Service {
    type WatchRunStream = Answers<v1::WatchRunResponse>;
    type ReadResultsStream = Answers<v1::ReadResultsResponse>;

    async fn open_session(
        &self,
        _: Request<v1::OpenSessionRequest>,
    ) -> Result<Response<v1::OpenSessionResponse>, Status> {
        let store_url = self.store.url().to_owned();
        Ok(Response::new(v1::OpenSessionResponse { header: header(), session: 5, store_url }))
    }

    async fn delete_run(
        &self,
        _: Request<v1::DeleteRunRequest>,
    ) -> Result<Response<v1::DeleteRunResponse>, Status> {
        // No command under test deletes.
        refuse(ErrorCode::RunActive)
    }

    async fn create_run(
        &self,
        request: Request<v1::CreateRunRequest>,
    ) -> Result<Response<v1::CreateRunResponse>, Status> {
        let request = request.into_inner();
        let spec = request.spec.unwrap_or_default();
        let mut state = self.state.lock();
        *state.requests.entry(request.request.unwrap().seq).or_default() += 1;
        let mut found = None;
        for (number, run) in &state.runs {
            if (&run.namespace, &run.name) == (&request.namespace, &request.name) {
                if run.spec != spec {
                    return refuse(ErrorCode::RunSpecConflict);
                }
                found = Some(*number);
            }
        }
        let created = found.is_none();
        let number = found.unwrap_or(state.runs.len() as u32 + 1);
        let run = state.runs.entry(number).or_insert_with(|| Run {
            namespace: request.namespace,
            name: request.name,
            spec,
            state: v1::RunState::Running as i32,
            folder: request.folder,
            ..Run::default()
        });
        Ok(Response::new(v1::CreateRunResponse {
            header: header(),
            run: number,
            created,
            segments: run.segments.len() as u32,
            rows: run.outcomes.len() as u64,
            input_closed: run.closed,
            folder: run.folder.clone(),
        }))
    }

    async fn add_segments(
        &self,
        request: Request<v1::AddSegmentsRequest>,
    ) -> Result<Response<v1::AddSegmentsResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state.lock();
        let run = state.runs.get_mut(&request.run).unwrap();
        for segment in request.segments {
            match run.segments.get(segment.number as usize) {
                Some(have) if *have == segment => continue,
                Some(_) => return refuse(ErrorCode::SegmentConflict),
                None if segment.number as usize != run.segments.len() => {
                    return refuse(ErrorCode::SegmentConflict);
                }
                None if run.closed => return refuse(ErrorCode::InputClosed),
                None => {}
            }
            run.outcomes.resize(run.outcomes.len() + segment.rows as usize, None);
            run.segments.push(segment);
        }
        for carried in request.carried {
            let segment = run.segments[carried.segment as usize].blob.as_ref().unwrap();
            assert_eq!(segment.digest, carried.segment_digest);
            let (blob, rows) = (carried.blob.unwrap(), carried.rows.unwrap());
            let ranges = rows.starts.into_iter().zip(rows.lens);
            let rows = ranges.flat_map(|(start, len)| start..start + u64::from(len));
            for (at, row) in rows.enumerate() {
                run.outcomes[row as usize] = Some((blob.clone(), at as u32));
            }
        }
        Ok(Response::new(v1::AddSegmentsResponse {
            header: header(),
            segments: run.segments.len() as u32,
            rows: run.outcomes.len() as u64,
        }))
    }

    async fn close_input(
        &self,
        request: Request<v1::CloseInputRequest>,
    ) -> Result<Response<v1::CloseInputResponse>, Status> {
        let request = request.into_inner();
        let first = {
            let mut state = self.state.lock();
            let run = state.runs.get_mut(&request.run).unwrap();
            let mut hasher = blake3::Hasher::new();
            for segment in &run.segments {
                hasher.update(&segment.blob.as_ref().unwrap().digest);
            }
            let same = hasher.finalize().as_bytes()[..] == request.digest[..];
            if request.rows != run.outcomes.len() as u64 || !same {
                return refuse(ErrorCode::InputMismatch);
            }
            !std::mem::replace(&mut run.closed, true)
        };
        if first {
            tokio::spawn(self.clone().work(request.run));
        }
        Ok(Response::new(v1::CloseInputResponse { header: header() }))
    }

    async fn control_run(
        &self,
        request: Request<v1::ControlRunRequest>,
    ) -> Result<Response<v1::ControlRunResponse>, Status> {
        let request = request.into_inner();
        let mut state = self.state.lock();
        let found = state.runs.iter_mut().find(|(_, run)| run.name == request.name);
        let Some((number, run)) = found else { return refuse(ErrorCode::RunNotFound) };
        run.state = match request.action() {
            v1::RunAction::Cancel => v1::RunState::Cancelled,
            v1::RunAction::Pause => v1::RunState::Paused,
            _ => v1::RunState::Running,
        } as i32;
        run.reason = request.reason;
        let summary = run.summary(*number);
        Ok(Response::new(v1::ControlRunResponse { header: header(), run: Some(summary) }))
    }

    async fn list_runs(
        &self,
        request: Request<v1::ListRunsRequest>,
    ) -> Result<Response<v1::ListRunsResponse>, Status> {
        let namespace = request.into_inner().namespace;
        let state = self.state.lock();
        let mine = state.runs.iter().filter(|(_, run)| run.namespace == namespace);
        let runs = mine.map(|(number, run)| run.summary(*number)).collect();
        Ok(Response::new(v1::ListRunsResponse { header: header(), runs }))
    }

    async fn describe_run(
        &self,
        request: Request<v1::DescribeRunRequest>,
    ) -> Result<Response<v1::DescribeRunResponse>, Status> {
        let request = request.into_inner();
        let state = self.state.lock();
        let found = state
            .runs
            .iter()
            .find(|(_, run)| run.name == request.name && run.namespace == request.namespace);
        let Some((number, run)) = found else { return refuse(ErrorCode::RunNotFound) };
        Ok(Response::new(v1::DescribeRunResponse {
            header: header(),
            run: Some(run.summary(*number)),
            spec: Some(run.spec.clone()),
            spec_digest: vec![3; 32].into(),
            store_url: self.store.url().to_owned(),
            ..Default::default()
        }))
    }

    async fn watch_run(
        &self,
        request: Request<v1::WatchRunRequest>,
    ) -> Result<Response<Self::WatchRunStream>, Status> {
        let request = request.into_inner();
        let state = self.state.clone();
        let cut = {
            let mut state = state.lock();
            state.streams_opened += 1;
            state.conduct.cuts_streams_after
        };
        let stream = futures::stream::unfold(0, move |sent| {
            let (state, name) = (state.clone(), request.name.clone());
            async move {
                if cut.is_some_and(|cut| sent >= cut) {
                    let error = RpcError::new(ErrorCode::Fenced, "a newer leader took over");
                    return Some((Err(error.into()), usize::MAX - 1));
                }
                if sent > 0 {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                let state = state.lock();
                let (number, run) = state.runs.iter().find(|(_, run)| run.name == name)?;
                let run = Some(run.summary(*number));
                Some((Ok(v1::WatchRunResponse { header: header(), run }), sent + 1))
            }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn read_results(
        &self,
        request: Request<v1::ReadResultsRequest>,
    ) -> Result<Response<Self::ReadResultsStream>, Status> {
        let request = request.into_inner();
        let mut state = self.state.lock();
        state.streams_opened += 1;
        let cut = state.conduct.cuts_streams_after;
        let run = state.runs[&request.run].clone();
        let mut first_row = 0;
        let mut answers = Vec::new();
        for segment in &run.segments {
            let rows = first_row..first_row + u64::from(segment.rows);
            first_row = rows.end;
            if segment.number >= request.first_segment {
                answers.push(Ok(results(&run, segment, rows)));
            }
        }
        if let Some(cut) = cut.filter(|cut| *cut < answers.len()) {
            answers.truncate(cut);
            let error = RpcError::new(ErrorCode::NoQuorum, "cut off");
            answers.push(Err(error.into()));
        }
        Ok(Response::new(Box::pin(futures::stream::iter(answers))))
    }
}

fn results(
    run: &Run,
    segment: &v1::SegmentDecl,
    rows: std::ops::Range<u64>,
) -> v1::ReadResultsResponse {
    let mut answer = v1::ReadResultsResponse {
        header: header(),
        number: segment.number,
        first_row: rows.start,
        rows: segment.rows,
        blob: segment.blob.clone(),
        ..Default::default()
    };
    for row in rows.clone() {
        let (part, part_row) = match &run.outcomes[row as usize] {
            None => (0, 0),
            Some((blob, at)) => {
                let known = answer.part_table.iter().position(|known| known == blob);
                let place = known.unwrap_or_else(|| {
                    answer.part_table.push(blob.clone());
                    answer.part_table.len() - 1
                });
                (place as u32 + 1, *at)
            }
        };
        answer.parts.push(part);
        answer.part_rows.push(part_row);
    }
    let inside = run.failures.iter().filter(|failure| rows.contains(&failure.row));
    answer.failures = inside.cloned().collect();
    answer
}

#[tonic::async_trait]
impl Cluster for Service {
    async fn status(
        &self,
        _: Request<v1::StatusRequest>,
    ) -> Result<Response<v1::StatusResponse>, Status> {
        let leader = v1::MemberStatus {
            name: "c1".into(),
            id: 1,
            role: "leader".into(),
            term: 3,
            ..Default::default()
        };
        Ok(Response::new(v1::StatusResponse {
            header: header(),
            self_: Some(leader),
            has_quorum: true,
            ..Default::default()
        }))
    }

    async fn list_workers(
        &self,
        _: Request<v1::ListWorkersRequest>,
    ) -> Result<Response<v1::ListWorkersResponse>, Status> {
        let worker = v1::WorkerInfo { state: "ready".into(), ..Default::default() };
        Ok(Response::new(v1::ListWorkersResponse { header: header(), workers: vec![worker] }))
    }

    async fn upgrade_cluster(
        &self,
        _: Request<v1::UpgradeClusterRequest>,
    ) -> Result<Response<v1::UpgradeClusterResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn request_digest(
        &self,
        _: Request<v1::RequestDigestRequest>,
    ) -> Result<Response<v1::RequestDigestResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn digests(
        &self,
        _: Request<v1::DigestsRequest>,
    ) -> Result<Response<v1::DigestsResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn bootstrap(
        &self,
        _: Request<v1::BootstrapRequest>,
    ) -> Result<Response<v1::BootstrapResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn cordon_worker(
        &self,
        _: Request<v1::CordonWorkerRequest>,
    ) -> Result<Response<v1::CordonWorkerResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn drain_worker(
        &self,
        _: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        refuse(ErrorCode::Internal)
    }

    async fn counters(
        &self,
        _: Request<v1::CountersRequest>,
    ) -> Result<Response<v1::CountersResponse>, Status> {
        refuse(ErrorCode::Internal)
    }
}
