//! Messages that are objects in a store: manifests of sealed runs and of checkpoints.
//!
//! *Invariant:* a build reads what earlier builds wrote, so no line changes. `ROLLOUT_REWRITE=1` writes the file anew, which
//! needs a reason why no store has the old bytes.
//! Absent: messages that are only sent, whose numbers and types are in `contract.rs`.

use std::fmt::Write as _;

use prost::Message;
use rollout_proto::v1;
use rollout_recorded::check;

fn blob(kind: &str, fill: u8) -> v1::BlobRef {
    let key =
        format!("runs/team/chat/0123456789abcdef-0000000000000001/{kind}/{}", "ab".repeat(32));
    v1::BlobRef { key, digest: vec![fill; 32].into(), bytes: 70_000 }
}

fn name(fill: u8) -> Option<v1::BlobName> {
    Some(v1::BlobName { digest: vec![fill; 32].into(), bytes: 70_000 })
}

/// One entry of a map at most: more have no order.
fn spec() -> v1::RunSpec {
    v1::RunSpec {
        engine: Some(v1::EngineSpec {
            model: "hf://m".into(),
            revision: "main".into(),
            task: "generate".into(),
            options_json: "{}".into(),
        }),
        sampling_json: "{\"seed\":1}".into(),
        selector: [("gpu".to_owned(), "h200".to_owned())].into(),
        priority: 7,
        weight: 3,
        running_rows_max: 1000,
        attempt_timeout_ms: 60_000,
        failures_max: 100,
        attempts_max: 3,
        store_url: "s3://bucket".into(),
        input_name: "in.jsonl".into(),
        options_json: "{}".into(),
        tail_duplicates: true,
        canary_rows: 10,
        canary_failures_max: 2,
        run_ttl_ms: 5000,
        retention_ms: 6000,
        require: [("vllm".to_owned(), ">=0.32".to_owned())].into(),
        deadline_ms: 7_000_000,
        notify_url: String::new(),
    }
}

fn summary() -> v1::RunSummary {
    v1::RunSummary {
        run: 300,
        namespace: "team".into(),
        name: "chat".into(),
        state: v1::RunState::Finished.into(),
        reason: "why".into(),
        counts: Some(v1::RunCounts {
            rows: 300,
            pending: 1,
            running: 2,
            waiting: 3,
            done: 4,
            failed: 5,
            retries: 6,
            returned: 7,
            tokens_in: 70_000,
            tokens_out: 70_001,
            dropped: 8,
            stolen: 9,
            carried: 10,
            duplicated: 11,
        }),
        segments: 2,
        input_closed: true,
        created_wall_ms: 1_700_000_000_123,
        finished_wall_ms: 1_700_000_000_124,
        priority: 7,
        model: "hf://m".into(),
        folder: "chat/0123456789abcdef-0000000000000001".into(),
        ..v1::RunSummary::default()
    }
}

fn sealed_run() -> v1::SealedRun {
    let chunk = v1::SealedChunk { blob: Some(blob("manifest", 1)), first_segment: 64, segments: 2 };
    v1::SealedRun { format: 1, run: Some(summary()), spec: Some(spec()), chunks: vec![chunk] }
}

fn sealed_segments() -> v1::SealedSegments {
    let evidence = v1::Evidence {
        exit_code: Some(-1),
        signal: Some(9),
        exception: "Oom".into(),
        text: Some(blob("evidence", 2)),
    };
    let failed = v1::FailedRow {
        row: 302,
        class: "transient".into(),
        code: "RO-0001".into(),
        message: "why".into(),
        attempts: 3,
        evidence: Some(evidence),
    };
    let segment = v1::ReadResultsResponse {
        number: 1,
        first_row: 300,
        rows: 3,
        blob: Some(blob("segments", 3)),
        parts: vec![1, 2, 0],
        part_rows: vec![300, 0, 0],
        part_table: vec![blob("parts", 4), blob("parts", 5)],
        failures: vec![failed],
        ..v1::ReadResultsResponse::default()
    };
    v1::SealedSegments { format: 1, segments: vec![segment] }
}

fn checkpoint_manifest() -> v1::CheckpointManifest {
    let file = v1::CheckpointFile {
        name: "model/part-0".into(),
        bytes: 70_000,
        digest: vec![6; 32].into(),
        chunks: name(7).into_iter().chain(name(8)).collect(),
    };
    v1::CheckpointManifest { format: 1, trainer: "t0".into(), step: 300, files: vec![file] }
}

/// The line of a message, which comes back as it was.
fn line<M: Message + Default + PartialEq>(of: &str, message: &M) -> String {
    let bytes = message.encode_to_vec();
    assert!(M::decode(bytes.as_slice()).is_ok_and(|back| back == *message), "{of}");
    let mut line = format!("{of} ");
    for byte in bytes {
        // invariant: writing to a string does not fail.
        let _ = write!(line, "{byte:02x}");
    }
    line
}

#[test]
fn the_bytes_of_messages_that_are_objects_are_locked() {
    let lines = [
        line("sealed_run", &sealed_run()),
        line("sealed_segments", &sealed_segments()),
        line("checkpoint_manifest", &checkpoint_manifest()),
    ];
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/objects.txt"), &(lines.join("\n") + "\n"));
}
