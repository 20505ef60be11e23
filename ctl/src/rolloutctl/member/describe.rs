//! `rolloutctl member describe NAME`: one member, as the leader sees it.

use serde::Serialize;

use super::list::{self, MemberLine};
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::Failure;

/// Which member.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The member's name
    #[arg(add = completer::of(Names::Members))]
    name: String,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Described(MemberLine);

impl Report for Described {
    const KIND: &'static str = "Member";

    fn table(&self) -> String {
        let member = &self.0;
        let lines = [
            ("Name", member.name.clone()),
            ("Id", member.id.clone()),
            ("Role", member.standing()),
            ("Behind", member.lacks()),
            ("Zone", member.zone.clone()),
            ("Peer address", member.peer_addr.clone()),
            ("Client address", member.client_addr.clone()),
        ];
        lines.into_iter().map(|(key, value)| format!("{key:<15} {value}\n")).collect()
    }
}

/// Prints it. A member that is being replaced under its own name is in the list twice: the voter is shown.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: DescribeArgs,
) -> anyhow::Result<()> {
    let list = list::ask(&connect.client(None)?).await?;
    let mut of_name: Vec<_> = list.members.into_iter().filter(|m| m.name == args.name).collect();
    of_name.sort_by_key(|member| member.role == "learner");
    match of_name.into_iter().next() {
        Some(member) => output::emit(format, &Described(member)),
        None => Err(Failure::not_found(format!("there is no member {:?}", args.name)).into()),
    }
}
