//! `rolloutctl worker uncordon NAME`: gives work again to a cordoned worker or slot.

use super::cordon::cordon;
use crate::completer::{self, Names};
use crate::rolloutctl::dry_run::planned;
use crate::rolloutctl::each::each;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which worker.
#[derive(Debug, clap::Args)]
pub(crate) struct UncordonArgs {
    /// The worker's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Workers))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Uncordon only this slot [default: all of the worker's cordons]
    #[arg(long, value_name = "N")]
    pub(in crate::rolloutctl) slot: Option<u32>,
}

impl Verb for UncordonArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Uncordons a worker or slot, whether an operator cordoned it or its engine died too often.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let UncordonArgs { names, slot } = self;
        each(names, globals.format, globals.again, async |name, format| {
            cordon(&globals.connect, format, (name, slot), false, String::new(), globals.again)
                .await
        })
        .await
    }
}
