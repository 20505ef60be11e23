//! `rolloutctl member add NAME`: a new member, first without a vote.

use std::time::Duration;

use rollout_proto::{HostPort, services, v1};

use super::joining::{self, Joined};
use super::list;
use super::plan_checks::find;
use crate::connect::{ConnectArgs, parse_duration};
use crate::output::{self, Format};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Plan, Planned, Reader, client_plan};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Where a new member is.
#[derive(Debug, clap::Args)]
pub(crate) struct NewMember {
    /// Where the other members reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub(in crate::rolloutctl) peer_addr: HostPort,
    /// Where workers, clients and operators reach it
    #[arg(long, value_name = "HOST:PORT")]
    pub(in crate::rolloutctl) client_addr: HostPort,
    /// Its failure domain
    #[arg(long, value_name = "ZONE", default_value = "")]
    zone: String,
    /// Return as soon as the member is listed; it joins in the background
    #[arg(long)]
    no_wait: bool,
    /// Stop waiting after this time, with exit status 3; the member still joins in the background
    /// [default: no limit]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wait_limit: Option<Duration>,
}

/// Which member joins.
#[derive(Debug, clap::Args)]
pub(crate) struct AddArgs {
    /// Name in the member's own configuration. Start the member first, with an empty data
    /// directory; it waits
    pub(in crate::rolloutctl) name: String,
    #[command(flatten)]
    pub(in crate::rolloutctl) new: NewMember,
    /// Give it no vote until `rolloutctl member promote`
    #[arg(long)]
    learner_only: bool,
}

/// Adds the member, in the place of another if one is named, and waits for it.
pub(super) async fn add(
    connect: &ConnectArgs,
    format: Format,
    (name, replaces): (String, Option<String>),
    new: NewMember,
    learner_only: bool,
) -> anyhow::Result<()> {
    let client = connect.client(None)?;
    let request = v1::AddMemberRequest {
        name: name.clone(),
        peer_addr: new.peer_addr.to_string(),
        client_addr: new.client_addr.to_string(),
        zone: new.zone,
        replaces: replaces.clone().unwrap_or_default(),
        learner_only,
    };
    let answer = client
        .with_leader("add member", |channel| {
            let request = request.clone();
            async move { services::members(channel).add_member(request).await }
        })
        .await?;
    let state = if new.no_wait {
        "joining"
    } else {
        joining::wait(&client, (&name, answer.id), learner_only, new.wait_limit).await?
    };
    let joined =
        Joined { member: name, id: answer.id.to_string(), replaced: replaces, state: state.into() };
    output::emit(format, &joined)
}

impl Verb for AddArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: false, confirm: false, dry_run: client_plan };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        add(&globals.connect, globals.format, (self.name, None), self.new, self.learner_only).await
    }
}

impl Planned for AddArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let list = list::fetch(&reader.client).await?;
        if find(&list.members, &self.name).is_ok() {
            let text = format!("member {} already exists", self.name);
            return Err(Failure::conflict(text).into());
        }
        let would = format!("add member {} as a learner that catches up", self.name);
        let at = self.new.client_addr.to_string();
        Ok(Plan::new(would, reader.new_member(&self.name, &at).await?))
    }
}
