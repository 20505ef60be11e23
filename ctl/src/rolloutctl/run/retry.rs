//! `rolloutctl run retry NAME... --failed`: retries all failed rows of a run.

use super::super::item;
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::Format;
use crate::rolloutctl::each::each;
use crate::rolloutctl::request::RequestName;

/// Which run.
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// The run's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Runs))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Retry the failed rows; done rows stay done
    #[arg(long, required = true)]
    failed: bool,
}

/// Retries all failed rows; a finished run runs again.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: RetryArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    debug_assert!(args.failed, "the command line requires it");
    each(args.names, format, again, async |name, format| {
        item::retry::retry(connect, format, name, None, again).await
    })
    .await
}
