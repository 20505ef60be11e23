//! `rolloutctl member promote NAME`: a learner gets a vote once it has caught up.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::list;
use super::plan_checks::{find, line};
use crate::completer::{self, Names};
use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which learner.
#[derive(Debug, clap::Args)]
pub(crate) struct PromoteArgs {
    /// The learner's name; one at a time, because each change must be complete before the next one is safe
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

impl Verb for PromoteArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: client_plan };

    /// Promotes it. May be repeated.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let request = v1::PromoteMemberRequest { name: self.name.clone() };
        client
            .with_leader("promote member", |channel| {
                let request = request.clone();
                async move { services::members(channel).promote_member(request).await }
            })
            .await?;
        output::emit(globals.format, &Promoted { member: self.name })
    }
}

impl Planned for PromoteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let list = list::fetch(&reader.client).await?;
        let now = line(find(&list.members, &self.name)?);
        Ok(Plan::new(format!("give {} a vote once it has caught up", self.name), now))
    }
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
