//! Converts between the types of the wire and those of the ledger: rows, objects, results and runs, for exchanges with
//! workers, manifests and answers. Bad input ends here, as `InvalidArgument`.
//!
//! *Invariant:* input that reaches the ledger is well formed: rows are ascending and disjoint, digests have 32 bytes,
//! and keys are those that every process derives from run and digest.
//!
//! Absent: what only requests of clients and registrations have (`grpc::convert`).

use rollout_ledger::id::{Attempt, RunNo};
use rollout_ledger::view::{FailedTry, FailureRecord, RunState, RunView, SegmentView};
use rollout_ledger::{
    BlobRef, Evidence, FailureClass, GrantedRows, HeldRows, Rows, RunSpec, SegmentRef, WebhookState,
};
use rollout_proto::{ErrorCode, RpcError, v1};

/// A check of the wire's input.
pub(crate) type Checked<T> = Result<T, RpcError>;

pub(crate) fn invalid(what: impl Into<String>) -> RpcError {
    RpcError::new(ErrorCode::InvalidArgument, what)
}

pub(crate) fn rows_in(rows: Option<&v1::Rows>) -> Checked<Rows> {
    let Some(rows) = rows else { return Ok(Rows::default()) };
    if rows.starts.len() != rows.lens.len() {
        return Err(invalid("rows: starts and lens differ in length"));
    }
    Rows::from_ranges(rows.starts.iter().copied().zip(rows.lens.iter().copied()))
        .ok_or_else(|| invalid("rows: ranges must be ascending, disjoint and not empty"))
}

pub(crate) fn rows_out(rows: &Rows) -> v1::Rows {
    let (starts, lens) = rows.ranges().iter().copied().unzip();
    v1::Rows { starts, lens }
}

pub(crate) fn held_in(held: &v1::HeldRows) -> Checked<HeldRows> {
    Ok(HeldRows {
        run: RunNo(held.run),
        attempt: Attempt(held.attempt),
        rows: rows_in(held.rows.as_ref())?,
    })
}

pub(crate) fn held_out(held: &HeldRows) -> v1::HeldRows {
    v1::HeldRows { run: held.run.0, attempt: held.attempt.0, rows: Some(rows_out(&held.rows)) }
}

pub(crate) fn digest_in(digest: &[u8]) -> Checked<[u8; 32]> {
    digest.try_into().map_err(|_| invalid("a digest must have 32 bytes"))
}

/// Reads the object that a segment or part of a run requires.
pub(crate) fn blob_in(blob: Option<&v1::BlobRef>) -> Checked<BlobRef> {
    let blob = blob.ok_or_else(|| invalid("a blob is missing"))?;
    let bytes = u32::try_from(blob.bytes).map_err(|_| invalid("a blob is over 4 GiB"))?;
    Ok(BlobRef { digest: digest_in(&blob.digest)?, bytes })
}

/// The kind of object that a key names.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Segment,
    Part,
    Manifest,
    Evidence,
}

/// Names an object of a run, by the run's folder within its namespace. The other functions here do the same.
pub(crate) fn blob_out(namespace: &str, folder: &str, kind: Kind, blob: &BlobRef) -> v1::BlobRef {
    let key = match kind {
        Kind::Segment => rollout_storage::segment_key(namespace, folder, &blob.digest),
        Kind::Part => rollout_storage::part_key(namespace, folder, &blob.digest),
        Kind::Manifest => rollout_storage::manifest_key(namespace, folder, &blob.digest),
        Kind::Evidence => rollout_storage::evidence_key(namespace, folder, &blob.digest),
    };
    v1::BlobRef { key, digest: blob.digest.to_vec().into(), bytes: blob.bytes.into() }
}

