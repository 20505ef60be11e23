//! `rolloutctl worker uncordon NAME`: gives work again to a cordoned worker or slot.

use rollout_proto::v1;

use super::cordon::cordon;
use crate::completer::{self, Names};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, of_slot, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which worker.
#[derive(Debug, clap::Args)]
pub(crate) struct UncordonArgs {
    /// The worker's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Workers))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Lift only the cordons of this slot [default: all of the worker's cordons]
    #[arg(long, value_name = "N")]
    pub(in crate::rolloutctl) slot: Option<u32>,
}

impl UncordonArgs {
    /// The request for one worker, without its namespace and its number.
    fn wanted(&self, name: &str) -> v1::CordonWorkerRequest {
        v1::CordonWorkerRequest { name: name.to_owned(), slot: self.slot, ..Default::default() }
    }
}

impl Verb for UncordonArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Uncordons a worker or slot, whether an operator cordoned it or its engine died too often.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names.clone(), globals.format, globals.again, async |name, format| {
            cordon(&globals.connect, format, self.wanted(&name), globals.again).await
        })
        .await
    }
}

impl Checked for UncordonArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let namespace = || namespace.to_owned();
        for_each(&self.names, |name| v1::CordonWorkerRequest {
            namespace: namespace(),
            ..self.wanted(name)
        })
    }
}

impl Planned for UncordonArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.workers(self.names, ("uncordon worker", of_slot(self.slot))).await
    }
}
