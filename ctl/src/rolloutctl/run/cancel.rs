//! `rolloutctl run cancel NAME`: ends a run.
//!
//! Invariant: repeating it changes nothing. Finished rows stay finished, and the others get no outcome.

use rollout_proto::v1::RunAction;

use super::control::{ControlArgs, control};
use crate::connect::ConnectArgs;
use crate::output::Format;
use crate::rolloutctl::request::RequestName;

/// Asks the leader, and prints the run's state afterward.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: ControlArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    control(connect, format, args, RunAction::Cancel, again).await
}
