//! One member that leads alone, as a process, and calls to any of its methods by name.
//!
//! Absent: generated clients. A method that is added to the contract needs no code here.

use bytes::Bytes;
use http::uri::PathAndQuery;
use rollout_proto::{AnswerPosition, BytesCodec, CLUSTER_HEADER, EPOCH_HEADER, RpcError, v1};
use rollout_storage::SnapshotFileReader;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// How long any step of a member may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a request may take to reach the log. A worker's stream answers before it has done anything.
const GROWS_WITHIN: Duration = Duration::from_secs(10);

/// A member's process.
pub(crate) struct Member {
    dir: TempDir,
    child: Child,
    addr: String,
}

/// The outcome of one call.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// The first message, and its position in the log by its headers.
    Message(Option<AnswerPosition>),
    /// A stream that ended without any message, or was silent for a second.
    Silence,
    /// The refusal, and its position in the log by its headers.
    Refused(RpcError, Option<AnswerPosition>),
}

fn refused(status: &Status) -> CallOutcome {
    CallOutcome::Refused(RpcError::from_status(status), AnswerPosition::of(status.metadata()))
}

/// The epoch and cluster that the sender of a call claims to know.
#[derive(Clone, Copy)]
pub(crate) struct Claim<'a> {
    pub(crate) cluster: &'a str,
    pub(crate) epoch: u64,
}

/// A member's position. As long as it stays the same, nothing was applied, and nothing was proposed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Moment {
    pub(crate) cluster: String,
    pub(crate) epoch: u64,
    term: u64,
    pub(crate) last_log: u64,
    applied: u64,
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

fn start(config: &std::path::Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollout-coordinator"));
    command.arg("--config").arg(config).stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("it starts")
}

impl Member {
    /// A cluster of one member that has led before, so that the epoch of the first leader is over.
    pub(crate) async fn leading() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = |name: &str| dir.path().join(name);
        let (addr, peer) =
            (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
        // No worker or participant may be lost for its silence meanwhile: that would be in the log.
        let config = format!(
            "name = \"c1\"\ndata_dir = {:?}\n[listen]\nclient = {addr:?}\npeer = {peer:?}\nhttp = \"127.0.0.1:0\"\n\
             [tls]\ninsecure_plaintext = true\n[store]\nurl = \"file://{}\"\n[raft]\nprofile = \"far-zones\"\n\
             [worker]\nfailure_ms = 3600000\nstarted_grace_ms = 3600000\n",
            path("data"),
            path("store").display()
        );
        std::fs::create_dir(path("store")).expect("a store");
        std::fs::write(path("c.toml"), config).expect("a configuration");
        let child = start(&path("c.toml"));
        let mut member = Self { dir, child, addr };
        let info = v1::MemberInfo {
            name: "c1".into(),
            peer_addr: peer,
            client_addr: member.addr.clone(),
            ..Default::default()
        };
        let begun = Instant::now();
        loop {
            let request =
                v1::BootstrapRequest { members: vec![info.clone()], ..Default::default() };
            let Err(refused) = member.cluster().bootstrap(request).await else { break };
            assert!(begun.elapsed() < PATIENCE, "it forms no cluster: {refused}");
            tokio::time::sleep(Duration::from_millis(50)).await; // The poll; the condition decides.
        }
        let first = member.moment().await;
        member.stop();
        member.child = start(&member.dir.path().join("c.toml"));
        let second = member.moment().await;
        assert!(second.epoch > first.epoch, "{second:?} after {first:?}");
        member.serves().await;
        member
    }

    /// Waits until it answers a linearizable read. A leader applies the entry that opens its epoch before it serves.
    async fn serves(&self) {
        let begun = Instant::now();
        let mut runs = v1::runs_client::RunsClient::new(self.channel());
        while let Err(refused) = runs.list_runs(v1::ListRunsRequest::default()).await {
            assert!(begun.elapsed() < PATIENCE, "it does not serve: {refused}");
            tokio::time::sleep(Duration::from_millis(20)).await; // The poll; the condition decides.
        }
    }

