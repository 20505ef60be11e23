//! `rolloutctl member describe NAME`: one member, as the leader sees it.

use serde::Serialize;

use super::list::{self, MemberLine};
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::Failure;
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::unconfirmed::{self, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which member.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The member's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Members))]
    names: Vec<String>,
}

#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    member: MemberLine,
    /// The source of the answer if there is no leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<Unconfirmed>,
}

impl Report for Described {
    const KIND: &'static str = "Member";

    fn table(&self) -> String {
        let member = &self.member;
        let lines = [
            ("Name", member.name.clone()),
            ("Id", member.id.clone()),
            ("Role", member.standing()),
            ("Behind", member.lacks()),
            ("Zone", member.zone.clone()),
            ("Peer address", member.peer_addr.clone()),
            ("Client address", member.client_addr.clone()),
        ];
        let text: String =
            lines.into_iter().map(|(key, value)| format!("{key:<15} {value}\n")).collect();
        text + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints it. A member that is being replaced under its own name is in the list twice: the voter is shown.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names, globals.format, None, async |name, format| {
            one(&globals.connect, format, name).await
        })
        .await
    }
}

async fn one(connect: &ConnectArgs, format: Format, name: String) -> anyhow::Result<()> {
    let list = list::ask_any(&connect.client(None)?).await?;
    let mut of_name: Vec<_> = list.members.into_iter().filter(|m| m.name == name).collect();
    of_name.sort_by_key(|member| member.role == "learner");
    let Some(member) = of_name.into_iter().next() else {
        return Err(Failure::not_found(format!("there is no member {name:?}")).into());
    };
    let described = Described { member, unconfirmed: list.unconfirmed };
    output::emit(format, &described)?;
    unconfirmed::end(described.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Described {
            member: MemberLine {
                name: "c4".into(),
                id: "4".into(),
                peer_addr: "c4:7421".into(),
                client_addr: "c4:7420".into(),
                zone: "eu-1a".into(),
                role: "learner".into(),
                becomes: Some("voter".into()),
                replaces: Some("c1".into()),
                behind: Some("1200".into()),
            },
            unconfirmed: None,
        };
        crate::golden::report("member-describe.txt", &report);
    }
}
