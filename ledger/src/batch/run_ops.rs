//! The operations of users on runs: create, feed, close, pause, resume, cancel.
//!
//! *Invariant:* all of them may be repeated: the same creation finds the same run, the same segment is the same
//! segment, and closing a closed input with the same digest changes nothing.

use crate::batch::run::{PauseState, Run, RunHead, RunState};
use crate::batch::segment::Segment;
use crate::batch::spec::{self, RunSpec};
use crate::kernel::id::{RunNo, SegmentNo};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::command::{RunAction, SegmentDecl};
use crate::machine::event::EventKind;
use crate::machine::gate::SCHEDULING_VERSION;
use crate::machine::ledger::Ledger;
use crate::machine::seeded::{Bug, seeded};

impl Ledger {
    pub(crate) fn create_run(
        &mut self,
        ctx: &Context,
        (namespace, name): (String, String),
        spec: RunSpec,
        folder: String,
    ) -> Result<Reply, Rejection> {
        spec::check_name("run's", &name)?;
        check_folder(&name, &folder)?;
        spec.check()?;
        if !self.namespaces.contains_key(&namespace) {
            return Err(Rejection::NamespaceUnknown(namespace));
        }
        let spec_digest = spec.digest();
        let key = (namespace, name);
        if let Some(no) = self.run_names.get(&key) {
            let run = &self.runs[no];
            return match run.head.spec_digest == spec_digest {
                _ if run.head.state == RunState::Deleting => Err(Rejection::RunDeleting),
                true => Ok(run_reply(run, false)),
                false => Err(Rejection::SpecConflict),
            };
        }
        if self.runs.len() >= limits::RUNS_MAX {
            return Err(Rejection::Limit { what: "runs".into(), max: limits::RUNS_MAX as u64 });
        }
        self.admit_run(&key.0)?;
        self.meta.runs_made += 1;
        let no = RunNo(self.meta.runs_made);
        let head = RunHead {
            namespace: key.0.clone(),
            name: key.1.clone(),
            spec,
            spec_digest,
            created_wall_ms: ctx.wall_ms,
            folder,
            created_at: self.meta.clock,
            ..RunHead::default()
        };
        let run = Run { no, head, ..Run::default() };
        let reply = run_reply(&run, true);
        self.runs.insert(no, run);
        self.refresh_active(no);
        self.run_names.insert(key, no);
        self.dirty.runs.insert(no);
        self.emit(ctx, EventKind::RunCreated { run: no });
        Ok(reply)
    }

    pub(crate) fn add_segments(
        &mut self,
        no: RunNo,
        segments: Vec<SegmentDecl>,
    ) -> Result<Reply, Rejection> {
        let run = self.runs.get(&no).ok_or(Rejection::RunUnknown)?;
        if run.head.state == RunState::Deleting {
            return Err(Rejection::RunEnded);
        }
        if let Some(sealed) = &run.head.sealed {
            // The manifest has their contents; closing checks that they are the same.
            let known = segments.iter().all(|s| s.number.0 < sealed.segments);
            return if known { Ok(run_reply(run, false)) } else { Err(run.over()) };
        }
        let more = check_segments(run, &segments)?;
        self.admit_rows(&run.head.namespace, more)?;
        let split = self.meta.version >= SCHEDULING_VERSION;
        let run = self.run_mut(no)?;
        let mut touched = Vec::new();
        for decl in segments {
            if (decl.number.0 as usize) < run.segments.len() {
                continue; // A repeat, checked above.
            }
            touched.push((no, decl.number));
            let mut segment = Segment::new(run.head.rows, decl.rows, decl.blob);
            segment.split = split;
            run.segments.push(segment);
            run.head.rows += u64::from(decl.rows);
        }
        let reply = run_reply(run, false);
        self.dirty.segments.extend(touched);
        self.dirty.runs.insert(no);
        self.refresh_active(no);
        Ok(reply)
    }

    pub(crate) fn close_input(
        &mut self,
        ctx: &Context,
        no: RunNo,
        rows: u64,
        digest: [u8; 32],
    ) -> Result<Reply, Rejection> {
        let run = self.runs.get_mut(&no).ok_or(Rejection::RunUnknown)?;
        if run.ended() && run.head.state != RunState::Finished {
            return Err(run.over());
        }
        if run.head.sealed.is_some() {
            return match run.head.rows == rows && run.head.input_digest == digest {
                true => Ok(Reply::Ok),
                false => Err(Rejection::InputMismatch { rows: run.head.rows }),
            };
        }
        let mut hasher = blake3::Hasher::new();
        run.segments.iter().for_each(|s| {
            hasher.update(&s.blob.digest);
        });
        if run.head.rows != rows || *hasher.finalize().as_bytes() != digest {
            return Err(Rejection::InputMismatch { rows: run.head.rows });
        }
        run.head.input_closed = true;
        run.head.input_digest = digest;
        self.dirty.runs.insert(no);
        self.refresh_active(no);
        self.finish_if_done(ctx, no);
        Ok(Reply::Ok)
    }

