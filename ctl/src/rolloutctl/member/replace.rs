//! `rolloutctl member replace OLD [NEW]`: a new member gets the old one's vote in the step that removes the old one.

use super::add::{NewMember, add};
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::Format;

/// Who replaces whom.
#[derive(Debug, clap::Args)]
pub(crate) struct ReplaceArgs {
    /// The member that leaves; it may be dead
    #[arg(add = completer::of(Names::Members))]
    pub(in crate::rolloutctl) old: String,
    /// Name of the new member [default: the same name, with an empty disk]
    pub(in crate::rolloutctl) new_name: Option<String>,
    #[command(flatten)]
    pub(in crate::rolloutctl) new: NewMember,
}

/// Replaces a member.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: ReplaceArgs,
) -> anyhow::Result<()> {
    let name = args.new_name.unwrap_or_else(|| args.old.clone());
    add(connect, format, (name, Some(args.old)), args.new, false).await
}
