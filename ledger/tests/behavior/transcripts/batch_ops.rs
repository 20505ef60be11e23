//! Operations on batches, as lines of a story name them.

use super::args::{self, Args, Parsed};
use rollout_ledger::id::{BatchFence, LedgerMs, SegmentNo};
use rollout_ledger::{
    BatchDecl, BatchError, BatchOutput, BatchSpec, BatchStatus, BatchUsage, BatchView, BatchWork,
    BlobRef, EngineSpec, Extent, Ledger, OpKind, ROLLOUT_KEY, RunSpec, SegmentDecl, op,
};

fn decl(args: &mut Args) -> Parsed<Box<BatchDecl>> {
    let id = args.text("id")?;
    let idempotency = match args.number("idempotency", 0)? {
        0 => None,
        byte => Some([byte; 32]),
    };
    let own = args.get("own").map(|own| (ROLLOUT_KEY.to_owned(), own));
    Ok(Box::new(BatchDecl {
        namespace: args.text_or("namespace", "default"),
        key: args.text_or("key", ""),
        idempotency,
        body_hash: [args.number("body", 1)?; 32],
        spec: BatchSpec {
            endpoint: "/v1/chat/completions".into(),
            input_file: args.text_or("file", "file-1"),
            completion_window: "1m".into(),
            window_ms: args.number("window", 60_000)?,
            metadata: own.into_iter().collect(),
            output_ttl_ms: args.number("ttl", 0)?,
            options_json: String::new(),
        },
        folder: format!("{id}/0123456789abcdef-1"),
        id,
    }))
}

/// The last fence of the work of a batch, or another one: `fence=3.0`.
fn fence(ledger: &Ledger, args: &mut Args, batch: &str) -> Parsed<BatchFence> {
    if let Some(fence) = args.get("fence") {
        return args::stamp(&fence).map(BatchFence);
    }
    let task = ledger.batch_tasks().into_iter().find(|task| task.batch == batch);
    Ok(task.map_or(BatchFence::default(), |task| task.fence))
}

/// Segments after those that the batch has. Each line of the file has 10 bytes.
fn segments(ledger: &Ledger, args: &mut Args) -> Parsed<OpKind> {
    let batch = args.text("id")?;
    let fence = fence(ledger, args, &batch)?;
    let have = ledger.batch_segments(&batch);
    let mut lines: u64 = have.iter().map(|segment| u64::from(segment.rows)).sum();
    let mut segments = Vec::new();
    for (number, rows) in (args.number("from", have.len() as u32)?..).zip(args.list("rows")) {
        let rows: u32 = rows.parse().map_err(|_| format!("{rows} is no number of rows"))?;
        let blob = BlobRef { digest: [number as u8; 32], bytes: 9 };
        segments.push(SegmentDecl { number: SegmentNo(number), rows, blob });
        lines += u64::from(rows);
    }
    let offset = 10 * lines;
    Ok(OpKind::AddBatchSegments(op::AddBatchSegments { batch, fence, segments, offset, lines }))
}

fn start(ledger: &Ledger, args: &mut Args) -> Parsed<OpKind> {
    let batch = args.text("id")?;
    let fence = fence(ledger, args, &batch)?;
    let segments = ledger.batch_segments(&batch);
    let rows = segments.iter().map(|segment| u64::from(segment.rows)).sum();
    let all: Vec<u8> = segments.iter().flat_map(|segment| segment.blob.digest).collect();
    let spec = RunSpec {
        engine: EngineSpec { model: args.text_or("model", "m"), ..EngineSpec::default() },
        weight: 1,
        attempts_max: 3,
        failures_max: u64::MAX,
        ..RunSpec::default()
    };
    Ok(OpKind::StartBatch(op::StartBatch {
        batch,
        fence,
        spec: Box::new(spec),
        rows: args.number("rows", rows)?,
        digest: *blake3::hash(&all).as_bytes(),
    }))
}

