//! Operations on runs, their input, and reused results.

use super::args::{self, Args, Parsed};
use super::ops::{blob, run};
use super::world::World;
use rollout_ledger::id::SegmentNo;
use rollout_ledger::{EngineSpec, OpKind, PartDecl, RunAction, RunSpec, SegmentDecl, op};

pub(crate) fn seal(world: &World, args: &mut Args) -> Parsed<OpKind> {
    let run = run(world, &args.text("run")?)?;
    let now = world.ledger.run_view(run).map_or(0, |view| view.ended_index);
    Ok(OpKind::Seal(op::Seal {
        run,
        manifest: blob("manifest"),
        ended_index: args.number("at", now)?,
    }))
}

// Example: create name=chat model=m priority=3 weight=2 cap=10 timeout=1000 failures=5 duplicates=1
pub(crate) fn create(args: &mut Args) -> Parsed<OpKind> {
    let spec = RunSpec {
        engine: EngineSpec {
            model: args.text_or("model", "m"),
            revision: args.text_or("revision", ""),
            task: args.text_or("task", "generate"),
            ..EngineSpec::default()
        },
        selector: args.labels("selector")?,
        require: args.labels("require")?,
        priority: args.number("priority", 5)?,
        weight: args.number("weight", 1)?,
        running_rows_max: args.number("cap", 0)?,
        attempt_timeout_ms: args.number("timeout", 0)?,
        deadline_ms: args.number("deadline", 0)?,
        notify_url: args.text_or("notify", ""),
        failures_max: args.number("failures", 100)?,
        attempts_max: args.number("attempts", 3)?,
        store_url: args.text_or("store", ""),
        canary_rows: args.number("canary", 0)?,
        canary_failures_max: args.number("canary_failures", 0)?,
        tail_duplicates: args.number("duplicates", 0)? > 0,
        ..RunSpec::default()
    };
    let (namespace, name) = (args.text_or("namespace", "default"), args.text("name")?);
    let folder = args.text_or("folder", &format!("{name}/0"));
    Ok(OpKind::CreateRun(op::CreateRun { namespace, name, spec: Box::new(spec), folder }))
}

// Example: segments run=chat rows=4,4,2 from=0 blob=other
pub(crate) fn segments(world: &World, args: &mut Args) -> Parsed<OpKind> {
    let run = run(world, &args.text("run")?)?;
    let from: u32 = args.number("from", world.ledger.run_view(run).map_or(0, |r| r.segments))?;
    let label = args.text_or("blob", "segment");
    let mut segments = Vec::new();
    for (i, rows) in args.list("rows").iter().enumerate() {
        let number = SegmentNo(from + i as u32);
        let rows = rows.parse().map_err(|_| format!("{rows} is no count"))?;
        segments.push(SegmentDecl { number, rows, blob: blob(&format!("{label}{number}")) });
    }
    Ok(OpKind::AddSegments(op::AddSegments { run, segments }))
}

// Example: close run=chat rows=10 digest=wrong
pub(crate) fn close(world: &World, args: &mut Args) -> Parsed<OpKind> {
    let run = run(world, &args.text("run")?)?;
    let view = world.ledger.run_view(run);
    let mut digest = blake3::Hasher::new();
    for number in 0..view.as_ref().map_or(0, |v| v.segments) {
        let segment = world.ledger.segment_view(run, SegmentNo(number)).ok_or("no segment")?;
        digest.update(&segment.segment.blob.digest);
    }
    digest.update(args.text_or("digest", "").as_bytes());
    let rows = args.number("rows", view.map_or(0, |v| v.rows))?;
    Ok(OpKind::CloseInput(op::CloseInput { run, rows, digest: *digest.finalize().as_bytes() }))
}

pub(crate) fn control(world: &World, args: &mut Args, action: RunAction) -> Parsed<OpKind> {
    let run = run(world, &args.text("run")?)?;
    Ok(OpKind::ControlRun(op::ControlRun { run, action, reason: args.text_or("reason", "") }))
}

// Example: carry run=chat segment=0 rows=0-3 part=p1 blob=other
pub(crate) fn reuse_results(world: &World, args: &mut Args) -> Parsed<OpKind> {
    let run = run(world, &args.text("run")?)?;
    let segment = SegmentNo(args.number("segment", 0)?);
    let label = args.text_or("blob", "segment");
    Ok(OpKind::ReuseResults(op::ReuseResults {
        run,
        segment,
        segment_digest: blob(&format!("{label}{segment}")).digest,
        part: PartDecl { blob: blob(&args.text("part")?), tokens_in: 0, tokens_out: 0 },
        rows: args::rows(&args.text("rows")?)?,
    }))
}
