//! A fake member as workers see it: it registers them, and reads the parts that their exchanges announce.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rollout_proto::v1::leader_message::Kind;
use rollout_proto::v1::worker_message::Kind as Up;
use rollout_proto::v1::worker_server::Worker;
use rollout_proto::v1::{self, LeaderMessage};
use rollout_proto::{ErrorCode, RpcError};
use rollout_storage::{BlobStore, Part};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::state::{Out, State, list};

#[derive(Clone)]
pub(super) struct Member {
    pub(super) index: usize,
    pub(super) state: Arc<Mutex<State>>,
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
                        let answer = Kind::Heartbeat(v1::HeartbeatAnswer {
                            seq,
                            heartbeat_ms: state.heartbeat_ms,
                        });
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
