//! Owns: `rollout run close RUN`.
//!
//! Invariant: exit status 0 means that no row can be added to the run any more.
//! Absent: waiting for its end.

use std::sync::Arc;

use rollout_batch::submission::close::{self, Closed};

use super::cli::CloseArgs;
use super::error::CommandError;
use super::on_wait;
use crate::connect::ConnectArgs;
use crate::output::counted;
use crate::progress::Progress;
use crate::stdio::to_stderr;

pub(super) async fn run(connect: &ConnectArgs, args: &CloseArgs) -> Result<u8, CommandError> {
    let settings = connect.settings()?;
    let progress = Arc::new(Progress::new(args.quiet));
    let client = settings.client(Some(on_wait(&progress)))?;
    let session = client.open_session("rollout run close").await?;
    let closed = close::close(&session, &settings.namespace, &args.run).await;
    progress.finish();
    let Closed { rows, already } = closed?;
    let was = if already { "was closed already" } else { "is closed" };
    to_stderr(&format!("run {}: its input {was}, with {}\n", args.run, counted(rows, "row")));
    Ok(0)
}
