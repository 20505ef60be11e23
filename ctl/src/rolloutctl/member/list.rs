//! `rolloutctl member list`: one line per member, with how far it lags.

use rollout_proto::{CallOptions, Client, ClientError, services, v1};
use serde::Serialize;

use crate::output::{self, Align, Report, Table, count, counted};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// The members, as the leader sees them.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct MemberList {
    pub(in crate::rolloutctl) leader: Option<String>,
    pub(in crate::rolloutctl) members: Vec<MemberLine>,
    /// The source of the answer if there is no leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(in crate::rolloutctl) unconfirmed: Option<Unconfirmed>,
}

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct MemberLine {
    pub(in crate::rolloutctl) name: String,
    /// A string, because JSON numbers of many readers hold fewer than 64 bits.
    pub(in crate::rolloutctl) id: String,
    pub(in crate::rolloutctl) peer_addr: String,
    pub(in crate::rolloutctl) client_addr: String,
    pub(in crate::rolloutctl) zone: String,
    /// `leader`, `voter` or `learner`.
    pub(in crate::rolloutctl) role: String,
    /// For a learner: what it becomes, `voter` or `learner`.
    pub(in crate::rolloutctl) becomes: Option<String>,
    /// For a learner: the voter that it replaces.
    pub(in crate::rolloutctl) replaces: Option<String>,
    /// Entries that it lacks; `None` if it has not answered the leader yet.
    pub(in crate::rolloutctl) behind: Option<String>,
}

impl MemberLine {
    fn of(wire: v1::MemberProgress, leader: &str) -> Self {
        let member = wire.member.unwrap_or_default();
        let non_empty = |text: String| Some(text).filter(|text| !text.is_empty());
        let role = match (member.voter, member.name == leader) {
            // A member that replaces the leader may have its name.
            (true, true) => "leader",
            (true, false) => "voter",
            (false, _) => "learner",
        };
        let behind =
            wire.matched_index.map(|at| wire.last_log_index.saturating_sub(at).to_string());
        Self {
            name: member.name,
            id: member.id.to_string(),
            peer_addr: member.peer_addr,
            client_addr: member.client_addr,
            zone: member.zone,
            role: role.to_owned(),
            becomes: non_empty(wire.becomes),
            replaces: non_empty(wire.replaces),
            behind,
        }
    }

    /// Its role, and for a learner what it becomes.
    pub(in crate::rolloutctl) fn standing(&self) -> String {
        match (self.role.as_str(), &self.becomes, &self.replaces) {
            ("learner", Some(becomes), Some(old)) if becomes == "voter" => {
                format!("learner, replaces {old}")
            }
            ("learner", Some(becomes), None) if becomes == "voter" => "learner, joins".to_owned(),
            (role, ..) => role.to_owned(),
        }
    }

    pub(in crate::rolloutctl) fn lacks(&self) -> String {
        let behind = self.behind.as_ref().and_then(|behind| behind.parse().ok());
        behind.map_or_else(|| "?".to_owned(), count)
    }

    /// The same with its noun.
    pub(in crate::rolloutctl) fn lacks_entries(&self) -> String {
        let behind = self.behind.as_ref().and_then(|behind| behind.parse().ok());
        behind.map_or_else(|| "? entries".to_owned(), |behind| counted(behind, "entry"))
    }
}

impl Report for MemberList {
    const KIND: &'static str = "MemberList";

    fn table(&self) -> String {
        self.columns(&[])
    }

    fn wide(&self) -> String {
        self.columns(&["ID"])
    }
}