pub(crate) fn spec_out(spec: &RunSpec) -> v1::RunSpec {
    v1::RunSpec {
        engine: Some(v1::EngineSpec {
            model: spec.engine.model.clone(),
            revision: spec.engine.revision.clone(),
            task: spec.engine.task.clone(),
            options_json: spec.engine.options_json.clone(),
        }),
        sampling_json: spec.sampling_json.clone(),
        selector: spec.selector.clone().into_iter().collect(),
        priority: spec.priority.into(),
        weight: spec.weight,
        running_rows_max: spec.running_rows_max as u32,
        attempt_timeout_ms: spec.attempt_timeout_ms,
        failures_max: spec.failures_max as u32,
        attempts_max: spec.attempts_max,
        store_url: spec.store_url.clone(),
        input_name: spec.input_name.clone(),
        options_json: spec.options_json.clone(),
        tail_duplicates: spec.tail_duplicates,
        canary_rows: spec.canary_rows,
        canary_failures_max: spec.canary_failures_max,
        run_ttl_ms: spec.run_ttl_ms,
        retention_ms: spec.retention_ms,
        require: spec.require.clone().into_iter().collect(),
        deadline_ms: spec.deadline_ms,
        notify_url: spec.notify_url.clone(),
    }
}

/// The spec without `notify_url`, which may contain a secret. Workers, and every principal that can read the
/// namespace's objects, see the result.
pub(crate) fn spec_for_workers(spec: &RunSpec) -> v1::RunSpec {
    v1::RunSpec { notify_url: String::new(), ..spec_out(spec) }
}

/// The evidence of a failure. A longer text is an object of the run.
pub(crate) fn evidence_in(evidence: Option<&v1::Evidence>) -> Checked<Evidence> {
    let Some(e) = evidence else { return Ok(Evidence::default()) };
    Ok(Evidence {
        exit_code: e.exit_code,
        signal: e.signal,
        exception: e.exception.clone(),
        text: e.text.as_ref().map(|blob| blob_in(Some(blob))).transpose()?,
    })
}

/// The evidence in an answer, with the key of its text in the run's folder.
pub(crate) fn evidence_out(namespace: &str, folder: &str, evidence: &Evidence) -> v1::Evidence {
    let text = evidence.text.as_ref();
    v1::Evidence {
        exit_code: evidence.exit_code,
        signal: evidence.signal,
        exception: evidence.exception.clone(),
        text: text.map(|blob| blob_out(namespace, folder, Kind::Evidence, blob)),
    }
}

pub(crate) fn segment_out(namespace: &str, folder: &str, segment: &SegmentRef) -> v1::SegmentRef {
    v1::SegmentRef {
        number: segment.number.0,
        first_row: segment.first_row,
        rows: segment.rows,
        blob: Some(blob_out(namespace, folder, Kind::Segment, &segment.blob)),
    }
}

/// A grant, with the folder of its run, which the keys of its objects need.
pub(crate) fn grant_out(granted: &GrantedRows, folder: Option<&(String, String)>) -> v1::Grant {
    let (namespace, folder) = folder.map_or(("", ""), |(n, r)| (n.as_str(), r.as_str()));
    v1::Grant {
        run: granted.held.run.0,
        attempt: granted.held.attempt.0,
        rows: Some(rows_out(&granted.held.rows)),
        segments: granted.segments.iter().map(|s| segment_out(namespace, folder, s)).collect(),
        alone: granted.alone,
    }
}

pub(crate) fn class_in(class: i32) -> Checked<FailureClass> {
    use v1::FailureClass as W;
    match W::try_from(class) {
        Ok(W::InvalidRow) => Ok(FailureClass::InvalidRow),
        Ok(W::Transient) => Ok(FailureClass::Transient),
        Ok(W::OutOfMemory) => Ok(FailureClass::OutOfMemory),
        Ok(W::EngineDied) => Ok(FailureClass::EngineDied),
        Ok(W::InputUnreadable) => Ok(FailureClass::InputUnreadable),
        Ok(W::StoreRefused) => Ok(FailureClass::StoreRefused),
        Ok(W::Unspecified) | Err(_) => Err(invalid("unknown failure class")),
    }
}

