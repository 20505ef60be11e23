//! `rolloutctl run pause NAME`: stops granting a run's rows.
//!
//! Invariant: repeating it changes nothing; running rows may finish.

use rollout_proto::v1::RunAction;

use super::control::{ControlArgs, control};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct PauseArgs {
    #[command(flatten)]
    pub(in crate::rolloutctl) which: ControlArgs,
}

impl Verb for PauseArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Asks the leader, and prints the run's state afterward.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        control(globals, self.which, RunAction::Pause).await
    }
}

impl Checked for PauseArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let request = |name: &String| self.which.request(namespace, name, RunAction::Pause);
        for_each(&self.which.names, request)
    }
}

impl Planned for PauseArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("pause run {name}");
        reader.runs(&self.which.names, would).await
    }
}
