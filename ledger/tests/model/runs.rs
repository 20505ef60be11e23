//! Rows, one by one: what a completion, a failure, a return and an end of a lease do to each.

use crate::duplicates::grouped;
use crate::naive::{Model, Outcome};
use crate::trials::Shunned;
use rollout_ledger::id::{Attempt, RunNo, SegmentNo, SessionId, SlotRef};
use rollout_ledger::view::{Counts, RunState};
use rollout_ledger::{
    FailureClass, HeldRows, Notice, PartDecl, RefusedRows, Rejection, Reply, Rows, RunAction,
    RunSpec, SegmentDecl,
};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) attempt: Attempt,
    pub(crate) slot: SlotRef,
    pub(crate) granted_at: u64,
}

impl Default for RowState {
    fn default() -> Self {
        RowState::Pending { late: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowState {
    /// With the lease that has lapsed, while nobody else was given the row.
    Pending {
        late: Option<Lease>,
    },
    Running(Lease),
    Waiting {
        until: u64,
    },
    Done {
        digest: [u8; 32],
        at: u32,
    },
    Failed,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    pub(crate) state: RowState,
    /// By class: transient, memory, engine, input.
    pub(crate) strikes: [u32; 4],
    /// The trial that it is in, pending, waiting or running.
    pub(crate) trial: Option<u32>,
    /// Whether anybody ever had it.
    pub(crate) granted: bool,
    /// Whether its result was carried over.
    pub(crate) carried: bool,
    /// Who else runs it, beside its lease.
    pub(crate) shadow: Option<Lease>,
    /// Whether it ever failed, since it was submitted.
    pub(crate) failed_once: bool,
    /// Times that a process ended without a word while it may have run this.
    pub(crate) abrupt: u32,
}

/// Which strikes a class counts in.
pub(crate) fn kind(class: FailureClass) -> usize {
    match class {
        FailureClass::Transient | FailureClass::InvalidRow | FailureClass::StoreRefused => 0,
        FailureClass::OutOfMemory => 1,
        FailureClass::EngineDied => 2,
        FailureClass::InputUnreadable => 3,
    }
}

impl Row {
    pub(crate) fn result(&self) -> Option<([u8; 32], u32)> {
        match self.state {
            RowState::Done { digest, at } => Some((digest, at)),
            _ => None,
        }
    }

    pub(crate) fn leases(&self) -> impl Iterator<Item = Lease> + use<> {
        let first = match self.state {
            RowState::Running(lease) => Some(lease),
            _ => None,
        };
        first.into_iter().chain(self.shadow)
    }

    pub(crate) fn live_for(&self, attempt: Attempt, session: SessionId) -> bool {
        self.leases().any(|l| l.attempt == attempt && l.slot.session == session)
    }

    /// A worker that wanted to give it back, or fail it, in a lease that has lapsed is done with it.
    pub(crate) fn done_with(&mut self, attempt: Attempt, session: SessionId) {
        if let RowState::Pending { late } = &mut self.state {
            *late = late.filter(|lease| (lease.attempt, lease.slot.session) != (attempt, session));
        }
    }

    /// Leaves the row to its other lease, if it has two.
    pub(crate) fn step_aside(&mut self, attempt: Attempt) -> bool {
        let Some(shadow) = self.shadow.take() else { return false };
        if shadow.attempt != attempt {
            self.state = RowState::Running(shadow);
        }
        true
    }
}

pub(crate) struct Run {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) spec: RunSpec,
    pub(crate) state: RunState,
    pub(crate) created_at: u64,
    pub(crate) notice: Notice,
    pub(crate) resumed_index: u64,
    pub(crate) closed: bool,
    pub(crate) segments: Vec<SegmentDecl>,
    pub(crate) rows: Vec<Row>,
    pub(crate) deficit: u64,
    pub(crate) retries: u64,
    pub(crate) returned: u64,
    pub(crate) stolen: u64,
    pub(crate) duplicated: u64,
    pub(crate) tokens: u64,
    pub(crate) trials_made: u32,
    /// Slots that empty themselves for a trial.
    pub(crate) emptying: BTreeMap<u32, SlotRef>,
    /// Slots that trials shun, and until when.
    pub(crate) shuns: BTreeMap<u32, Shunned>,
    pub(crate) canary_over: bool,
    /// What is left of it once its rows are gone.
    pub(crate) gone: Option<Gone>,
    pub(crate) forgotten: bool,
    /// The index of its latest end; 0 while it goes on.
    pub(crate) ended_index: u64,
    pub(crate) swept: bool,
    pub(crate) folder: String,
}

#[derive(Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) rows: u64,
    pub(crate) segments: u32,
    pub(crate) digest: [u8; 32],
    pub(crate) counts: Counts,
    pub(crate) sealed: bool,
}

impl Run {
    pub(crate) fn count(&self, is: impl Fn(&RowState) -> bool) -> u64 {
        self.rows.iter().filter(|r| is(&r.state)).count() as u64
    }