pub(crate) fn class_name(class: FailureClass) -> &'static str {
    match class {
        FailureClass::InvalidRow => "invalid_row",
        FailureClass::Transient => "transient",
        FailureClass::OutOfMemory => "out_of_memory",
        FailureClass::EngineDied => "engine_died",
        FailureClass::InputUnreadable => "input_unreadable",
        FailureClass::StoreRefused => "store_refused",
    }
}

pub(crate) fn failed_row_out(
    namespace: &str,
    folder: &str,
    row: u64,
    record: &FailureRecord,
) -> v1::FailedRow {
    let last = record.history.last();
    let text = |f: fn(&FailedTry) -> &String| last.map(f).cloned().unwrap_or_default();
    v1::FailedRow {
        row,
        class: last.map_or("", |t| class_name(t.class)).into(),
        code: text(|t| &t.code),
        message: text(|t| &t.message),
        attempts: record.history.len() as u32,
        evidence: last.map(|t| evidence_out(namespace, folder, &t.evidence)),
    }
}

/// A run in an answer, with the reason why it is blocked.
pub(crate) fn run_out(view: &RunView, blocked: String) -> v1::RunSummary {
    let state = match view.state {
        RunState::Running => v1::RunState::Running,
        RunState::Paused => v1::RunState::Paused,
        RunState::Cancelled => v1::RunState::Cancelled,
        RunState::Finished => v1::RunState::Finished,
        RunState::Deleting => v1::RunState::Deleting,
        RunState::DeadlineExceeded => v1::RunState::DeadlineExceeded,
    };
    let c = view.counts;
    v1::RunSummary {
        run: view.run.0,
        namespace: view.namespace.clone(),
        name: view.name.clone(),
        state: state.into(),
        reason: view.reason.clone(),
        counts: Some(v1::RunCounts {
            rows: view.rows,
            pending: view.pending,
            running: c.running,
            waiting: c.waiting,
            done: c.done,
            failed: c.failed,
            retries: c.retries,
            returned: c.returned,
            tokens_in: c.tokens_in,
            tokens_out: c.tokens_out,
            dropped: c.dropped,
            stolen: c.stolen,
            carried: c.reused,
            duplicated: c.speculative_rows,
        }),
        segments: view.segments,
        input_closed: view.input_closed,
        created_wall_ms: view.created_wall_ms,
        finished_wall_ms: view.finished_wall_ms,
        priority: view.spec.priority.into(),
        model: view.spec.engine.model.clone(),
        workers: view.workers,
        blocked,
        canary_rows: view.canary_rows,
        manifest: view
            .sealed
            .as_ref()
            .map(|s| blob_out(&view.namespace, &view.folder, Kind::Manifest, &s.manifest)),
        folder: view.folder.clone(),
        notice: webhook_state_name(view.webhook).into(),
    }
}

fn webhook_state_name(state: WebhookState) -> &'static str {
    match state {
        WebhookState::None => "",
        WebhookState::Due { .. } => "due",
        WebhookState::Delivered { .. } => "delivered",
        WebhookState::GivenUp { .. } => "given_up",
    }
}

/// A segment with its outcomes.
pub(crate) fn results_out(
    namespace: &str,
    folder: &str,
    view: &SegmentView,
) -> v1::ReadResultsResponse {
    let part = |r: &Option<(u32, u32)>| r.map_or(0, |(part, _)| part + 1);
    let parts = view.parts.iter();
    v1::ReadResultsResponse {
        header: None,
        number: view.segment.number.0,
        first_row: view.segment.first_row,
        rows: view.segment.rows,
        blob: Some(blob_out(namespace, folder, Kind::Segment, &view.segment.blob)),
        parts: view.results.iter().map(part).collect(),
        part_rows: view.results.iter().map(|r| r.map_or(0, |(_, row)| row)).collect(),
        part_table: parts.map(|p| blob_out(namespace, folder, Kind::Part, &p.blob)).collect(),
        failures: view
            .failures
            .iter()
            .map(|(row, t)| failed_row_out(namespace, folder, *row, t))
            .collect(),
    }
}
