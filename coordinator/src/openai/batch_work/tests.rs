//! Tests of the work on batches, with a ledger without consensus and a store in a temporary directory.

mod drivers;
mod outputs;
mod validations;

use super::context::Context;
use super::error::WorkError;
use super::{assembly, validation};
use crate::openai::content::{self, ContentWriter};
use crate::openai::test_cluster::TestCluster;
use bytes::Bytes;
use futures::TryStreamExt;
use rollout_ledger::id::{SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    BatchDecl, BatchSpec, BatchTask, BatchView, BatchWork, BlobRef, Evidence, FailureClass,
    FilePurpose, FileSpec, HeldRows, OpKind, PartDecl, ROUTES_PROPERTY, Registration, Reply, Rows,
    SlotOffer, op,
};
use rollout_storage::{PartRow, PartRowKind, PartWriter, part_key};
use serde_json::{Value, json};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

const ENDPOINT: &str = "/v1/chat/completions";
const WINDOW_MS: u64 = 60_000;
/// The members of the cluster.
const FIRST: u64 = 1;
const SECOND: u64 = 2;

struct Bench {
    cluster: TestCluster,
    context: Arc<Context>,
    dir: tempfile::TempDir,
    pulls: u64,
}

/// A line of a batch file.
fn line(id: &str) -> String {
    let body = json!({ "model": "m", "messages": [{ "role": "user", "content": id }] });
    json!({ "custom_id": id, "method": "POST", "url": ENDPOINT, "body": body }).to_string()
}

