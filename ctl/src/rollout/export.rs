//! Owns: `rollout export RUN`.
//!
//! Invariant: it writes the same files, byte for byte, as `rollout infer batch` does for the same run.
//! Absent: waiting.

use std::sync::Arc;

use rollout_batch::export::format::OutputFormat;
use rollout_batch::export::layout::Layout;
use rollout_batch::export::output::Output;
use rollout_batch::export::owner::Claim;
use rollout_batch::export::{self, Source};
use rollout_batch::input::task::Task;
use rollout_batch::submission::submit;
use rollout_proto::{Client, v1};
use rollout_storage::BlobStore;

use super::cli::ExportArgs;
use super::error::CommandError;
use super::on_wait;
use super::outcome::{ExportOutcome, Written};
use crate::connect::ConnectArgs;
use crate::progress::Progress;

pub(super) async fn run(connect: &ConnectArgs, args: &ExportArgs) -> Result<u8, CommandError> {
    let settings = connect.settings()?;
    let progress = Arc::new(Progress::new(args.quiet));
    let client = settings.client(Some(on_wait(&progress)))?;
    let described = submit::describe(&client, &settings.namespace, &args.run).await?;
    let store = store_of(&client, &described).await?;
    let run_spec = export::full_spec(&store, &described).await?;
    let task = Task::of(run_spec.engine.as_ref().map_or("", |engine| &engine.task));
    let format = args.format.unwrap_or(OutputFormat::of_task(task));
    format.check(task).map_err(|message| CommandError::Usage(format!("--format {message}")))?;
    let layout = Layout { format, shard_rows: args.shard_rows.unwrap_or(0) };
    let claim = Claim {
        dir: args.output.clone(),
        layout,
        namespace: Some(settings.namespace.clone()),
        run: args.run.clone(),
        batch: None,
        overwrite: args.overwrite,
    };
    let (client, partial) = (&client, args.partial);
    let source = Source { client, store, described: &described, partial, format };
    let output = Output::create(&claim, &described, &run_spec)?;
    let outcome = export::read(&source, Box::new(output), &progress.on_rows()).await;
    progress.finish();
    let written = Written::new(&outcome?, &args.output, &layout);
    let code = written.exit_code();
    let (namespace, run) = (settings.namespace.clone(), args.run.clone());
    args.report.print_written(&ExportOutcome { namespace, run, written })?;
    Ok(code)
}

/// The store of a run: its own, or the cluster's.
pub(super) async fn store_of(
    client: &Client,
    described: &v1::DescribeRunResponse,
) -> Result<BlobStore, CommandError> {
    let own = described.spec.as_ref().map_or("", |spec| &spec.store_url);
    if !own.is_empty() {
        return Ok(BlobStore::open(own)?);
    }
    let session = client.open_session("rollout export").await?;
    Ok(BlobStore::open(session.store_url())?)
}
