//! `rolloutctl member remove NAME`: a member leaves the cluster for good.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::list;
use super::plan_checks::{check_majority, find, line};
use crate::completer::{self, Names};
use crate::output::{self, Report};
use crate::rolloutctl::consent;
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::status;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which member.
#[derive(Debug, clap::Args)]
pub(crate) struct RemoveArgs {
    /// The member's name; one at a time, because each change must be complete before the next one is safe. Stop its
    /// process afterward; its data directory cannot be reused
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

impl Verb for RemoveArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: true, dry_run: client_plan };

    /// Removes it. Refused if the rest would have no majority that answers.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        consent::confirm(&format!("removing member {}", self.name), &self.name, globals.consent)?;
        let client = globals.connect.client(None)?;
        let request = v1::RemoveMemberRequest { name: self.name.clone() };
        client
            .with_leader("remove member", |channel| {
                let request = request.clone();
                async move { services::members(channel).remove_member(request).await }
            })
            .await?;
        output::emit(globals.format, &Removed { member: self.name })
    }
}

impl Planned for RemoveArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let list = list::fetch(&reader.client).await?;
        let member = find(&list.members, &self.name)?;
        let survey = status::survey(&reader.client).await;
        check_majority(&list.members, &survey, &self.name)?;
        Ok(Plan::new(format!("remove member {} for good", self.name), line(member)))
    }
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
