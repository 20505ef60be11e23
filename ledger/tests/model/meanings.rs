//! Resolves the small numbers of an action when it runs to the runs, sessions, grants and pulls of the model's past.

use crate::actions::{Pick, Settled};
use crate::naive::Model;
use rollout_ledger::id::{RunNo, SegmentNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{
    BlobRef, EngineSpec, Evidence, FailureClass, HeldRows, OpKind, PartDecl, Registration, Rows,
    RunSpec, SegmentDecl, SlotOffer, StoreName, op,
};

/// One job's stores of two rounds, another job's, and one in a namespace that may not be there.
pub(crate) fn store_name(store: u8) -> StoreName {
    let namespace = if store == 3 { "team" } else { "default" };
    let job = if store == 2 { "other" } else { "job" };
    StoreName { namespace: namespace.into(), job: job.into(), round: u64::from(store % 2) }
}

pub(crate) fn blob(text: String) -> BlobRef {
    BlobRef { digest: *blake3::hash(text.as_bytes()).as_bytes(), bytes: 9 }
}

/// Runs of two priorities, weights, models, caps and time limits; one in another namespace.
pub(crate) fn spec(run: u8, other: bool) -> RunSpec {
    let model = if run == 3 { "n" } else { "m" };
    RunSpec {
        engine: EngineSpec { model: model.into(), ..EngineSpec::default() },
        priority: [5, 5, 8, 5, 5][usize::from(run)],
        weight: [1, 3, 1, 2, 1][usize::from(run)],
        running_rows_max: [0, 0, 7, 0, 3][usize::from(run)],
        attempt_timeout_ms: [0, 5000, 0, 3000, 0][usize::from(run)],
        attempts_max: [2, 3, 4, 3, 1][usize::from(run)],
        failures_max: [100, 2, 0, 5, 100][usize::from(run)] + u64::from(other),
        canary_rows: [0, 4, 0, 5, 0][usize::from(run)],
        canary_failures_max: [0, 0, 0, 1, 0][usize::from(run)],
        tail_duplicates: run < 2,
        deadline_ms: [0, 0, 40_000, 0, 0][usize::from(run)],
        store_url: if run == 4 { "s3://team/a/b".into() } else { String::new() },
        notify_url: ["", "https://hooks/1", "https://hooks/2", "", ""][usize::from(run)].into(),
        ..RunSpec::default()
    }
}

pub(crate) fn settle(model: &Model, worker: u8, slot: u8, how: Settled) -> OpKind {
    let slot = SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
    let mut sets = model.sets_at(slot);
    if sets.is_empty() && !matches!(how, Settled::HalfDied) {
        return nothing(model); // An engine may die of nothing, too.
    }
    match how {
        Settled::Done => {
            let run = sets[0].run;
            let blob = blob(format!("part {}", sets[0].attempt));
            sets.retain(|h| h.run == run);
            OpKind::Complete(op::Complete {
                slot,
                run,
                part: PartDecl { blob, tokens_in: 1, tokens_out: 2 },
                sets,
            })
        }
        Settled::Died | Settled::HalfDied => {
            for set in sets.iter_mut().filter(|_| matches!(how, Settled::HalfDied)) {
                set.rows = set.rows.take_first(set.rows.len().div_ceil(2) as u32);
            }
            OpKind::EngineDied(op::EngineDied {
                slot,
                number: last_death(model, slot) + 1,
                started: sets,
                class: FailureClass::EngineDied,
                code: "code".into(),
                message: String::new(),
                evidence: Evidence::default(),
            })
        }
    }
}

/// The process that registered last, or one that never registered.
pub(crate) fn instance(model: &Model, session: SessionId) -> u64 {
    model.workers.get(&session).map_or(0, |w| w.instance)
}

/// The death that a slot reported last.
pub(crate) fn last_death(model: &Model, slot: SlotRef) -> u64 {
    let worker = model.workers.get(&slot.session);
    worker.and_then(|w| w.slots.get(usize::from(slot.slot.0))).map_or(0, |s| s.last_death)
}

/// A pull of a slot, counted from its last answered one.
pub(crate) fn next_pull(model: &Model, slot: SlotRef, by: i8) -> u64 {
    let worker = model.workers.get(&slot.session);
    let pulls = worker.and_then(|w| w.slots.get(usize::from(slot.slot.0)).map(|s| s.last_pull));
    pulls.unwrap_or(0).saturating_add_signed(by.into())
}

/// For an action that found nothing to speak of: a pull, so that the next one does.
pub(crate) fn nothing(model: &Model) -> OpKind {
    let slot = SlotRef { session: session(model, (model.index % 3) as u8), slot: SlotNo(0) };
    let worker = model.workers.get(&slot.session);
    let seq = worker.map_or(0, |w| w.slots[0].last_pull) + 1;
    OpKind::Claim(op::Claim { slot, instance: instance(model, slot.session), seq, rows_max: 20 })
}

pub(crate) fn run_no(model: &Model, run: u8) -> RunNo {
    let name = format!("run{run}");
    let at = model.runs.iter().position(|r| r.name == name && !r.forgotten);
    RunNo(at.map_or(99, |at| at as u32 + 1))
}

pub(crate) fn segments(model: &Model, run: u8, rows: [u8; 2], from: i8) -> OpKind {
    let no = run_no(model, run);
    let have = model.runs.get(no.0 as usize - 1).map_or(0, |r| r.segments.len() as u32);
    // Most continue where the input ends; the others repeat, conflict, or leave a gap.
    let from = if from < 0 { have } else { have.saturating_add_signed(i32::from(from) * 3 - 2) };
    let decl = |(i, rows): (u32, u8)| {
        let rows = u32::from(rows).max(1);
        SegmentDecl { number: SegmentNo(from + i), rows, blob: blob(format!("{rows}")) }
    };
    OpKind::AddSegments(op::AddSegments { run: no, segments: (0..).zip(rows).map(decl).collect() })
}

/// Some rows of one of the last segments; a wrong one names another digest, or rows outside of it.
pub(crate) fn reuse_results(
    model: &Model,
    run: u8,
    back: i8,
    (mask, wrong): (u16, bool),
    part: u8,
) -> OpKind {
    let no = run_no(model, run);
    let of = model.runs.get(no.0 as usize - 1);
    let segments = of.map_or(&[][..], |r| &r.segments);
    let number = segments.len().saturating_add_signed(back.into());
    let first: u64 = segments.iter().take(number).map(|s| u64::from(s.rows)).sum();
    let (rows, digest) = segments.get(number).map_or((1, [0; 32]), |s| (s.rows, s.blob.digest));
    let rows = rows + u32::from(wrong && mask % 2 == 0);
    let chosen = (first..first + u64::from(rows)).filter(|r| mask >> (r % 16) & 1 == 1);
    let blob = blob(format!("carried {no} {number} {}", part % 3));
    OpKind::ReuseResults(op::ReuseResults {
        run: no,
        segment: SegmentNo(number as u32),
        segment_digest: if wrong && mask % 2 == 1 { [0; 32] } else { digest },
        part: PartDecl { blob, tokens_in: part.into(), tokens_out: 2 * u64::from(part) },
        rows: Rows::from_ranges(chosen.map(|r| (r, 1))).unwrap_or_default(),
    })
}

pub(crate) fn close(model: &Model, run: u8, wrong: bool) -> OpKind {
    let no = run_no(model, run);
    let run = model.runs.get(no.0 as usize - 1);
    let digest = run.map_or([0; 32], |r| r.digest());
    let rows = run.map_or(0, |r| r.len()) + u64::from(wrong);
    OpKind::CloseInput(op::CloseInput { run: no, rows, digest })
}

pub(crate) fn session(model: &Model, worker: u8) -> SessionId {
    let name = format!("w{worker}");
    let latest = model.sessions.iter().rev().find(|s| s.1 == name);
    latest.map_or(SessionId(1), |s| s.0)
}

pub(crate) fn register(model: &Model, what: (u8, u8, bool, bool, u8), picks: &[Pick]) -> OpKind {
    let (worker, instance, holder_alive, resume, slots) = what;
    let models = if worker == 1 { vec!["m".into(), "n".into()] } else { vec!["m".into()] };
    let offer = SlotOffer { models, ..SlotOffer::default() };
    // The other namespace's worker lists its run's store, or what is above it.
    let stores = match (worker, instance % 2) {
        (2, 0) => vec!["s3://team/a".into()],
        (2, _) => vec!["s3://team/a/b".into()],
        _ => Vec::new(),
    };
    OpKind::Register(Box::new(Registration {
        namespace: if worker == 2 { "team".into() } else { "default".into() },
        name: format!("w{worker}"),
        instance: instance.into(),
        address: format!("w{worker}:{instance}"),
        resume: resume.then(|| session(model, worker)),
        holder_alive,
        slots: vec![offer; usize::from(slots)],
        held: picks.iter().filter_map(|p| held(model, *p)).map(|h| h.1).collect(),
        // Much of the rest was started.
        started: picks
            .iter()
            .filter_map(|p| held(model, Pick { mask: !p.mask | 1, ..*p }))
            .map(|h| h.1)
            .collect(),
        stores,
        ..Registration::default()
    }))
}

pub(crate) fn complete(model: &Model, picks: &[Pick], by: Option<u8>, part: u8) -> OpKind {
    let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
    let Some((slot, first)) = sets.first().cloned() else { return nothing(model) };
    // A few blobs, so that one is repeated now and then; tokens tell whether it counted.
    let blob = blob(format!("part {} {}", first.attempt, part % 3));
    let part = PartDecl { blob, tokens_in: part.into(), tokens_out: 2 * u64::from(part) };
    let sets = sets.into_iter().map(|s| s.1).filter(|h| h.run == first.run).collect();
    OpKind::Complete(op::Complete { slot: who(model, slot, by), run: first.run, part, sets })
}

pub(crate) fn who(model: &Model, slot: SlotRef, by: Option<u8>) -> SlotRef {
    let Some(back) = by else { return slot };
    let other = model.sessions.iter().rev().nth(usize::from(back));
    SlotRef { session: other.map_or(SessionId(1), |s| s.0), slot: SlotNo(u16::from(back % 2)) }
}

/// Rows of an earlier grant, or `None` if there is no such grant, or it has no such rows.
pub(crate) fn held(model: &Model, pick: Pick) -> Option<(SlotRef, HeldRows)> {
    let (slot, held) = model.grants.iter().rev().nth(usize::from(pick.back))?;
    let chosen = held.rows.iter().filter(|r| pick.mask >> (r % 16) & 1 == 1);
    let mut rows: Vec<(u64, u32)> = chosen.map(|r| (r, 1)).collect();
    let mut run = held.run;
    if pick.wrong {
        match pick.mask % 2 {
            0 => run = RunNo(run.0 % (model.runs.len() as u32 + 1) + 1),
            _ => rows.push((held.rows.end() + 1, 3)),
        }
    }
    let rows = Rows::from_ranges(rows).filter(|r| !r.is_empty())?;
    Some((*slot, HeldRows { run, attempt: held.attempt, rows }))
}
