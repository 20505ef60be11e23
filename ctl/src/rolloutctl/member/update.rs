//! `rolloutctl member update NAME`: changes the address or zone of a member.

use rollout_proto::{HostPort, services, v1};
use serde::Serialize;

use super::list;
use super::plan_checks::find;
use crate::completer::{self, Names};
use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// What is new.
#[derive(Debug, clap::Args)]
pub(crate) struct UpdateArgs {
    /// The member's name
    #[arg(add = completer::of(Names::Members))]
    pub(in crate::rolloutctl) name: String,
    /// Where the other members reach it; it must answer there already
    #[arg(long, value_name = "HOST:PORT")]
    peer_addr: Option<HostPort>,
    /// Where workers, clients and operators reach it
    #[arg(long, value_name = "HOST:PORT")]
    client_addr: Option<HostPort>,
    /// Its failure domain
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
}

#[derive(Serialize)]
struct Updated {
    member: String,
}

impl Report for Updated {
    const KIND: &'static str = "MemberUpdated";

    fn table(&self) -> String {
        format!("member {} is recorded\n", self.member)
    }
}

impl Verb for UpdateArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: client_plan };

    /// Records it. May be repeated.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let request = v1::UpdateMemberRequest {
            name: self.name.clone(),
            peer_addr: self.peer_addr.map(|addr| addr.to_string()).unwrap_or_default(),
            client_addr: self.client_addr.map(|addr| addr.to_string()).unwrap_or_default(),
            zone: self.zone,
        };
        client
            .with_leader("update member", |channel| {
                let request = request.clone();
                async move { services::members(channel).update_member(request).await }
            })
            .await?;
        output::emit(globals.format, &Updated { member: self.name })
    }
}

impl Planned for UpdateArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let list = list::fetch(&reader.client).await?;
        let member = find(&list.members, &self.name)?;
        let now = format!(
            "peer {}, client {}, zone {:?}",
            member.peer_addr, member.client_addr, member.zone
        );
        Ok(Plan::new(format!("record another address or zone of {}", self.name), now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Updated { member: "c4".into() };
        crate::golden::report("member-update.txt", &report);
    }
}
