//! The objects that the requests of the table name: a run with rows in each state, a training job with a trainer and
//! claims, a rendezvous and a barrier, a worker with a session.

use crate::member::Member;
use prost::Message;
use rollout_proto::v1;
use rollout_storage::BlobStore;
use std::cell::Cell;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use v1::leader_message::Kind as Down;
use v1::worker_message::Kind as Up;

/// For an answer of an otherwise idle member.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);
pub(crate) const DIGEST: [u8; 32] = [7; 32];
/// The id of an API key.
pub(crate) const KEY: &str = "table001";

pub(crate) struct Fixture {
    pub(crate) session: u64,
    seq: Cell<u64>,
    /// A run without rows, whose input is open.
    pub(crate) open_folder: String,
    pub(crate) open_run: u32,
    /// A run with ten rows, whose input is open.
    pub(crate) rows_run: u32,
    /// A worker's session, which holds rows of that run, the first of which has failed.
    pub(crate) worker: u64,
    /// The trainer of job `train`.
    pub(crate) trainer: v1::TrainerRef,
    /// The trainer of job `leaves`.
    pub(crate) leaves: v1::TrainerRef,
    /// Two shards that the trainer has claimed.
    pub(crate) claims: Vec<v1::ShardAssignment>,
    /// The ticket of job `meet`, for the rendezvous.
    pub(crate) ticket: u64,
    /// The manifest that the trainer's rank has in the store for checkpoint 2.
    pub(crate) manifest: v1::BlobName,
}

pub(crate) fn job(name: &str) -> Option<v1::JobName> {
    Some(v1::JobName { namespace: "default".into(), job: name.into() })
}

pub(crate) fn participant(name: &str) -> Option<v1::Participant> {
    Some(v1::Participant {
        name: name.into(),
        host: "h".into(),
        addr: "h:1".into(),
        local_world_size: 1,
        keep_alive_interval_ms: 600_000,
        keep_alive_attempts: 3,
    })
}

pub(crate) fn trainer(name: &str) -> Option<v1::TrainerDecl> {
    Some(v1::TrainerDecl {
        name: name.into(),
        host: "h".into(),
        instance: 1,
        keep_alive_ms: 600_000,
    })
}

pub(crate) fn spec() -> Option<v1::RunSpec> {
    Some(v1::RunSpec {
        engine: Some(v1::EngineSpec {
            model: "m".into(),
            task: "generate".into(),
            ..Default::default()
        }),
        sampling_json: "{}".into(),
        weight: 1,
        attempts_max: 1,
        failures_max: 100,
        ..Default::default()
    })
}

pub(crate) fn segment(folder: &str, number: u32, rows: u32) -> v1::SegmentDecl {
    let key = format!("runs/default/{folder}/segments/{}", "07".repeat(DIGEST.len()));
    let blob = v1::BlobRef { key, digest: DIGEST.to_vec().into(), bytes: 100 };
    v1::SegmentDecl { number, rows, blob: Some(blob) }
}