    pub(crate) fn running(&self) -> u64 {
        self.count(|s| matches!(s, RowState::Running(_)))
    }

    pub(crate) fn pending(&self) -> u64 {
        self.count(|s| matches!(s, RowState::Pending { .. }))
    }

    pub(crate) fn ended(&self) -> bool {
        !matches!(self.state, RunState::Running | RunState::Paused)
    }

    pub(crate) fn digest(&self) -> [u8; 32] {
        let all: Vec<u8> = self.segments.iter().flat_map(|s| s.blob.digest).collect();
        self.gone.map_or(*blake3::hash(&all).as_bytes(), |g| g.digest)
    }

    pub(crate) fn len(&self) -> u64 {
        self.gone.map_or(self.rows.len() as u64, |g| g.rows)
    }

    fn drop_rows(&mut self, sealed: bool) {
        if let Some(gone) = &mut self.gone {
            gone.sealed |= sealed;
            return;
        }
        let counts = self.counts();
        let dropped = self.rows.len() as u64 - counts.done - counts.failed;
        let counts = Counts { running: 0, waiting: 0, dropped, ..counts };
        let (rows, segments) = (self.rows.len() as u64, self.segments.len() as u32);
        self.gone = Some(Gone { rows, segments, digest: self.digest(), counts, sealed });
        self.rows.clear();
        self.emptying.clear();
        self.shuns.clear();
    }

    pub(crate) fn counts(&self) -> Counts {
        if let Some(gone) = self.gone {
            return gone.counts;
        }
        Counts {
            dropped: 0,
            running: self.running(),
            waiting: self.count(|s| matches!(s, RowState::Waiting { .. })),
            done: self.count(|s| matches!(s, RowState::Done { .. })),
            failed: self.count(|s| *s == RowState::Failed),
            retries: self.retries,
            returned: self.returned,
            stolen: self.stolen,
            duplicated: self.duplicated,
            tokens_in: self.tokens,
            tokens_out: 2 * self.tokens,
            carried: self.rows.iter().filter(|r| r.carried).count() as u64,
        }
    }

    /// Ends the leases that `which` names; late results stay welcome.
    pub(crate) fn lapse(&mut self, which: impl Fn(&Lease) -> bool) {
        for row in &mut self.rows {
            let ended: Vec<Lease> = row.leases().filter(|l| which(l)).collect();
            for lease in ended {
                if !row.step_aside(lease.attempt) {
                    row.state = RowState::Pending { late: Some(lease) };
                    self.returned += 1;
                }
            }
        }
    }

    /// Pauses a run that cannot go on.
    pub(crate) fn stops(&mut self, store: bool, failed_now: bool) -> bool {
        let failed = self.count(|s| *s == RowState::Failed);
        let hopeless = store || failed_now && failed > self.spec.failures_max;
        let pauses = hopeless && self.state == RunState::Running;
        if pauses {
            self.state = RunState::Paused;
        }
        pauses
    }

    pub(crate) fn in_canary(&self) -> bool {
        self.spec.canary_rows > 0 && !self.canary_over && !self.ended()
    }

    /// The first of such rows that a canary does not hold back.
    pub(crate) fn first(&self, such: impl Fn(&Row) -> bool) -> Option<usize> {
        let end = if self.in_canary() { self.spec.canary_rows as usize } else { usize::MAX };
        self.rows.iter().take(end).position(such)
    }

    fn canary_failures(&self) -> u64 {
        self.rows
            .iter()
            .take(self.spec.canary_rows as usize)
            .filter(|r| r.state == RowState::Failed)
            .count() as u64
    }

