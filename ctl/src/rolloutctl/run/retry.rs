//! `rolloutctl run retry NAME... --failed`: retries all failed rows of a run.

use super::super::item;
use crate::completer::{self, Names};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run.
#[derive(Debug, clap::Args)]
pub(crate) struct RetryArgs {
    /// The run's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Runs))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Required: states which rows to retry. Done rows stay done
    #[arg(long, required = true)]
    failed: bool,
}

impl Verb for RetryArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Retries all failed rows; a finished run runs again.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        debug_assert!(self.failed, "the command line requires it");
        for_each_name(self.names, globals.format, globals.again, async |name, format| {
            item::retry::retry(&globals.connect, format, name, None, globals.again).await
        })
        .await
    }
}

impl Checked for RetryArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.names, |name| item::retry::request(namespace, name, None))
    }
}

impl Planned for RetryArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("retry all failed rows of run {name}");
        reader.runs(&self.names, would).await
    }
}