pub(crate) fn registration(name: &str) -> v1::RegisterRequest {
    v1::RegisterRequest {
        namespace: "default".into(),
        name: name.into(),
        instance: 5,
        slots: vec![v1::SlotOffer {
            models: vec!["*".into()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            ..Default::default()
        }],
        address: "h:2".into(),
        ..Default::default()
    }
}

impl Fixture {
    /// Names and numbers of objects that do not exist.
    pub(crate) fn of_nothing() -> Self {
        Self {
            session: 0,
            seq: Cell::new(0),
            open_run: 0,
            open_folder: String::new(),
            rows_run: 0,
            worker: 0,
            trainer: v1::TrainerRef::default(),
            leaves: v1::TrainerRef::default(),
            claims: vec![v1::ShardAssignment::default(); 2],
            ticket: 0,
            manifest: v1::BlobName::default(),
        }
    }

    /// The next request's id.
    pub(crate) fn id(&self) -> Option<v1::RequestId> {
        self.seq.set(self.seq.get() + 1);
        Some(v1::RequestId { session: self.session, seq: self.seq.get(), ack_upto: 0 })
    }

    pub(crate) async fn make(member: &Member) -> Self {
        let mut runs = v1::runs_client::RunsClient::new(member.channel());
        let open = v1::OpenSessionRequest { client_name: "table".into() };
        let session = runs.open_session(open).await.expect("a session").into_inner().session;
        let mut fixture = Self { session, claims: Vec::new(), ..Self::of_nothing() };
        fixture.runs(&mut runs).await;
        fixture.key(member).await;
        fixture.worker(member).await;
        fixture.meeting(member).await;
        fixture.training(member).await;
        fixture
    }

    async fn runs(&mut self, runs: &mut v1::runs_client::RunsClient<tonic::transport::Channel>) {
        for name in ["open", "rows", "ended"] {
            let create = v1::CreateRunRequest {
                request: self.id(),
                namespace: "default".into(),
                name: name.into(),
                spec: spec(),
                folder: String::new(),
            };
            let created = runs.create_run(create).await.expect("a run").into_inner();
            let run = created.run;
            match name {
                "open" => (self.open_run, self.open_folder) = (run, created.folder),
                "rows" => {
                    self.rows_run = run;
                    let segments = vec![segment(&created.folder, 0, 10)];
                    let add = v1::AddSegmentsRequest {
                        request: self.id(),
                        run,
                        segments,
                        ..Default::default()
                    };
                    runs.add_segments(add).await.expect("segments");
                }
                _ => {
                    let cancel = v1::ControlRunRequest {
                        request: self.id(),
                        namespace: "default".into(),
                        name: name.into(),
                        action: v1::RunAction::Cancel.into(),
                        reason: "over".into(),
                    };
                    runs.control_run(cancel).await.expect("cancelled");
                }
            }
        }
    }

    async fn key(&self, member: &Member) {
        let create = v1::CreateKeyRequest {
            request: self.id(),
            id: KEY.into(),
            name: "table".into(),
            role: "viewer".into(),
            secret_hash: DIGEST.to_vec().into(),
            ..Default::default()
        };
        let mut keys = v1::keys_client::KeysClient::new(member.channel());
        keys.create_key(create).await.expect("a key");
    }

    /// Registers, pulls four rows, and reports a permanent failure of the first.
    async fn worker(&mut self, member: &Member) {
        let mut worker = v1::worker_client::WorkerClient::new(member.channel());
        let registered = worker.register(registration("w1")).await.expect("registered");
        self.worker = registered.into_inner().session;
        let epoch = member.moment().await.epoch;
        let (out, outbound) = mpsc::channel(4);
        let mut answers =
            worker.work(ReceiverStream::new(outbound)).await.expect("a stream").into_inner();
        let mut failures = Vec::new();
        for seq in 1..=2 {
            let credit_rows = if seq == 1 { 4 } else { 0 };
            let exchange = v1::Exchange {
                seq,
                credit_rows,
                failures: std::mem::take(&mut failures),
                ..Default::default()
            };
            let kind = Some(Up::Exchange(exchange));
            let message =
                v1::WorkerMessage { session: self.worker, coord_epoch: epoch, kind, instance: 5 };
            out.send(message).await.expect("sent");
            let answer = loop {
                let next = tokio::time::timeout(PATIENCE, answers.message()).await;
                let message = next.expect("in time").expect("an answer").expect("an answer");
                if let Some(Down::Exchange(answer)) = message.kind {
                    break answer;
                }
            };
            assert!(answer.refused.is_empty(), "{answer:?}");
            for grant in answer.grants {
                let starts = grant.rows.expect("rows").starts;
                let rows = Some(v1::Rows { starts: vec![starts[0]], lens: vec![1] });
                failures.push(v1::FailedAttempt {
                    run: grant.run,
                    attempt: grant.attempt,
                    rows,
                    class: v1::FailureClass::InvalidRow.into(),
                    code: "invalid".into(),
                    message: "no".into(),
                    evidence: None,
                });
            }
            assert_eq!(failures.len() as u64, 2 - seq, "it was given rows, and one has failed");
        }
    }

    async fn meeting(&mut self, member: &Member) {
        let mut rendezvous = v1::rendezvous_client::RendezvousClient::new(member.channel());
        let join = v1::JoinRequest {
            request: self.id(),
            job: job("meet"),
            participant: participant("a"),
            min: 1,
            max: 8,
            last_call_ms: 1,
            ..Default::default()
        };
        self.ticket = rendezvous.join(join).await.expect("joined").into_inner().ticket;
        let mut barrier = v1::barrier_client::BarrierClient::new(member.channel());
        let arrive = v1::ArriveRequest {
            request: self.id(),
            barrier: Some(v1::BarrierName { job: job("meet"), barrier: "waits".into() }),
            generation: 1,
            ticket: self.ticket,
            set: Some(v1::BarrierSet { members: Vec::new(), count: 2 }),
            timeout_ms: 3_600_000,
            ..Default::default()
        };
        barrier.arrive(arrive).await.expect("arrived");
        let mut store = v1::store_client::StoreClient::new(member.channel());
        let pair = v1::StorePair { key: "k".into(), value: "v".into() };
        let set = v1::store_op::Kind::Set(v1::StoreSet { pairs: vec![pair] });
        let apply = v1::StoreApplyRequest {
            request: self.id(),
            store: store_name(),
            ops: vec![v1::StoreOp { kind: Some(set) }],
        };
        store.apply(apply).await.expect("set");
        // A tick of the leader completes the round within its last call. Waiting for it here keeps it from disturbing
        // what follows.
        let wait = v1::RendezvousWaitRequest {
            job: job("meet"),
            ticket: self.ticket,
            wait_ms: 30_000,
            without_members: false,
        };
        let outcome = rendezvous.wait(wait).await.expect("an outcome").into_inner().outcome;
        let completed =
            matches!(outcome, Some(v1::rendezvous_wait_response::Outcome::Completed(_)));
        assert!(completed, "{outcome:?}");
    }

    async fn training(&mut self, member: &Member) {
        let mut datasets = v1::datasets_client::DatasetsClient::new(member.channel());
        for name in ["corpus", "spare"] {
            let create = v1::CreateDatasetRequest {
                request: self.id(),
                namespace: "default".into(),
                name: name.into(),
                spec: dataset(),
            };
            datasets.create_dataset(create).await.expect("a dataset");
        }
        let mut shards = v1::shards_client::ShardsClient::new(member.channel());
        for name in ["train", "leaves", "idle"] {
            let join = v1::JoinJobRequest {
                request: self.id(),
                job: job(name),
                trainer: trainer("t1"),
                ..Default::default()
            };
            let ticket = shards.join_job(join).await.expect("joined").into_inner().ticket;
            let by = v1::TrainerRef { job: job(name), trainer: "t1".into(), ticket };
            match name {
                "train" => self.trainer = by,
                "leaves" => self.leaves = by,
                _ => {
                    let leave = v1::LeaveJobRequest { request: self.id(), by: Some(by) };
                    shards.leave_job(leave).await.expect("left");
                }
            }
        }
        for _ in 0..2 {
            let claim = shards.claim_shard(self.claim()).await.expect("claimed").into_inner();
            self.claims.push(claim.shard.expect("a shard"));
        }
        self.checkpoints(member).await;
    }

    /// Completes the first checkpoint, and begins the second, with its manifest in the store.
    async fn checkpoints(&mut self, member: &Member) {
        let mut checkpoints = v1::checkpoints_client::CheckpointsClient::new(member.channel());
        let store = BlobStore::open(&member.store_url()).expect("the store");
        for (number, step) in [(1, 10), (2, 20)] {
            let begun = checkpoints.begin_checkpoint(self.begin(step)).await.expect("begun");
            let begun = begun.into_inner().checkpoint.expect("a checkpoint");
            assert_eq!(begun.number, number);
            let manifest =
                v1::CheckpointManifest { format: 1, trainer: "t1".into(), step, files: Vec::new() };
            let bytes = manifest.encode_to_vec();
            let digest = *blake3::hash(&bytes).as_bytes();
            let key = rollout_storage::checkpoint_key("default", "train", number, &digest);
            self.manifest =
                v1::BlobName { digest: digest.to_vec().into(), bytes: bytes.len() as u32 };
            store.put(&key, bytes.into()).await.expect("stored");
            if number == 1 {
                let report = self.report(number);
                checkpoints.report_checkpoint(report).await.expect("reported");
            }
        }
    }

    pub(crate) fn claim(&self) -> v1::ClaimShardRequest {
        v1::ClaimShardRequest {
            request: self.id(),
            by: Some(self.trainer.clone()),
            dataset: "corpus".into(),
            epoch: 0,
        }
    }

    pub(crate) fn begin(&self, step: u64) -> v1::BeginCheckpointRequest {
        v1::BeginCheckpointRequest {
            request: self.id(),
            by: Some(self.trainer.clone()),
            step,
            label: String::new(),
        }
    }

    pub(crate) fn report(&self, number: u32) -> v1::ReportCheckpointRequest {
        let progress = self.claims.iter().map(|shard| v1::ShardProgress {
            dataset: "corpus".into(),
            epoch: 0,
            shard: shard.shard,
            end_sample: shard.first_sample,
        });
        v1::ReportCheckpointRequest {
            request: self.id(),
            by: Some(self.trainer.clone()),
            number,
            manifest: Some(self.manifest.clone()),
            bytes: 0,
            objects: 0,
            progress: progress.collect(),
        }
    }
}

pub(crate) fn store_name() -> Option<v1::StoreName> {
    Some(v1::StoreName { namespace: "default".into(), job: "keys".into(), ..Default::default() })
}

pub(crate) fn dataset() -> Option<v1::DatasetSpec> {
    Some(v1::DatasetSpec {
        uri: "file:///{shard}".into(),
        format: "raw".into(),
        samples: 100,
        shard_samples: 10,
        ..Default::default()
    })
}
