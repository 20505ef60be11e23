//! Owns: `rollout run cancel RUN`.
//!
//! Invariant: repeating it changes nothing; rows that have a result keep it, and the others get none.
//! Absent: the output; `rollout export --partial` writes it.

use std::sync::Arc;

use super::cli::CancelArgs;
use super::on_wait;
use crate::batch::error::BatchError;
use crate::batch::submit;
use crate::connect::ConnectArgs;
use crate::hint::namespace_flag;
use crate::output::{count, counted};
use crate::progress::Progress;
use crate::say::to_stderr;

pub(super) async fn run(connect: &ConnectArgs, args: &CancelArgs) -> Result<u8, BatchError> {
    let settings = connect.settings()?;
    let progress = Arc::new(Progress::new(args.quiet));
    let client = settings.client(Some(on_wait(&progress)))?;
    let session = client.open_session("rollout run cancel").await?;
    let cancelled = submit::cancel(&session, &settings.namespace, &args.run, &args.reason).await;
    progress.finish();
    let counts = cancelled?.counts.unwrap_or_default();
    let (run, namespace) = (&args.run, namespace_flag(&settings.namespace));
    to_stderr(&format!(
        "run {run} is cancelled: {} of {} done; to write their results: \
         rollout export {run} --output DIR --partial{namespace}\n",
        count(counts.done),
        counted(counts.rows, "row"),
    ));
    Ok(0)
}
