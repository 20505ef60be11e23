//! `rolloutctl run resume NAME`: grants a paused run's rows again.
//!
//! Invariant: repeating it changes nothing; the count of failures that paused it is kept.

use rollout_proto::v1::RunAction;

use super::control::{ControlArgs, control};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArgs {
    #[command(flatten)]
    pub(in crate::rolloutctl) which: ControlArgs,
}

impl Verb for ResumeArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Asks the leader, and prints the run's state afterward.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        control(globals, self.which, RunAction::Resume).await
    }
}

impl Checked for ResumeArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let request = |name: &String| self.which.request(namespace, name, RunAction::Resume);
        for_each(&self.which.names, request)
    }
}

impl Planned for ResumeArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("resume run {name}");
        reader.runs(&self.which.names, would).await
    }
}