    fn settle_canary(&mut self) {
        if !self.in_canary() {
            return;
        }
        let first = self.spec.canary_rows as usize;
        let decided = self
            .rows
            .iter()
            .take(first)
            .all(|r| matches!(r.state, RowState::Done { .. } | RowState::Failed));
        if self.canary_failures() > self.spec.canary_failures_max {
            self.state = RunState::Paused;
        } else if decided && (self.rows.len() >= first || self.closed) {
            self.canary_over = true;
        }
    }

    pub(crate) fn finish_if_done(&mut self) {
        self.settle_canary();
        let decided = self.count(|s| matches!(s, RowState::Done { .. } | RowState::Failed));
        if self.closed && decided == self.rows.len() as u64 && !self.ended() {
            self.state = RunState::Finished;
        }
    }

    /// Why nothing more is done with it.
    pub(crate) fn over(&self) -> Rejection {
        match self.state {
            RunState::DeadlineExceeded => Rejection::DeadlineExceeded,
            _ => Rejection::RunEnded,
        }
    }

    pub(crate) fn end_early(&mut self, state: RunState) {
        self.lapse(|_| true);
        for row in &mut self.rows {
            if !matches!(row.state, RowState::Done { .. } | RowState::Failed) {
                row.state = RowState::Pending { late: None };
                row.trial = None;
            }
        }
        self.state = state;
    }

    fn reply(&self, no: usize, created: bool) -> Reply {
        Reply::Run {
            run: RunNo(no as u32),
            created,
            segments: match self.gone {
                Some(gone) if !gone.sealed => 0,
                Some(gone) => gone.segments,
                None => self.segments.len() as u32,
            },
            rows: self.len(),
            input_closed: self.closed,
            folder: self.folder.clone(),
        }
    }
}

/// Rows picked out of a set, as a set.
pub(crate) fn only(rows: &Rows, mut is: impl FnMut(u64) -> bool) -> Rows {
    Rows::from_ranges(rows.iter().filter(|r| is(*r)).map(|r| (r, 1))).expect("ascending")
}

pub(crate) fn refuse(held: &HeldRows, rows: Rows, why: Rejection, refused: &mut Vec<RefusedRows>) {
    if !rows.is_empty() {
        refused.push(RefusedRows { run: held.run, attempt: held.attempt, rows, why });
    }
}

impl Model {
    pub(crate) fn create(
        &mut self,
        namespace: String,
        name: String,
        spec: RunSpec,
        folder: String,
    ) -> Outcome {
        if !self.namespaces.contains_key(&namespace) {
            return Err(Rejection::NamespaceUnknown(namespace));
        }
        let found = self
            .runs
            .iter()
            .position(|r| !r.forgotten && r.namespace == namespace && r.name == name);
        if let Some(at) = found {
            let run = &self.runs[at];
            return match run.spec == spec {
                _ if run.state == RunState::Deleting => Err(Rejection::RunDeleting),
                true => Ok(run.reply(at + 1, false)),
                false => Err(Rejection::SpecConflict),
            };
        }
        self.room_for_a_run(&namespace)?;
        self.runs.push(Run {
            namespace,
            name,
            spec,
            folder,
            swept: false,
            ended_index: 0,
            state: RunState::Running,
            created_at: self.clock,
            notice: Notice::None,
            resumed_index: 0,
            closed: false,
            segments: Vec::new(),
            rows: Vec::new(),
            deficit: 0,
            retries: 0,
            returned: 0,
            stolen: 0,
            duplicated: 0,
            tokens: 0,
            trials_made: 0,
            emptying: BTreeMap::new(),
            shuns: BTreeMap::new(),
            canary_over: false,
            gone: None,
            forgotten: false,
        });
        let no = self.runs.len();
        Ok(self.runs[no - 1].reply(no, true))
    }

    pub(crate) fn segments(&mut self, no: RunNo, segments: &[SegmentDecl]) -> Outcome {
        let run = self.run_of(no)?;
        if run.state == RunState::Deleting {
            return Err(Rejection::RunEnded);
        }
        if let Some(gone) = run.gone {
            return match segments.iter().all(|s| s.number.0 < gone.segments) {
                true => Ok(run.reply(no.0 as usize, false)),
                false => Err(run.over()),
            };
        }
        let mut all = run.segments.clone();
        for decl in segments {
            let (number, have) = (decl.number.0, all.len() as u32);
            match run.segments.get(number as usize) {
                Some(same) if same == decl => {}
                None if number == have => all.push(decl.clone()),
                _ => return Err(Rejection::SegmentConflict { number, have }),
            }
        }
        if all.len() > run.segments.len() && run.ended() {
            return Err(run.over());
        }
        if all.len() > run.segments.len() && run.closed {
            return Err(Rejection::InputClosed);
        }
        let rows: usize = all.iter().map(|s| s.rows as usize).sum();
        let (namespace, more) = (run.namespace.clone(), rows - run.rows.len());
        self.room_for_rows(&namespace, more as u64)?;
        let run = self.run_of(no)?;
        run.segments = all;
        run.rows.resize(rows, Row::default());
        Ok(run.reply(no.0 as usize, false))
    }

