//! `rolloutctl member remove NAME`: a member leaves the cluster for good.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::consent::{self, Consent};

/// Which member.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The member's name. Stop its process afterward; its data directory cannot be reused
    #[arg(add = completer::of(Names::Members))]
    pub(in crate::rolloutctl) name: String,
}

#[derive(Serialize)]
struct Removed {
    member: String,
}

impl Report for Removed {
    const KIND: &'static str = "MemberRemoved";

    fn table(&self) -> String {
        format!("member {} is no longer part of the cluster; stop its process\n", self.member)
    }
}

/// Removes it. Refused if the rest would have no majority that answers.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: RemoveArgs,
    yes: Consent,
) -> anyhow::Result<()> {
    consent::ask(&format!("removing member {}", args.name), &args.name, yes)?;
    let client = connect.client(None)?;
    let request = v1::RemoveMemberRequest { name: args.name.clone() };
    client
        .with_leader("remove member", |channel| {
            let request = request.clone();
            async move { services::members(channel).remove_member(request).await }
        })
        .await?;
    output::emit(format, &Removed { member: args.name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Removed { member: "c4".into() };
        crate::golden::report("member-remove.txt", &report);
    }
}