/// A file with so many lines.
fn file_of(lines: u64) -> String {
    (0..lines).map(|number| line(&format!("row-{number}")) + "\n").collect()
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let store = dir.path().join("store");
        let cluster = TestCluster::with_store(&format!("file://{}", store.display()));
        let context = Context::new(cluster.api(), dir.path().to_owned());
        Self { cluster, context, dir, pulls: 0 }
    }

    /// Creates a batch of a file with this text.
    async fn batch(&self, id: &str, text: &str) {
        let (namespace, file) = ("default".to_owned(), format!("file-{}", &id[6..]));
        let mut writer = ContentWriter::begin(&self.context.api, &namespace, &file);
        writer.push(Bytes::from(text.to_owned())).await.expect("stored");
        let (content, begun_at, _named) = writer.finish().await.expect("stored").name();
        let (key, filename, purpose) = (String::new(), "in.jsonl".into(), FilePurpose::Batch);
        let spec = FileSpec { namespace: namespace.clone(), key, filename, purpose, ttl_ms: 0 };
        self.cluster.op(OpKind::CreateFile(op::CreateFile {
            id: file.clone(),
            spec: Box::new(spec),
            request: None,
            content,
            begun_at,
        }));
        let spec = BatchSpec {
            endpoint: ENDPOINT.into(),
            input_file: file,
            completion_window: "1m".into(),
            window_ms: WINDOW_MS,
            ..BatchSpec::default()
        };
        let folder = format!("{id}/0123-1");
        let id = id.to_owned();
        let batch = BatchDecl { id, namespace, spec, folder, ..BatchDecl::default() };
        self.cluster.op(OpKind::CreateBatch(Box::new(batch)));
    }

    /// Assigns the work of a batch to a member.
    fn assign(&self, id: &str, member: u64) -> BatchTask {
        let batch = id.to_owned();
        self.cluster.op(OpKind::AssignBatch(op::AssignBatch { batch, member }));
        let tasks: Vec<BatchTask> = self.context.api.ledger(|l| l.batch_tasks_of(member));
        tasks.into_iter().find(|task| task.batch == id).expect("work")
    }

    async fn validate(&self, task: BatchTask) -> Result<(), WorkError> {
        validation::validate(self.context.clone(), task, CancellationToken::new()).await
    }

    /// A batch whose run has started.
    async fn started(&self, id: &str, text: &str) {
        self.batch(id, text).await;
        self.validate(self.assign(id, FIRST)).await.expect("valid");
        assert_eq!(self.view(id).status.name(), "in_progress");
    }

    /// Writes the output of a batch whose run has ended.
    async fn assemble(&self, id: &str) {
        let task = self.assign(id, SECOND);
        let BatchWork::Finish(ends_as) = task.work else { panic!("the run has not ended") };
        assembly::assemble(&self.context, &task, ends_as).await.expect("written");
    }

    fn view(&self, id: &str) -> BatchView {
        self.context.api.ledger(|l| l.batch_view(id)).expect("a batch")
    }

    fn register(&self) -> SlotRef {
        let offer = SlotOffer {
            models: vec!["m".into()],
            tasks: vec!["openai".into()],
            versions: [(ROUTES_PROPERTY.to_owned(), ENDPOINT.to_owned())].into(),
            ..SlotOffer::default()
        };
        let registration = Registration {
            namespace: "default".into(),
            name: "w".into(),
            instance: 1,
            slots: vec![offer],
            ..Registration::default()
        };
        let registered = self.cluster.op(OpKind::Register(Box::new(registration)));
        let Reply::Registered { session, .. } = registered else { panic!("no session") };
        slot(session)
    }

    /// Claims so many rows.
    fn claim(&mut self, slot: SlotRef, rows_max: u32) -> Vec<HeldRows> {
        self.pulls += 1;
        let claim = op::Claim { slot, instance: 1, seq: self.pulls, rows_max };
        let Reply::Granted(granted) = self.cluster.op(OpKind::Claim(claim)) else {
            panic!("no rows");
        };
        granted.into_iter().map(|granted| granted.held).collect()
    }

    /// The result of these rows, in one part.
    async fn complete(&self, id: &str, slot: SlotRef, held: &HeldRows, rows: &[u64]) {
        let folder = self.context.api.ledger(|l| l.batch_folder(id).map(str::to_owned));
        let mut part = PartWriter::new();
        for row in rows {
            let usage = json!({
                "prompt_tokens": 2, "completion_tokens": 3,
                "prompt_tokens_details": { "cached_tokens": 1 },
            });
            let response = json!({
                "status_code": 200, "request_id": format!("r{row}"), "body": { "usage": usage },
            });
            let result = json!({
                "completion": "", "finish_reason": "stop", "prompt_tokens": 2,
                "completion_tokens": 3, "extra": { "response": response },
            });
            let (body, attempt) = (result.to_string(), held.attempt.0);
            let (kind, body) = (PartRowKind::Completed, body.as_bytes());
            part.push(PartRow { row: *row, attempt, kind, body }).expect("room");
        }
        let bytes = part.finish();
        let digest = *blake3::hash(&bytes).as_bytes();
        let blob = BlobRef { digest, bytes: bytes.len() as u32 };
        let key = part_key("default", &folder.expect("a folder"), &digest);
        self.context.api.store.put(&key, bytes).await.expect("stored");
        let part = PartDecl { blob, tokens_in: 2, tokens_out: 3 };
        let sets = rows.iter().map(|row| of(held, *row)).collect();
        self.cluster.op(OpKind::Complete(op::Complete { slot, run: held.run, part, sets }));
    }

    fn fail(&self, slot: SlotRef, held: &HeldRows, row: u64, (code, message): (&str, &str)) {
        self.cluster.op(OpKind::Fail(op::Fail {
            slot,
            held: of(held, row),
            class: FailureClass::InvalidRow,
            code: code.into(),
            message: message.into(),
            evidence: Evidence::default(),
        }));
    }

    /// The lines of a file.
    async fn lines(&self, file: &str) -> Vec<Value> {
        let file = self.context.api.ledger(|l| l.api_file(file).cloned()).expect("a file");
        let store = self.context.api.store.clone();
        let read = content::read(store, &file.spec.namespace, &file.content, 0..file.bytes);
        let chunks: Vec<Bytes> = read.try_collect().await.expect("readable");
        let text = String::from_utf8(chunks.concat()).expect("UTF-8");
        assert!(text.ends_with('\n'), "{text}");
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }
}

/// A slot of a worker with one.
fn slot(session: SessionId) -> SlotRef {
    SlotRef { session, slot: SlotNo(0) }
}

/// One of these rows.
fn of(held: &HeldRows, row: u64) -> HeldRows {
    HeldRows { rows: Rows::range(row, 1), ..held.clone() }
}
