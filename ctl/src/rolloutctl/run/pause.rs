//! `rolloutctl run pause NAME`: stops granting a run's rows.
//!
//! Invariant: repeating it changes nothing; running rows may finish.

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
    control(connect, format, args, RunAction::Pause, again).await
}
