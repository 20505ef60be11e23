//! Owns: the submission of a batch file: it chooses the run, stores its input, creates the run, declares its rows.
//!
//! Invariant: nothing is uploaded for a directory that belongs to another run, and no row is declared before the
//! directory names the run.
//! Absent: how each step works (`batch`), and waiting for the run.

use std::sync::Arc;

use rollout_batch::export;
use rollout_batch::input::files;
use rollout_batch::submission::error::BatchError;
use rollout_batch::submission::job::{self, Job, Prepared};
use rollout_batch::submission::revision::{self, Choice, Family};
use rollout_batch::submission::submit;
use rollout_proto::{Session, v1};
use rollout_storage::BlobStore;

use super::super::error::CommandError;
use super::Batch;
use super::return_hint::Stage;
use crate::rollout::{append, read_input, report};
use crate::stdio::to_stderr;

impl Batch<'_> {
    /// With `--resume`: true if the run has its complete input, so that nothing must be read.
    pub(super) async fn attach(&self, session: &Session) -> Result<bool, CommandError> {
        if self.args.resume.is_none() {
            return Ok(false);
        }
        let name = self.name();
        // Only an existing run is resumed.
        let described = submit::describe(&self.client, &self.namespace, &name).await?;
        let run = described.run.clone().unwrap_or_default();
        let same = match run.state() {
            v1::RunState::Deleting => None,
            _ => self.same_spec(session, &described).await?,
        };
        if same.is_none() {
            // Creating it again reports how it differs, and changes nothing.
            let spec = self.spec.clone();
            submit::create(session, &self.namespace, &name, spec, &run.folder).await?;
        }
        if !run.input_closed && !self.args.keep_open {
            return Ok(false);
        }
        if let Some(spec) = same {
            self.note_kept_settings(&run, &spec);
        }
        // With --keep-open the caller wants to append; the upload then reports that the run is closed.
        if self.args.keep_open {
            return Ok(false);
        }
        self.settle()?;
        Ok(true)
    }

    /// The run's full spec, if it is that of the batch file.
    async fn same_spec(
        &self,
        session: &Session,
        described: &v1::DescribeRunResponse,
    ) -> Result<Option<v1::RunSpec>, CommandError> {
        let store = revision::store_of(described, session.store_url())?;
        let spec = export::full_spec(&store, described).await?;
        let is_same = revision::same_spec(&spec, &self.spec, session.store_url());
        Ok(is_same.then_some(spec))
    }

    pub(super) async fn submit(
        &self,
        session: &Session,
        store: BlobStore,
    ) -> Result<(), CommandError> {
        let files = files::find(&self.config.input.glob.list(), &self.config.dir).await?;
        self.reserve()?;
        let family = Family::find(&self.client, &self.namespace, &self.name()).await?;
        self.note_if_gone(&family);
        let choice = match &self.args.resume {
            Some(name) => self.resumed(session, name, &files).await?,
            None => self.choose(session, &family, &files).await?,
        };
        let (Choice::There(name)
        | Choice::Complete(name)
        | Choice::Mismatch(name)
        | Choice::Append(name)
        | Choice::New(name)) = &choice;
        name.clone_into(&mut self.name.lock());
        if !matches!(choice, Choice::New(_)) {
            self.settle()?;
        }
        if let Choice::There(name) = &choice {
            self.progress.note(&format!("run {name} already exists"));
            return Ok(());
        }
        if let Choice::Append(name) = &choice {
            self.enter(Stage::Submitting);
            let control = Arc::clone(&self.control);
            let to = (self.namespace.as_str(), name.as_str());
            return append::append(session, to, &files, control, &self.progress).await;
        }
        let revises = revision::split(name).1 > 1;
        let (namespace, name, spec) = (self.namespace.clone(), name.clone(), self.spec.clone());
        let keep_open = self.args.keep_open;
        let folder = family.get(&name).map(|run| run.folder.clone());
        let folder = folder.unwrap_or_else(|| submit::draw_folder(&self.client, &name));
        let job = Job { namespace, name, spec, files, store, folder, revises, keep_open };
        if matches!(choice, Choice::New(_)) {
            self.check_workers().await?;
        }
        self.submit_job(session, &job, &family, &choice).await
    }

    /// Refuses a new run if fewer workers are ready than the batch file requires. An existing run continues.
    async fn check_workers(&self) -> Result<(), CommandError> {
        let (None, Some(expected)) = (self.args.workers, self.config.workers.count) else {
            return Ok(());
        };
        let ready = submit::workers_ready(&self.client, &self.namespace).await?;
        match ready < expected as usize {
            true => Err(BatchError::FewWorkers { expected, ready }.into()),
            false => Ok(()),
        }
    }

    async fn submit_job(
        &self,
        session: &Session,
        job: &Job,
        family: &Family,
        choice: &Choice,
    ) -> Result<(), CommandError> {
        let prepared = self.prepare(job).await?;
        if matches!(choice, Choice::New(_)) {
            self.enter(Stage::ReusingResults);
            self.replace(session, family).await?;
        } else {
            // It exists and lacks part of its input.
            self.enter(Stage::Submitting);
        }
        let url = session.store_url();
        let sources = family.before(&self.client, url, &job.name, &job.spec).await?;
        let input = job::reuse_earlier_results(session, job, prepared, sources).await?;
        self.enter(Stage::Submitting);
        let created = match family.get(&job.name) {
            Some(run) if !matches!(choice, Choice::New(_)) => job::found(run),
            _ => job::create(session, job).await?,
        };
        self.settle()?;
        let submitted = job::declare(session, job, created, input).await?;
        self.progress.note(&report::submitted(&job.name, &submitted));
        Ok(())
    }

    /// Makes the input durable. An invalid input never causes a running run to be cancelled.
    async fn prepare(&self, job: &Job) -> Result<Prepared, CommandError> {
        let control = &self.control;
        let prepared = tokio::select! {
            prepared = job::prepare(job, read_input::options(), Arc::clone(control)) => prepared?,
            never = read_input::show(&self.progress, control, &job.files) => match never {},
        };
        let scan = &prepared.uploaded.scan;
        if scan.error_count > 0 {
            self.progress.finish();
            to_stderr(&report::errors(scan, &job.files, read_input::ERRORS_SHOWN));
            to_stderr("to see all of them: add --dry-run\n");
        }
        job::check(&prepared.uploaded)?;
        Ok(prepared)
    }
}