    pub(crate) fn control_run(
        &mut self,
        ctx: &Context,
        no: RunNo,
        action: RunAction,
        reason: String,
    ) -> Result<Reply, Rejection> {
        if reason.len() > limits::MESSAGE_BYTES_MAX {
            return Err(Rejection::Invalid("the reason is too long".into()));
        }
        let run = self.run_mut(no)?;
        let to = match (run.head.state, action) {
            (RunState::Cancelled, RunAction::Cancel) => return Ok(Reply::Ok),
            _ if run.ended() => return Err(run.over()),
            (_, RunAction::Cancel) => {
                self.end_early(ctx, no, (RunState::Cancelled, "cancelled"), reason.clone());
                "cancelled"
            }
            (_, RunAction::Pause) => {
                run.head.state = RunState::Paused;
                run.head.reason = reason.clone();
                run.head.pause.at_cordon_limit = false;
                "paused"
            }
            (state, RunAction::Resume) => {
                if state == RunState::Paused {
                    run.head.resumed_index = ctx.index();
                    run.head.pause = PauseState::default();
                }
                run.head.state = RunState::Running;
                run.head.reason = String::new();
                self.accept_canary(no);
                "resumed"
            }
        };
        self.emit_run(ctx, no, to, &reason);
        self.dirty.runs.insert(no);
        self.refresh_active(no);
        Ok(Reply::Ok)
    }

    /// Ends a run that has rows without an outcome. Slots that hold such rows give them back for `why`.
    pub(crate) fn end_early(
        &mut self,
        ctx: &Context,
        no: RunNo,
        (state, why): (RunState, &'static str),
        reason: String,
    ) {
        self.end_shadows(ctx, no, why);
        let Some(run) = self.runs.get_mut(&no) else { return };
        let attempts: Vec<_> = run.flight.grants.keys().copied().collect();
        for attempt in attempts {
            self.lapse(ctx, no, attempt, why);
        }
        let Some(run) = self.runs.get_mut(&no) else { return };
        run.flight.lapsed.clear();
        run.dissolve_trials();
        run.notify(ctx);
        run.head.state = state;
        run.head.reason = reason;
        run.head.pause.at_cordon_limit = false;
        run.head.finished_wall_ms = ctx.wall_ms;
        run.head.ended_at = self.meta.clock;
        run.head.ended_index = ctx.index();
        self.waiting.retain(|w| w.1 != no);
        let (dirty, mut waited) = (&mut self.dirty.troubles, crate::kernel::rows::Rows::default());
        for (&row, trouble) in run.troubles.iter_mut().filter(|t| t.1.not_before.is_some()) {
            trouble.not_before = None;
            dirty.insert((no, row));
            waited.push(row, 1);
        }
        run.bring_back(&waited);
        run.head.counts.waiting = 0;
    }

    /// Ends a run whose input is closed and whose rows all have an outcome.
    pub(crate) fn finish_if_done(&mut self, ctx: &Context, no: RunNo) {
        self.settle_canary(ctx, no);
        let Some(run) = self.runs.get_mut(&no) else { return };
        let decided = run.head.counts.done + run.head.counts.failed;
        let closed = run.head.input_closed || seeded(Bug::InputClosedEarly) && decided > 0;
        if closed && decided == run.head.rows && !run.ended() {
            run.notify(ctx);
            run.head.state = RunState::Finished;
            run.head.reason = String::new();
            run.head.pause.at_cordon_limit = false;
            run.head.finished_wall_ms = ctx.wall_ms;
            run.head.ended_at = self.meta.clock;
            run.head.ended_index = ctx.index();
            self.dirty.runs.insert(no);
            self.refresh_active(no);
            self.emit_run(ctx, no, "finished", "");
        }
    }

    pub(crate) fn set_namespace(
        &mut self,
        name: String,
        running_rows_max: u64,
    ) -> Result<Reply, Rejection> {
        spec::check_name("namespace's", &name)?;
        self.namespaces.entry(name.clone()).or_default().running_rows_max = running_rows_max;
        self.dirty.namespaces.insert(name);
        Ok(Reply::Ok)
    }
}

fn run_reply(run: &Run, created: bool) -> Reply {
    Reply::Run {
        run: run.no,
        created,
        segments: run.segment_count(),
        rows: run.head.rows,
        input_closed: run.head.input_closed,
        folder: run.head.folder.clone(),
    }
}

/// A run's objects are below its name.
fn check_folder(name: &str, folder: &str) -> Result<(), Rejection> {
    match folder.strip_prefix(name).and_then(|rest| rest.strip_prefix('/')) {
        Some(own) => spec::check_name("folder's", own),
        None => Err(Rejection::Invalid(format!("the folder has to be {name}/ and a name"))),
    }
}

/// Checks everything before anything changes, because a refused operation leaves no trace, and returns how many rows
/// are new.
fn check_segments(run: &Run, segments: &[SegmentDecl]) -> Result<u64, Rejection> {
    if segments.len() > limits::SEGMENTS_PER_OP_MAX {
        let max = limits::SEGMENTS_PER_OP_MAX as u64;
        return Err(Rejection::Limit { what: "segments in one request".into(), max });
    }
    let mut next = run.segments.len() as u32;
    let mut rows = run.head.rows;
    for decl in segments {
        if decl.rows == 0 || decl.rows > limits::SEGMENT_ROWS_MAX {
            let max = limits::SEGMENT_ROWS_MAX;
            return Err(Rejection::Invalid(format!("a segment has 1 to {max} rows")));
        }
        let SegmentNo(number) = decl.number;
        match run.segments.get(number as usize) {
            Some(have) if have.rows == decl.rows && have.blob == decl.blob => continue,
            Some(_) => return Err(Rejection::SegmentConflict { number, have: next }),
            None if number != next => {
                return Err(Rejection::SegmentConflict { number, have: next });
            }
            None => {}
        }
        next += 1;
        rows += u64::from(decl.rows);
    }
    if rows > run.head.rows && (run.head.input_closed || run.ended()) {
        return Err(if run.ended() { run.over() } else { Rejection::InputClosed });
    }
    if rows > limits::RUN_ROWS_MAX {
        return Err(Rejection::Limit { what: "rows in a run".into(), max: limits::RUN_ROWS_MAX });
    }
    Ok(rows - run.head.rows)
}
