//! Owns: `rollout run results RUN`.
//!
//! Invariant: JSON lines go to stdout, in the format of completions.jsonl and errors.jsonl, each row's outcome once.
//! Absent: order and files; `rollout export` has both.

use std::io::{ErrorKind, Write};
use std::sync::Arc;

use rollout_batch::export::follow::{Follow, Selection};
use rollout_batch::submission::config::BatchConfig;
use rollout_batch::submission::error::BatchError;
use rollout_batch::submission::submit;

use super::cli::ResultsArgs;
use super::error::CommandError;
use super::export::store_of;
use super::on_wait;
use crate::connect::{ConnectArgs, Context};
use crate::progress::Progress;

pub(super) async fn run(connect: &ConnectArgs, args: &ResultsArgs) -> Result<u8, CommandError> {
    let settings = match &args.config {
        Some(file) => connect.settings_over(&Context::of_batch_file(&BatchConfig::read(file)?))?,
        None => connect.settings()?,
    };
    let progress = Arc::new(Progress::new(args.quiet));
    let client = settings.client(Some(on_wait(&progress)))?;
    let described = submit::describe(&client, &settings.namespace, &args.run).await?;
    let store = store_of(&client, &described).await?;
    let selection = Selection { wanted: args.state, sample: args.sample };
    let name = (settings.namespace.as_str(), args.run.as_str());
    let following = Follow::new(&client, name, described, store, selection);
    let run = following.run(args.follow, &mut print).await?;
    match BatchError::of_end(&run).filter(|_| args.follow) {
        Some(error) => Err(error.into()),
        None => Ok(0),
    }
}

/// False if the reader is gone, such as `head`: it has what it wanted. Any other write error is a failure, because the
/// printed part may look complete.
fn print(lines: &str) -> Result<bool, BatchError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(lines.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(source) => Err(BatchError::Output { path: "standard output".into(), source }),
    }
}
