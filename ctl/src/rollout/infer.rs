//! Owns: `rollout infer batch`.
//!
//! Invariant: however this command ends, it prints the next step, and it never cancels the run.
//! Absent: how each step works (`batch`, `export`).

mod batch_file;
mod choose;
mod output_dir;
mod return_hint;
mod submission;
mod task;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use rollout_batch::export;
use rollout_batch::export::output::Output;
use rollout_batch::hint::namespace_flag;
use rollout_batch::input::files;
use rollout_batch::input::scan::ScanControl;
use rollout_batch::submission::cluster_speed::{self, ClusterSpeed};
use rollout_batch::submission::config::BatchConfig;
use rollout_batch::submission::error::BatchError;
use rollout_batch::submission::tokens::Tokenizer;
use rollout_batch::submission::{spec, submit, watch};
use rollout_proto::{Client, Session, v1};
use rollout_storage::BlobStore;

use self::output_dir::RunName;
use self::return_hint::Stage;
use super::cli::BatchArgs;
use super::error::CommandError;
use super::interrupt::Interrupts;
use super::outcome::{BatchOutcome, Written};
use super::{dry_run, on_wait};
use crate::connect::{ConnectArgs, Context};
use crate::output::counted;
use crate::progress::Progress;
use crate::stdio::to_stderr;

struct Batch<'a> {
    args: &'a BatchArgs,
    config: BatchConfig,
    spec: v1::RunSpec,
    namespace: String,
    /// The revision, once it is known.
    name: Mutex<String>,
    /// Whether this command generated the name.
    generated: bool,
    client: Client,
    progress: Arc<Progress>,
    control: Arc<ScanControl>,
    stage: Mutex<Stage>,
    session: Mutex<Option<Session>>,
}

/// The cluster's figures for a dry run, if a cluster is configured.
async fn known_figures(
    connect: &ConnectArgs,
    config: &BatchConfig,
    spec: &v1::RunSpec,
    tokenizer: Tokenizer,
) -> (Tokenizer, ClusterSpeed) {
    let figures = match connect.settings_over(&Context::of_batch_file(config)) {
        Ok(settings) => match (settings.client(None), &spec.engine) {
            (Ok(client), Some(engine)) => {
                cluster_speed::fetch(&client, &settings.namespace, engine).await
            }
            _ => ClusterSpeed::default(),
        },
        Err(_) => ClusterSpeed::default(),
    };
    (Tokenizer { model_len: figures.room, ..tokenizer }, figures)
}

pub(super) async fn run(connect: &ConnectArgs, args: &BatchArgs) -> Result<u8, CommandError> {
    let mut config = args.read_batch_file()?;
    config.run.canary = args.canary.unwrap_or(config.run.canary);
    let RunName { name, generated } = RunName::find(args, &config)?;
    if args.dry_run {
        return Box::pin(try_out(connect, args, config, name)).await;
    }
    let settings = connect.settings_over(&Context::of_batch_file(&config))?;
    let progress = Arc::new(Progress::new(args.quiet));
    let client = settings.client(Some(on_wait(&progress)))?;
    let resumed = args.resume.is_some().then_some((&client, &*settings.namespace, &*name));
    task::decide(&mut config, resumed).await?;
    let spec = spec::run_spec(&config)?;
    let batch = Batch {
        args,
        config,
        spec,
        namespace: settings.namespace,
        name: Mutex::new(name),
        generated,
        client,
        progress,
        control: Arc::default(),
        stage: Mutex::new(Stage::Reading),
        session: Mutex::new(None),
    };
    batch.check_place()?;
    let mut interrupts = Interrupts::listen();
    let outcome = tokio::select! {
        outcome = batch.work() => outcome,
        () = interrupts.next() => Err(batch.interrupted()),
    };
    batch.progress.finish();
    if let Err(CommandError::Batch(BatchError::Client(_))) = &outcome
        && matches!(batch.stage(), Stage::Submitting | Stage::Watching)
    {
        batch.print_return_hint();
    }
    if outcome.is_err() {
        batch.print_named_run();
    }
    outcome
}

/// A dry run.
async fn try_out(
    connect: &ConnectArgs,
    args: &BatchArgs,
    mut config: BatchConfig,
    name: String,
) -> Result<u8, CommandError> {
    task::decide(&mut config, None).await?;
    let spec = spec::run_spec(&config)?;
    let files = files::find(&config.input.glob.list(), &config.dir).await?;
    let tokenizer = match dry_run::tokenizer(args, &spec) {
        Some(tokenizer) => Some(Box::pin(known_figures(connect, &config, &spec, tokenizer)).await),
        None => None,
    };
    let settings = connect.settings_over(&Context::of_batch_file(&config));
    let claim = output_dir::claim(args, &config, settings.ok().map(|at| at.namespace), name);
    dry_run::run((&config, &claim, &spec), files, tokenizer, args.report).await
}

