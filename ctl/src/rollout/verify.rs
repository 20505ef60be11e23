//! Owns: `rollout verify RUN`.
//!
//! Invariant: exit status 0 means that everything was proven.
//! Absent: what it proves (`export::verify`).

use std::path::Path;
use std::sync::Arc;

use super::cli::VerifyArgs;
use super::export::store_of;
use super::on_wait;
use super::outcome::VerifyOutcome;
use crate::batch::error::BatchError;
use crate::batch::submit;
use crate::connect::ConnectArgs;
use crate::export::format::OutputFormat;
use crate::export::output::Layout;
use crate::export::{self, Source, verify};
use crate::progress::Progress;

pub(super) async fn run(connect: &ConnectArgs, args: &VerifyArgs) -> Result<u8, BatchError> {
    let settings = connect.settings()?;
    let progress = Arc::new(Progress::new(args.quiet));
    let client = settings.client(Some(on_wait(&progress)))?;
    let described = submit::describe(&client, &settings.namespace, &args.run).await?;
    let store = store_of(&client, &described).await?;
    let default = OutputFormat::of_spec(&export::full_spec(&store, &described).await?);
    let layout = match &args.output {
        Some(dir) => Some(layout_of(dir, args.format, default)?),
        None => None,
    };
    let format = layout.map_or(default, |layout| layout.format);
    let source = Source { client: &client, store, described: &described, partial: false, format };
    let output = args.output.as_deref().zip(layout);
    let outcome = verify::verify(&source, output, &progress).await;
    progress.finish();
    let verified = outcome?;
    let totals = verified.totals;
    args.report.print(&VerifyOutcome {
        namespace: settings.namespace.clone(),
        run: args.run.clone(),
        rows: totals.rows,
        done: totals.done,
        failed: totals.failed,
        segments: totals.segments,
        parts: totals.parts,
        input_digest: blake3::Hash::from_bytes(verified.input_digest).to_hex().to_string(),
        output: args.output.as_ref().map(|dir| dir.display().to_string()),
    })?;
    Ok(0)
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
