//! A run from its creation until it is deleted: its input, its user's operations, and what is left of it after its
//! end.

use crate::naive::{Model, Outcome};
use crate::rows::Row;
use crate::runs::Run;
use rollout_ledger::id::RunNo;
use rollout_ledger::view::RunState;
use rollout_ledger::{
    OpenAiRefusal, Rejection, Reply, RunAction, RunSpec, SegmentDecl, WebhookState,
};
use std::collections::BTreeMap;

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
            deadline_ms: spec.deadline_ms,
            weight: spec.weight,
            spec,
            folder,
            swept: false,
            ended_index: 0,
            state: RunState::Running,
            created_at: self.clock,
            webhook: WebhookState::None,
            resumed_index: 0,
            closed: false,
            segments: Vec::new(),
            rows: Vec::new(),
            deficit: 0,
            time: 0,
            retries: 0,
            returned: 0,
            stolen: 0,
            speculative_rows: 0,
            tokens: 0,
            trials_made: 0,
            emptying: BTreeMap::new(),
            excluded: BTreeMap::new(),
            refused: Vec::new(),
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
        if let Some((batch, false)) = self.batch_of_run(no) {
            return Err(OpenAiRefusal::RunOfOpenBatch { batch }.into());
        }
        let run = self.run_of(no)?;
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

    pub(crate) fn set_deadline(&mut self, no: RunNo, deadline_ms: u64) -> Outcome {
        if self.version < 4 {
            return Err(Rejection::VersionLow { needs: 4, version: self.version });
        }
        let now = self.clock;
        let run = self.run_of(no)?;
        if run.ended() {
            return Err(run.over());
        }
        let age_ms = now - run.created_at;
        if deadline_ms > 0 && run.created_at + deadline_ms <= now {
            let (deadline_s, age_s) = (deadline_ms / 1000, age_ms / 1000);
            return Err(Rejection::Invalid(format!(
                "the deadline, {deadline_s} s after the run's submission, has passed: it was submitted {age_s} s ago"
            )));
        }
        run.deadline_ms = deadline_ms;
        Ok(Reply::Ok)
    }

    pub(crate) fn set_weight(&mut self, no: RunNo, weight: u32) -> Outcome {
        if self.version < 4 {
            return Err(Rejection::VersionLow { needs: 4, version: self.version });
        }
        let run = self.run_of(no)?;
        if run.ended() {
            return Err(run.over());
        }
        if !(1..=100).contains(&weight) {
            return Err(Rejection::Invalid("weight is not 1 to 100".into()));
        }
        run.weight = weight;
        Ok(Reply::Ok)
    }
}