impl Batch<'_> {
    async fn work(&self) -> Result<u8, CommandError> {
        let session = self.client.open_session("rollout infer batch").await?;
        *self.session.lock() = Some(session.clone());
        let url = match self.config.store.url.as_str() {
            "" => session.store_url(),
            url => url,
        };
        let store = BlobStore::open(url)?;
        if !self.attach(&session).await? {
            self.submit(&session, store.clone()).await?;
        }
        self.warn_of_workers().await;
        self.enter(Stage::Watching);
        if self.args.detach {
            self.args.report.print(&self.outcome(None))?;
            self.print_return_hint();
            return Ok(0);
        }
        let written = self.wait_and_write(store).await?;
        let code = written.exit_code();
        self.args.report.print_written(&self.outcome(Some(written)))?;
        Ok(code)
    }

    fn outcome(&self, written: Option<Written>) -> BatchOutcome {
        BatchOutcome { namespace: self.namespace.clone(), run: self.name(), written }
    }

    async fn warn_of_workers(&self) {
        let Some(expected) = self.args.workers else { return };
        // Only a hint: a user who may not list workers may still submit.
        let Ok(ready) = submit::workers_ready(&self.client, &self.namespace).await else { return };
        if ready < expected as usize {
            self.progress.note(&format!(
                "warning: {ready} of {} ready; the run takes those that come",
                counted(expected.into(), "worker")
            ));
        }
    }

    async fn wait_and_write(&self, store: BlobStore) -> Result<Written, CommandError> {
        let mut printed = String::new();
        let seen = |run: &v1::RunSummary| {
            let note = self.remark(run);
            if note != printed {
                if !note.is_empty() {
                    self.progress.note(&note);
                }
                printed = note;
            }
            self.progress.run(run);
        };
        let ended = watch::follow(&self.client, &self.namespace, &self.name(), seen).await?;
        if let Some(error) = BatchError::of_end(&ended) {
            return Err(error.into());
        }
        self.enter(Stage::Writing);
        let described = submit::describe(&self.client, &self.namespace, &self.name()).await?;
        let (layout, dir) = (self.config.layout(), &self.config.output.dir);
        let source = export::Source {
            client: &self.client,
            store,
            described: &described,
            partial: false,
            format: layout.format,
        };
        let output = Output::create(&self.claim(), &described, &self.spec)?;
        let read = export::read(&source, Box::new(output), &self.progress.on_rows()).await?;
        self.progress.finish();
        Ok(Written::new(&read, dir, &layout))
    }

    /// A remark for the user about a run that makes no progress.
    fn remark(&self, run: &v1::RunSummary) -> String {
        let namespace = namespace_flag(&self.namespace);
        match run.state() {
            v1::RunState::Paused => format!(
                "run {} is paused: {}; to continue: rolloutctl run resume {}{namespace}",
                run.name,
                or(&run.reason, "no reason was given"),
                run.name
            ),
            v1::RunState::Running if !run.blocked.is_empty() => {
                format!("run {} waits: {}", run.name, run.blocked)
            }
            v1::RunState::Running if !run.input_closed && no_row_is_open(run) => format!(
                "run {name} has no row left and is open for more; to close it: rollout run close {name}{namespace}",
                name = run.name
            ),
            _ => String::new(),
        }
    }

    /// Ends the command at a signal. The run continues.
    fn interrupted(&self) -> CommandError {
        self.control.stop.store(true, Ordering::Relaxed);
        self.progress.finish();
        match self.stage().without_a_run().filter(|_| self.args.resume.is_none()) {
            Some(told) => to_stderr(told),
            None => self.print_return_hint(),
        }
        CommandError::Interrupted
    }

    fn print_return_hint(&self) {
        let (name, namespace) = (self.name(), namespace_flag(&self.namespace));
        to_stderr(&return_hint::return_hint(self.stage(), self.args, &name, &namespace));
    }

    fn name(&self) -> String {
        self.name.lock().clone()
    }

    fn enter(&self, stage: Stage) {
        *self.stage.lock() = stage;
    }

    fn stage(&self) -> Stage {
        *self.stage.lock()
    }
}

fn no_row_is_open(run: &v1::RunSummary) -> bool {
    let counts = run.counts.unwrap_or_default();
    counts.done + counts.failed == counts.rows
}

fn or<'a>(text: &'a str, empty: &'a str) -> &'a str {
    if text.is_empty() { empty } else { text }
}
