//! `rolloutctl worker uncordon NAME`: gives work again to a cordoned worker or slot.

use super::cordon::cordon;
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::Format;
use crate::rolloutctl::each::each;
use crate::rolloutctl::request::RequestName;

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

/// Uncordons a worker or slot, whether an operator cordoned it or its engine died too often.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: UncordonArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let UncordonArgs { names, slot } = args;
    each(names, format, again, async |name, format| {
        cordon(connect, format, (name, slot), false, String::new(), again).await
    })
    .await
}