    pub(crate) fn close(&mut self, no: RunNo, rows: u64, digest: [u8; 32]) -> Outcome {
        let run = self.run_of(no)?;
        if run.ended() && run.state != RunState::Finished {
            return Err(run.over());
        }
        if rows != run.len() || digest != run.digest() {
            return Err(Rejection::InputMismatch { rows: run.len() });
        }
        run.closed = true;
        run.finish_if_done();
        Ok(Reply::Ok)
    }

    pub(crate) fn seal(&mut self, no: RunNo, ended_index: u64) -> Outcome {
        let run = self.run_of(no)?;
        match run.state {
            RunState::Deleting => return Err(Rejection::RunDeleting),
            _ if !run.ended() => return Err(Rejection::RunActive),
            _ if run.gone.is_none() && run.ended_index != ended_index => {
                return Err(Rejection::ManifestStale);
            }
            _ if run.gone.is_none() => {
                run.drop_rows(true);
                self.note("run sealed");
            }
            _ => {}
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn swept(&mut self, no: RunNo) -> Outcome {
        let run = self.run_of(no)?;
        if !run.gone.is_some_and(|gone| gone.sealed) {
            return Err(Rejection::RunActive);
        }
        run.swept = true;
        Ok(Reply::Ok)
    }

    pub(crate) fn delete(&mut self, no: RunNo) -> Outcome {
        let run = self.run_of(no)?;
        if !run.ended() {
            return Err(Rejection::RunActive);
        }
        if run.state != RunState::Deleting {
            run.state = RunState::Deleting;
            run.drop_rows(false);
        }
        Ok(Reply::Ok)
    }

    pub(crate) fn forget(&mut self, no: RunNo) -> Outcome {
        let Ok(run) = self.run_of(no) else { return Ok(Reply::Ok) };
        if run.state != RunState::Deleting {
            return Err(Rejection::RunActive);
        }
        run.forgotten = true;
        self.note("run forgotten");
        Ok(Reply::Ok)
    }

    pub(crate) fn control(&mut self, no: RunNo, action: RunAction) -> Outcome {
        let index = self.index;
        let run = self.run_of(no)?;
        if run.state == RunState::Cancelled && action == RunAction::Cancel {
            return Ok(Reply::Ok);
        }
        if run.ended() {
            return Err(run.over());
        }
        if run.state == RunState::Paused && action == RunAction::Resume {
            run.resumed_index = index;
        }
        run.state = match action {
            RunAction::Pause => RunState::Paused,
            RunAction::Resume => {
                run.canary_over |=
                    run.in_canary() && run.canary_failures() > run.spec.canary_failures_max;
                RunState::Running
            }
            RunAction::Cancel => {
                run.end_early(RunState::Cancelled);
                RunState::Cancelled
            }
        };
        Ok(Reply::Ok)
    }

    pub(crate) fn complete(
        &mut self,
        slot: SlotRef,
        no: RunNo,
        part: &PartDecl,
        sets: &[HeldRows],
    ) -> Outcome {
        let run = self.run_of(no)?;
        if run.ended() && run.state != RunState::Finished {
            return Err(Rejection::RunEnded);
        }
        let digest = part.blob.digest;
        let mut events: Vec<&str> = Vec::new();
        let (mut refused, mut now) = (Vec::new(), Vec::new());
        let mut outrun: Vec<(Attempt, Lease, u64)> = Vec::new();
        let mut all_outrun = Vec::new();
        let mut at = 0;
        let mut trial_row_done = false;
        for set in sets {
            let of = |l: Lease| l.attempt == set.attempt && l.slot == slot;
            let in_trial = run.rows.iter().any(|r| r.trial.is_some() && r.leases().any(of));
            let done_before = now.len();
            let (mut stale, mut decided) = (Vec::new(), Vec::new());
            for row in set.rows.iter() {
                let state = run.rows.get(row as usize).map(|r| r.state);
                let two = run.rows.get(row as usize).is_some_and(|r| r.shadow.is_some());
                let takes = match state {
                    Some(RowState::Running(_)) => {
                        run.rows[row as usize].live_for(set.attempt, slot.session)
                    }
                    Some(RowState::Pending { late: Some(l) }) => l.attempt == set.attempt,
                    _ => false,
                };
                match state {
                    _ if takes => {
                        if matches!(state, Some(RowState::Pending { .. })) {
                            let live = |r: &Row| r.live_for(set.attempt, slot.session);
                            events.push(match run.rows.iter().any(live) {
                                true => "late result beside a live lease",
                                false => "late result accepted",
                            });
                        }
                        let rivals = run.rows[row as usize].leases();
                        outrun.extend(
                            rivals
                                .filter(|l| l.attempt != set.attempt)
                                .map(|l| (set.attempt, l, row)),
                        );
                        if two {
                            let late = outrun.last().is_some_and(|o| o.1.attempt < set.attempt);
                            events.push(match late {
                                true => "duplicate won",
                                false => "duplicate lost",
                            });
                        }
                        run.rows[row as usize] =
                            Row { state: RowState::Done { digest, at }, ..Row::default() };
                        now.push(row);
                    }
                    Some(RowState::Done { digest: d, .. })
                        if d == digest && !now.contains(&row) =>
                    {
                        events.push("completion repeated");
                    }
                    Some(RowState::Done { .. } | RowState::Failed) => decided.push(row),
                    _ => stale.push(row),
                }
                at += 1;
            }
            let (stale, decided) = (
                only(&set.rows, |r| stale.contains(&r)),
                only(&set.rows, |r| decided.contains(&r)),
            );
            trial_row_done |= in_trial && now.len() > done_before;
            let set = HeldRows { run: no, ..set.clone() };
            all_outrun.extend(grouped(no, std::mem::take(&mut outrun)));
            refuse(&set, stale, Rejection::AttemptStale, &mut refused);
            refuse(&set, decided, Rejection::AlreadyDecided, &mut refused);
        }
        let finished_any = !now.is_empty();
        if finished_any {
            run.tokens += part.tokens_in;
            let canary = run.in_canary();
            run.finish_if_done();
            events.extend((run.state == RunState::Finished).then_some("run finished"));
            events.extend((canary && run.canary_over).then_some("canary passed"));
        }
        events.into_iter().for_each(|event| self.note(event));
        let worker = self.workers.get_mut(&slot.session).filter(|_| finished_any);
        if let Some(held) = worker.and_then(|w| w.slots.get_mut(usize::from(slot.slot.0)))
            && (trial_row_done || !held.cordoned)
        {
            held.against.clear();
            let lifted = std::mem::take(&mut held.cordoned);
            if lifted {
                self.note("cordon lifted by a trial");
            }
        }
        Ok(match all_outrun.is_empty() {
            true => Reply::Taken { refused },
            false => Reply::Won { refused, outrun: all_outrun },
        })
    }

    pub(crate) fn carry(
        &mut self,
        no: RunNo,
        (segment, segment_digest): (SegmentNo, [u8; 32]),
        part: &PartDecl,
        rows: &Rows,
    ) -> Outcome {
        let run = self.run_of(no)?;
        let stopped = matches!(run.state, RunState::Cancelled | RunState::DeadlineExceeded);
        if stopped || run.gone.is_some() {
            return Err(run.over());
        }
        let (number, have) = (segment.0, run.segments.len() as u32);
        match run.segments.get(number as usize) {
            Some(decl) if decl.blob.digest == segment_digest => {}
            _ => return Err(Rejection::SegmentConflict { number, have }),
        }
        let first: u64 = run.segments[..number as usize].iter().map(|s| u64::from(s.rows)).sum();
        let end = first + u64::from(run.segments[number as usize].rows);
        if rows.iter().any(|row| row < first || row >= end) {
            let why = "carried rows lie outside of their segment";
            return Err(Rejection::Invalid(why.into()));
        }
        let (digest, mut free) = (part.blob.digest, 0);
        let (mut stale, mut decided) = (Vec::new(), Vec::new());
        for (row, at) in rows.iter().zip(0..) {
            let of = &mut run.rows[row as usize];
            match of.state {
                RowState::Pending { late: None } if !of.granted => {
                    of.state = RowState::Done { digest, at };
                    of.carried = true;
                    free += 1;
                }
                RowState::Done { digest: d, .. } if d == digest => {}
                RowState::Done { .. } | RowState::Failed => decided.push(row),
                _ => stale.push(row),
            }
        }
        let mut refused = Vec::new();
        let held = HeldRows { run: no, attempt: Attempt(0), rows: rows.clone() };
        let (stale, decided) =
            (only(rows, |r| stale.contains(&r)), only(rows, |r| decided.contains(&r)));
        refuse(&held, stale, Rejection::AttemptStale, &mut refused);
        refuse(&held, decided, Rejection::AlreadyDecided, &mut refused);
        if free > 0 {
            run.tokens += part.tokens_in;
            run.finish_if_done();
            self.note("rows carried");
        }
        Ok(Reply::Taken { refused })
    }

    pub(crate) fn fail(
        &mut self,
        slot: SlotRef,
        held: &HeldRows,
        class: FailureClass,
        _message: &str,
    ) -> Outcome {
        let clock = self.clock;
        let mut refused = Vec::new();
        let Ok(run) = self.run_of(held.run) else {
            refuse(held, held.rows.clone(), Rejection::AttemptStale, &mut refused);
            return Ok(Reply::Taken { refused });
        };
        let (mut taken, mut rest) = (Vec::new(), Vec::new());
        for row in held.rows.iter() {
            match run.rows.get_mut(row as usize) {
                Some(r) if r.live_for(held.attempt, slot.session) => taken.push(row),
                Some(r) => {
                    r.done_with(held.attempt, slot.session);
                    rest.push(row);
                }
                None => rest.push(row),
            }
        }
        refuse(
            held,
            only(&held.rows, |r| rest.contains(&r)),
            Rejection::AttemptStale,
            &mut refused,
        );
        let (mut failed_now, mut spared) = (false, false);
        for &row in &taken {
            let row = &mut run.rows[row as usize];
            row.failed_once = true;
            if row.step_aside(held.attempt) {
                spared = true;
                continue;
            }
            if class == FailureClass::StoreRefused {
                row.state = RowState::Pending { late: None };
                run.returned += 1;
                continue;
            }
            row.trial = None;
            let strikes = &mut row.strikes[kind(class)];
            *strikes += u32::from(class != FailureClass::InvalidRow);
            let max = [run.spec.attempts_max, 3, 2, run.spec.attempts_max][kind(class)];
            if class == FailureClass::InvalidRow || *strikes >= max {
                row.state = RowState::Failed;
                failed_now = true;
            } else {
                let wait = [1000, 2000, 4000][*strikes as usize - 1];
                row.state = RowState::Waiting { until: clock + wait };
                run.retries += 1;
            }
        }
        let news = held.attempt.index() >= run.resumed_index;
        let store = class == FailureClass::StoreRefused && !taken.is_empty() && news;
        let pauses = run.stops(store, failed_now);
        let running = run.state == RunState::Running;
        run.finish_if_done();
        let canary_failed = running && run.state == RunState::Paused;
        let gave_up = failed_now && class != FailureClass::InvalidRow;
        let events = [
            (pauses, "run hopeless"),
            (gave_up, "row gave up"),
            (canary_failed, "canary failed"),
            (spared, "one of two failed"),
        ];
        events.iter().filter(|e| e.0).for_each(|e| self.note(e.1));
        Ok(Reply::Taken { refused })
    }

    pub(crate) fn nack(&mut self, slot: SlotRef, held: &[HeldRows]) -> Reply {
        let mut refused = Vec::new();
        for set in held {
            let mut rest = Vec::new();
            for row in set.rows.iter() {
                let run = self.run_of(set.run).ok();
                let found =
                    run.and_then(|run| Some((run.rows.get_mut(row as usize)?, &mut run.returned)));
                match found {
                    Some((r, returned)) if r.live_for(set.attempt, slot.session) => {
                        if !r.step_aside(set.attempt) {
                            r.state = RowState::Pending { late: None };
                            *returned += 1;
                        }
                    }
                    Some((r, _)) => {
                        r.done_with(set.attempt, slot.session);
                        rest.push(row);
                    }
                    None => rest.push(row),
                }
            }
            refuse(
                set,
                only(&set.rows, |r| rest.contains(&r)),
                Rejection::AttemptStale,
                &mut refused,
            );
        }
        Reply::Taken { refused }
    }
}
