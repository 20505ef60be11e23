//! `rolloutctl member promote NAME`: a learner gets a vote once it has caught up.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};

/// Which learner.
#[derive(Debug, clap::Args)]
pub(crate) struct PromoteArgs {
    /// The learner's name
    #[arg(add = completer::of(Names::Members))]
    pub(in crate::rolloutctl) name: String,
}

#[derive(Serialize)]
struct Promoted {
    member: String,
}

impl Report for Promoted {
    const KIND: &'static str = "MemberPromoted";

    fn table(&self) -> String {
        format!("member {} gets its vote as soon as it has caught up\n", self.member)
    }
}

/// Promotes it. May be repeated.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: PromoteArgs,
) -> anyhow::Result<()> {
    let client = connect.client(None)?;
    let request = v1::PromoteMemberRequest { name: args.name.clone() };
    client
        .with_leader("promote member", |channel| {
            let request = request.clone();
            async move { services::members(channel).promote_member(request).await }
        })
        .await?;
    output::emit(format, &Promoted { member: args.name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Promoted { member: "c4".into() };
        crate::golden::report("member-promote.txt", &report);
    }
}
