//! Owns: which run a batch file means now: an existing one, or the next revision.
//!
//! Invariant: a run that is still running with another input or spec is cancelled only at the user's request.
//! Absent: what a revision is (`batch::revision`).

use std::sync::Arc;

use rollout_batch::export::parts::digest_of;
use rollout_batch::input::files::InputFile;
use rollout_batch::submission::error::BatchError;
use rollout_batch::submission::revision::{self, Choice, Family};
use rollout_batch::submission::{spec, submit, upload, watch};
use rollout_proto::{ErrorCode, Session, v1};

use super::super::error::CommandError;
use super::Batch;
use crate::rollout::read_input;

impl Batch<'_> {
    /// Which run the input means: an existing one, or its next revision.
    pub(super) async fn choose(
        &self,
        session: &Session,
        family: &Family,
        files: &[InputFile],
    ) -> Result<Choice, CommandError> {
        let Some(latest) = family.latest() else { return Ok(Choice::New(self.name())) };
        let described = submit::describe(&self.client, &self.namespace, &latest.name).await?;
        if let Some(choice) = self.compare(session, &described, files).await? {
            return Ok(choice);
        }
        match family.unended().next() {
            Some(run) if !self.args.replace => {
                let counts = run.counts.unwrap_or_default();
                let (name, done) = (run.name.clone(), counts.done + counts.failed);
                Err(BatchError::Revised { name, done, rows: counts.rows }.into())
            }
            _ => Ok(Choice::New(family.next()?)),
        }
    }

    /// What the input means for the resumed run, which is the only candidate.
    pub(super) async fn resumed(
        &self,
        session: &Session,
        name: &str,
        files: &[InputFile],
    ) -> Result<Choice, CommandError> {
        if self.args.keep_open {
            // Even if it is closed: rows that the run has are not an error.
            return Ok(Choice::Append(name.to_owned()));
        }
        let described = submit::describe(&self.client, &self.namespace, name).await?;
        if let Some(choice) = self.compare(session, &described, files).await? {
            return Ok(choice);
        }
        Ok(Choice::Mismatch(name.to_owned()))
    }

    /// What this input and spec mean for an existing run.
    async fn compare(
        &self,
        session: &Session,
        described: &v1::DescribeRunResponse,
        files: &[InputFile],
    ) -> Result<Option<Choice>, CommandError> {
        let run = described.run.clone().unwrap_or_default();
        use v1::RunState::{Cancelled, DeadlineExceeded, Deleting};
        if matches!(run.state(), Deleting | Cancelled | DeadlineExceeded) {
            return Ok(None);
        }
        let store = revision::store_of(described, session.store_url())?;
        let (spec, have) = revision::segments(&self.client, &store, described).await?;
        if !revision::same_spec(&spec, &self.spec, session.store_url()) {
            return Ok(None);
        }
        if self.args.keep_open && !run.input_closed {
            self.note_kept_settings(&run, &spec);
            return Ok(Some(Choice::Append(run.name)));
        }
        let have = have.iter().map(|(blob, _)| digest_of(blob)).collect::<Result<Vec<_>, _>>();
        let have = have.map_err(|error| BatchError::Inconsistent {
            name: run.name.clone(),
            message: error.to_string(),
        })?;
        let (control, rules) = (Arc::clone(&self.control), spec::rules(&self.spec)?);
        let printed = upload::fingerprint(files.to_vec(), rules, read_input::options(), control);
        let (scan, ours) = tokio::select! {
            printed = printed => printed?,
            never = read_input::show(&self.progress, &self.control, files) => match never {},
        };
        if scan.error_count > 0 {
            return Ok(None);
        }
        let choice = revision::compare(&run, &have, &ours);
        if choice.is_some() {
            self.note_kept_settings(&run, &spec);
        }
        match choice {
            None if !run.input_closed && !self.args.replace => {
                Err(BatchError::OpenWithOthers { namespace: run.namespace, name: run.name }.into())
            }
            choice => Ok(choice),
        }
    }

    /// If the deadline or the weight of the open run differs from that of the batch file, prints how to change it.
    pub(super) fn note_kept_settings(&self, run: &v1::RunSummary, spec: &v1::RunSpec) {
        if watch::ended(run) {
            return;
        }
        let (name, wanted) = (&run.name, &self.spec);
        let deadline = match wanted.deadline_ms {
            0 => format!("run set-deadline {name} --none"),
            ms => format!("run set-deadline {name} --deadline {ms}ms"),
        };
        let weight = format!("run set-weight {name} --weight {}", wanted.weight);
        let settings = [
            ("deadline", deadline, spec.deadline_ms != wanted.deadline_ms),
            ("weight", weight, spec.weight != wanted.weight),
        ];
        for (setting, command, _) in settings.iter().filter(|(.., differs)| *differs) {
            self.progress.note(&format!(
                "run {name} keeps its {setting}, which differs from the batch file; `rolloutctl {command}` changes it, \
                 from cluster version 4 on (`rolloutctl cluster upgrade`)"
            ));
        }
    }

    /// Cancels the runs that the next revision replaces.
    pub(super) async fn replace(
        &self,
        session: &Session,
        family: &Family,
    ) -> Result<(), CommandError> {
        for run in family.unended() {
            let reason = format!("replaced by {}", self.name());
            match submit::cancel(session, &self.namespace, &run.name, &reason).await {
                Ok(_) => self.progress.note(&format!("run {} is cancelled", run.name)),
                // It ended meanwhile.
                Err(error)
                    if matches!(
                        error.code(),
                        Some(ErrorCode::RunEnded | ErrorCode::DeadlineExceeded)
                    ) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
