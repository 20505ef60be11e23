//! Owns: `rollout verify RUN...`.
//!
//! Invariant: exit status 0 means that everything was proven. If one of several runs fails, the others are still
//! verified, and the exit status is the worst.
//! Absent: what it proves (`export::verify`).

use std::path::Path;
use std::sync::Arc;

use rollout_batch::export::format::OutputFormat;
use rollout_batch::export::layout::Layout;
use rollout_batch::export::{self, Source, verify};
use rollout_batch::submission::error::BatchError;
use rollout_batch::submission::submit;

use super::cli::VerifyArgs;
use super::error::CommandError;
use super::export::store_of;
use super::outcome::VerifyOutcome;
use super::{explain, on_wait};
use crate::connect::{ConnectArgs, ConnectSettings};
use crate::progress::Progress;
use crate::stdio::to_stderr;

pub(super) async fn run(connect: &ConnectArgs, args: &VerifyArgs) -> Result<u8, CommandError> {
    let several = args.runs.len() > 1;
    if several && args.output.is_some() {
        let message = "--output names the directory of one run: give one name";
        return Err(CommandError::Usage(message.to_owned()));
    }
    let settings = connect.settings()?;
    let mut worst = 0_u8;
    for run in &args.runs {
        let progress = Arc::new(Progress::new(args.quiet));
        let outcome = verify_one(&settings, args, run, &progress).await;
        progress.finish();
        match outcome {
            Ok(outcome) if several => args.report.print_next(&outcome)?,
            Ok(outcome) => args.report.print(&outcome)?,
            Err(error) if several => {
                to_stderr(&format!("{run}: {}", explain(&error)));
                worst = worst.max(error.exit_code());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(worst)
}

async fn verify_one(
    settings: &ConnectSettings,
    args: &VerifyArgs,
    run: &str,
    progress: &Arc<Progress>,
) -> Result<VerifyOutcome, CommandError> {
    let client = settings.client(Some(on_wait(progress)))?;
    let described = submit::describe(&client, &settings.namespace, run).await?;
    let store = store_of(&client, &described).await?;
    let default = OutputFormat::of_spec(&export::full_spec(&store, &described).await?);
    let layout = match &args.output {
        Some(dir) => Some(layout_of(dir, args.format, default)?),
        None => None,
    };
    let format = layout.map_or(default, |layout| layout.format);
    let source = Source { client: &client, store, described: &described, partial: false, format };
    let output = args.output.as_deref().zip(layout);
    let verified = verify::verify(&source, output, &progress.on_rows()).await?;
    let totals = verified.totals;
    Ok(VerifyOutcome {
        namespace: settings.namespace.clone(),
        run: run.to_owned(),
        rows: totals.rows,
        done: totals.done,
        failed: totals.failed,
        segments: totals.segments,
        parts: totals.parts,
        input_digest: blake3::Hash::from_bytes(verified.input_digest).to_hex().to_string(),
        output: args.output.as_ref().map(|dir| dir.display().to_string()),
    })
}

/// The layout of a directory: the requested one, or the existing one.
fn layout_of(
    dir: &Path,
    requested: Option<OutputFormat>,
    default: OutputFormat,
) -> Result<Layout, BatchError> {
    match requested {
        Some(format) => Ok(Layout { format, shard_rows: 0 }),
        None => Layout::of_directory(dir, default),
    }
}
