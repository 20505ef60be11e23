//! `rolloutctl run cancel NAME`: ends a run.
//!
//! Invariant: repeating it changes nothing. Finished rows stay finished, and the others get no outcome.

use rollout_proto::v1::RunAction;

use super::control::{ControlArgs, control};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct CancelArgs {
    #[command(flatten)]
    pub(in crate::rolloutctl) which: ControlArgs,
}

impl Verb for CancelArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Asks the leader, and prints the run's state afterward.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        control(globals, self.which, RunAction::Cancel).await
    }
}

impl Checked for CancelArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let request = |name: &String| self.which.request(namespace, name, RunAction::Cancel);
        for_each(&self.which.names, request)
    }
}

impl Planned for CancelArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("cancel run {name}");
        reader.runs(&self.which.names, would).await
    }
}