    /// A store below the member's store directory.
    pub(crate) fn store_url(&self) -> String {
        format!("file://{}", self.dir.path().join("store").display())
    }

    pub(crate) fn channel(&self) -> Channel {
        let endpoint = Channel::from_shared(format!("http://{}", self.addr)).expect("an address");
        endpoint.connect_lazy()
    }

    fn cluster(&self) -> v1::cluster_client::ClusterClient<Channel> {
        v1::cluster_client::ClusterClient::new(self.channel())
    }

    /// Its position, once it leads and has applied its whole log.
    pub(crate) async fn moment(&self) -> Moment {
        let begun = Instant::now();
        loop {
            let answer = self.cluster().status(v1::StatusRequest::default()).await;
            let seen = format!("{answer:?}");
            if let Ok(status) = answer {
                let status = status.into_inner();
                let (header, own) =
                    (status.header.unwrap_or_default(), status.self_.unwrap_or_default());
                let settled = own.last_log_index == own.applied_index && own.role == "leader";
                // Its own epoch is open, not only that of the leader before it.
                if settled && header.coord_epoch == own.term {
                    return Moment {
                        cluster: header.cluster_id,
                        epoch: header.coord_epoch,
                        term: own.term,
                        last_log: own.last_log_index,
                        applied: own.applied_index,
                    };
                }
            }
            assert!(begun.elapsed() < PATIENCE, "it does not lead: {seen}");
            tokio::time::sleep(Duration::from_millis(20)).await; // The poll; the condition decides.
        }
    }

    /// Whether its log grows beyond this position.
    pub(crate) async fn grows_beyond(&self, then: &Moment) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < GROWS_WITHIN {
            if self.moment().await.last_log > then.last_log {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await; // The poll; the condition decides.
        }
        false
    }

    /// A digest of every record of the ledger's state.
    pub(crate) async fn state(&self) -> blake3::Hash {
        let client = v1::maintenance_client::MaintenanceClient::new(self.channel());
        let mut stream = client
            .max_decoding_message_size(rollout_proto::MESSAGE_BYTES_MAX)
            .save_snapshot(v1::SaveSnapshotRequest {})
            .await
            .expect("a snapshot")
            .into_inner();
        let mut bytes = Vec::new();
        while let Some(message) = stream.message().await.expect("a whole snapshot") {
            bytes.extend_from_slice(&message.data);
        }
        let file = self.dir.path().join("state");
        std::fs::write(&file, bytes).expect("a file");
        let mut hasher = blake3::Hasher::new();
        let mut records = 0;
        for record in SnapshotFileReader::open(&file).expect("its header") {
            let (key, value) = record.expect("a record");
            for part in [key, value] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(&part);
            }
            records += 1;
        }
        assert!(records > 0, "the ledger has records");
        hasher.finalize()
    }

    /// Calls a method (`/rollout.v1.Runs/CreateRun`) with the bytes of one request.
    pub(crate) async fn call(&self, path: &str, body: Bytes, claim: Claim<'_>) -> CallOutcome {
        let mut grpc = tonic::client::Grpc::new(self.channel())
            .max_decoding_message_size(rollout_proto::MESSAGE_BYTES_MAX);
        if let Err(error) = grpc.ready().await {
            panic!("{path}: {error}");
        }
        let mut request = Request::new(tokio_stream::once(body));
        request.metadata_mut().insert(EPOCH_HEADER, claim.epoch.into());
        request.metadata_mut().insert(CLUSTER_HEADER, claim.cluster.parse().expect("ascii"));
        let path = PathAndQuery::try_from(path).expect("a path");
        let (position, mut stream) = match grpc.streaming(request, path, BytesCodec).await {
            Ok(response) => (AnswerPosition::of(response.metadata()), response.into_inner()),
            Err(status) => return refused(&status),
        };
        // Streams that follow changes are silent at times.
        match tokio::time::timeout(Duration::from_secs(1), stream.message()).await {
            Ok(Ok(Some(_))) => CallOutcome::Message(position),
            Ok(Ok(None)) | Err(_) => CallOutcome::Silence,
            Ok(Err(status)) => refused(&status),
        }
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop();
    }
}
