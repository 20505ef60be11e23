//! Owns: `rollout infer batch --dry-run`.
//!
//! Invariant: nothing is written and nothing submitted. The cluster is asked only for its recent speed and for the
//! length limit of a row, only if tokens are counted, and need not answer.
//! Absent: whether the cluster could serve the run.

use std::sync::Arc;

use parking_lot::Mutex;
use rollout_batch::export::owner::Claim;
use rollout_batch::input::files::InputFile;
use rollout_batch::input::scan::{Scan, ScanControl, ScanOptions, SinkClosed};
use rollout_batch::submission::cluster_speed::ClusterSpeed;
use rollout_batch::submission::config::BatchConfig;
use rollout_batch::submission::error::BatchError;
use rollout_batch::submission::speed::Speed;
use rollout_batch::submission::tokens::{self, Counted, Counting, Tokenizer, TokensError};
use rollout_batch::submission::{spec, upload};
use rollout_proto::v1;
use rollout_storage::BlobStore;

use super::cli::BatchArgs;
use super::error::CommandError;
use super::outcome::OutcomeFormat;
use super::plan::{self, Plan};
use super::report;
use crate::stdio::to_stderr;

/// The tokenizer that counts tokens, if a Python was named.
pub(super) fn tokenizer(args: &BatchArgs, run_spec: &v1::RunSpec) -> Option<Tokenizer> {
    let engine = run_spec.engine.clone().unwrap_or_default();
    let sampling = run_spec.sampling_json.clone();
    // A tokenizer that is named separately has no revision of the run's model.
    let revision =
        Some(engine.revision).filter(|name| args.tokenizer.is_none() && !name.is_empty());
    Some(Tokenizer {
        python: tokens::python(args.python.as_deref())?,
        model: args.tokenizer.clone().unwrap_or(engine.model),
        revision,
        task: engine.task,
        sampling: if sampling.is_empty() { "{}".to_owned() } else { sampling },
        model_len: None,
    })
}

pub(super) async fn run(
    (config, claim, run_spec): (&BatchConfig, &Claim, &v1::RunSpec),
    files: Vec<InputFile>,
    tokenizer: Option<(Tokenizer, ClusterSpeed)>,
    format: OutcomeFormat,
) -> Result<u8, CommandError> {
    let (tokenizer, figures) = tokenizer.unzip();
    let figures = figures.unwrap_or_default();
    if !config.store.url.is_empty() {
        BlobStore::open(&config.store.url)?;
    }
    let (scan, counted) = match &tokenizer {
        Some(tokenizer) => scan_and_count(run_spec, files.clone(), tokenizer).await?,
        None => (scan(run_spec, files.clone()).await?, Ok(None)),
    };
    let mut plan = Plan::new(claim, run_spec, (&files, &scan), &config.output.dir);
    match &counted {
        Ok(Some(counted)) => {
            let here = || Speed::of(&config.output.dir.join("completions.jsonl"));
            let speed = figures.last.clone().map(|(run, speed)| (format!("run {run}"), speed));
            let speed = speed.or_else(|| Some(("the last run here".to_owned(), here()?)));
            plan.counted(counted, figures.room, speed);
        }
        Ok(None) => plan.text += "tokens     not counted: add --python PATH\n",
        Err(_) => {}
    }
    format.print(&plan)?;
    to_stderr(&report::errors(&scan, &files, plan::LISTED_MAX));
    to_stderr(&report::warnings(&scan, &files, plan::LISTED_MAX));
    let problems = match &counted {
        Ok(Some(counted)) => {
            to_stderr(&report::problems(counted));
            counted.problem_count
        }
        Ok(None) => 0,
        Err(error) => return Err(CommandError::Usage(format!("tokens were not counted: {error}"))),
    };
    let place = claim.check();
    match scan.error_count + problems {
        0 if scan.rows == 0 => Err(BatchError::Empty.into()),
        0 => Ok(place.map(|()| 0)?),
        count => {
            if let Err(refused) = place {
                to_stderr(&format!("{refused}\n"));
            }
            Err(BatchError::Input { count }.into())
        }
    }
}

fn options() -> ScanOptions {
    ScanOptions { errors_max: plan::LISTED_MAX, ..ScanOptions::default() }
}

async fn scan(run_spec: &v1::RunSpec, files: Vec<InputFile>) -> Result<Scan, BatchError> {
    let control = Arc::new(ScanControl::default());
    upload::check(files, spec::rules(run_spec)?.strict(), options(), control).await
}

/// The scan, and the token counts of the rows without errors.
async fn scan_and_count(
    run_spec: &v1::RunSpec,
    files: Vec<InputFile>,
    tokenizer: &Tokenizer,
) -> Result<(Scan, Result<Option<Counted>, TokensError>), BatchError> {
    let counting = match Counting::start(tokenizer, plan::LISTED_MAX) {
        Ok(counting) => Arc::new(Mutex::new(Some(counting))),
        Err(error) => return Ok((scan(run_spec, files).await?, Err(error))),
    };
    let (control, rules) = (Arc::new(ScanControl::default()), spec::rules(run_spec)?.strict());
    let sink = counting.clone();
    let each = move |segment: rollout_batch::input::scan::FinishedSegment| match &mut *sink.lock() {
        Some(counting) => counting.segment(segment.bytes).map_err(|_| SinkClosed),
        None => Err(SinkClosed),
    };
    let options = ScanOptions { past_errors: true, ..options() };
    let scanned = upload::check_each(files.clone(), rules, options, control, each).await;
    let Some(counting) = counting.lock().take() else { return Ok((scanned?, Ok(None))) };
    let finish = tokio::task::spawn_blocking(move || counting.finish()).await;
    let lost = |_| Err(TokensError::Failed("the count was lost".to_owned()));
    let counted = finish.unwrap_or_else(lost);
    match (scanned, counted) {
        (Ok(scan), counted) => Ok((scan, counted.map(Some))),
        // The program ended before the rows did, and says why; otherwise the input is at fault.
        (Err(BatchError::Scan(_)), Err(failed)) => Ok((scan(run_spec, files).await?, Err(failed))),
        (Err(error), _) => Err(error),
    }
}