impl MemberList {
    /// The table, with additional columns; missing cells are omitted.
    fn columns(&self, more: &[&str]) -> String {
        let titles = ["NAME", "ROLE", "BEHIND", "ZONE", "PEER ADDRESS", "CLIENT ADDRESS"];
        let mut table = Table::new(&titles).and(more).align(2, Align::Right);
        for member in &self.members {
            table.row([
                member.name.clone(),
                member.standing(),
                member.lacks(),
                member.zone.clone(),
                member.peer_addr.clone(),
                member.client_addr.clone(),
                member.id.clone(),
            ]);
        }
        table.to_string() + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

/// The list of members from the leader, or from another member.
fn listed(sourced: SourcedAnswer<v1::ListMembersResponse>) -> MemberList {
    let SourcedAnswer { answer, unconfirmed } = sourced;
    let leader = answer.header.unwrap_or_default().members.unwrap_or_default().leader;
    let mut members: Vec<_> =
        answer.members.into_iter().map(|member| MemberLine::of(member, &leader)).collect();
    members.sort_by(|a, b| a.name.cmp(&b.name).then(a.id.cmp(&b.id)));
    MemberList { leader: Some(leader).filter(|name| !name.is_empty()), members, unconfirmed }
}

async fn ask_leader(client: &Client) -> Result<v1::ListMembersResponse, ClientError> {
    client
        .with_leader_opts("list members", CallOptions::read(), |channel| async move {
            services::members(channel).list_members(v1::ListMembersRequest {}).await
        })
        .await
}

/// The members, from the leader.
pub(in crate::rolloutctl) async fn fetch(client: &Client) -> anyhow::Result<MemberList> {
    let answer = ask_leader(client).await?;
    Ok(listed(SourcedAnswer { answer, unconfirmed: None }))
}

/// The members, from the leader; without a leader, from the member that has applied most.
pub(in crate::rolloutctl) async fn ask_any(client: &Client) -> anyhow::Result<MemberList> {
    let led = ask_leader(client).await;
    let sourced = unconfirmed::or_any(client, led, |channel| async move {
        services::members(channel).list_members(v1::ListMembersRequest {}).await
    });
    Ok(listed(sourced.await?))
}

/// Which members.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    options: ListOptions,
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let mut list = ask_any(&client).await?;
        self.options.apply(&mut list.members)?;
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, voter: bool, matched: Option<u64>) -> v1::MemberProgress {
        v1::MemberProgress {
            member: Some(v1::MemberInfo {
                name: name.into(),
                peer_addr: format!("{name}:7421"),
                client_addr: format!("{name}:7420"),
                zone: "eu-1a".into(),
                voter,
                ..v1::MemberInfo::default()
            }),
            matched_index: matched,
            last_log_index: 5_000,
            ..v1::MemberProgress::default()
        }
    }

    #[test]
    fn a_list_says_who_leads_who_lags_and_whose_place_a_learner_takes() {
        let mut joins = member("c4", false, None);
        (joins.becomes, joins.replaces) = ("voter".into(), "c2".into());
        let all = [member("c1", true, Some(5_000)), member("c2", true, Some(3_000)), joins];
        let members = all.into_iter().map(|m| MemberLine::of(m, "c1")).collect();
        let list = MemberList { leader: Some("c1".into()), members, unconfirmed: None };
        crate::golden::report("member-list.txt", &list);
        assert_eq!(
            list.table(),
            "NAME  ROLE                  BEHIND  ZONE   PEER ADDRESS  CLIENT ADDRESS\n\
             c1    leader                     0  eu-1a  c1:7421       c1:7420\n\
             c2    voter                  2,000  eu-1a  c2:7421       c2:7420\n\
             c4    learner, replaces c2       ?  eu-1a  c4:7421       c4:7420\n"
        );
    }

    #[test]
    fn a_replacement_of_the_leader_under_its_name_is_a_learner_until_it_has_its_vote() {
        let mut joins = member("c1", false, Some(4_999));
        (joins.becomes, joins.replaces) = ("voter".into(), "c1".into());
        let roles = [member("c1", true, Some(5_000)), joins].map(|m| MemberLine::of(m, "c1").role);
        assert_eq!(roles, ["leader", "learner"]);
    }
}