fn finish(ledger: &Ledger, args: &mut Args) -> Parsed<OpKind> {
    let batch = args.text("id")?;
    let fence = fence(ledger, args, &batch)?;
    let ends_as = match args.text_or("as", "completed").as_str() {
        "completed" => BatchStatus::Completed,
        "expired" => BatchStatus::Expired,
        "cancelled" => BatchStatus::Cancelled,
        other => return Err(format!("no batch ends as {other}")),
    };
    let begun_at = LedgerMs(args.number("begun", 0)?);
    let output = args.get("output").map(|id| {
        let pieces = vec![BlobRef { digest: [9; 32], bytes: 90 }];
        let content = Extent { folder: format!("0123456789abcdef-{id}"), pieces };
        BatchOutput { id, filename: "out.jsonl".into(), content, begun_at }
    });
    let (errors, usage) = (None, BatchUsage::default());
    Ok(OpKind::FinishBatch(op::FinishBatch { batch, fence, ends_as, output, errors, usage }))
}

/// The operation of a line; `None` if it is none on batches.
pub(crate) fn batch(ledger: &Ledger, args: &mut Args) -> Parsed<Option<OpKind>> {
    let name = args.name.clone();
    Ok(Some(match name.as_str() {
        // Example: batch id=batch_1 file=file-1 window=60000 key=aB3dE6gH idempotency=1 own=nightly body=1 ttl=3600000
        "batch" => OpKind::CreateBatch(decl(args)?),
        // Example: assign-batch id=batch_1 member=2
        "assign-batch" => OpKind::AssignBatch(op::AssignBatch {
            batch: args.text("id")?,
            member: args.number("member", 1)?,
        }),
        // Example: batch-segments id=batch_1 rows=8,4 from=0 fence=3.0
        "batch-segments" => segments(ledger, args)?,
        // Example: fail-batch id=batch_1 line=3
        "fail-batch" => {
            let batch = args.text("id")?;
            let fence = fence(ledger, args, &batch)?;
            let (code, message) = ("invalid_json_line".into(), "not JSON".into());
            let line = Some(args.number("line", 1)?);
            let errors = vec![BatchError { code, message, param: None, line }];
            OpKind::FailBatch(op::FailBatch { batch, fence, errors })
        }
        // Example: start-batch id=batch_1 rows=12
        "start-batch" => start(ledger, args)?,
        // Example: cancel-batch id=batch_1
        "cancel-batch" => OpKind::CancelBatch(op::CancelBatch { batch: args.text("id")? }),
        // Example: finish-batch id=batch_1 as=completed output=file-9 begun=0
        "finish-batch" => finish(ledger, args)?,
        _ => return Ok(None),
    }))
}

/// Every batch of the namespace `default`, the newest first, and the work for batches.
pub(crate) fn batches(ledger: &Ledger) -> String {
    let (page, _) = ledger.batch_views("default", None, usize::MAX).unwrap_or_default();
    let view = |view: BatchView| {
        let counts =
            format!("{} done and {} failed of {}", view.completed, view.failed, view.total);
        let output = view.output_file.map_or(String::new(), |id| format!(", {id}"));
        let errors = view.errors.iter().filter_map(|error| error.line);
        let errors: String = errors.map(|line| format!(", error in line {line}")).collect();
        format!("{}: {}, {counts}{output}{errors}", view.id, view.status)
    };
    let mut lines: Vec<String> = page.into_iter().map(view).collect();
    lines.extend(ledger.batch_tasks().into_iter().map(|task| {
        let work = match task.work {
            BatchWork::Validate(at) => {
                format!("validate from byte {}, line {}", at.offset, at.lines)
            }
            BatchWork::Finish(status) => format!("finish as {status}"),
        };
        let owner = task.owner.map_or("nobody".to_owned(), |id| format!("member {id}"));
        format!("{owner} has {} under {}: {work}", task.batch, task.fence)
    }));
    lines.join("\n")
}
