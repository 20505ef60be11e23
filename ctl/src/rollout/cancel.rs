//! Owns: `rollout run cancel RUN...`.
//!
//! Invariant: repeating it changes nothing. Rows that have a result keep it, and the others get none. If one of
//! several runs cannot be cancelled, the others still are, and the exit status is the worst.
//! Absent: the output; `rollout export --partial` writes it.

use std::sync::Arc;

use rollout_batch::hint::namespace_flag;
use rollout_batch::submission::submit;
use rollout_proto::v1;

use super::cli::CancelArgs;
use super::error::CommandError;
use super::{explain, on_wait};
use crate::connect::ConnectArgs;
use crate::output::{count, counted};
use crate::progress::Progress;
use crate::stdio::to_stderr;

pub(super) async fn run(connect: &ConnectArgs, args: &CancelArgs) -> Result<u8, CommandError> {
    let settings = connect.settings()?;
    let progress = Arc::new(Progress::new(args.quiet));
    let client = settings.client(Some(on_wait(&progress)))?;
    let session = client.open_session("rollout run cancel").await?;
    let (mut text, mut worst) = (String::new(), 0_u8);
    for run in &args.runs {
        let cancelled = submit::cancel(&session, &settings.namespace, run, &args.reason).await;
        match cancelled.map_err(CommandError::from) {
            Ok(now) => text += &summary(run, &settings.namespace, now),
            Err(error) if args.runs.len() == 1 => {
                progress.finish();
                return Err(error);
            }
            Err(error) => {
                text += &format!("{run}: {}", explain(&error));
                worst = worst.max(error.exit_code());
            }
        }
    }
    progress.finish();
    to_stderr(&text);
    Ok(worst)
}

fn summary(run: &str, namespace: &str, now: v1::RunSummary) -> String {
    let (counts, namespace) = (now.counts.unwrap_or_default(), namespace_flag(namespace));
    format!(
        "run {run} is cancelled: {} of {} done; to write their results: \
         rollout export {run} --output DIR --partial{namespace}\n",
        count(counts.done),
        counted(counts.rows, "row"),
    )
}
