//! `rolloutctl status`: every member asked at once, whatever the cluster's state.
//!
//! Invariant: works without a quorum and without a leader; a member that does not answer is a line
//! of the table that names the phase that failed. What only a leader knows comes from the member
//! with the highest term that calls itself leader. A voter that waits with an empty disk is none: it counts as one that
//! does not answer, and so does one in whose place another member of its name answers, which has no vote yet.
//! Deliberately absent: a stored answer.

mod table;
#[cfg(test)]
mod tests;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rollout_proto::{
    Channel, ChannelOptions, Client, ClientError, ClientTls, ConnectError, Endpoint, MemberRef,
    RpcError, Stamp, channel, services, v1,
};
use serde::Serialize;

use super::Failure;
use super::alarm::seen::{self, Alarm};
use super::cert::left::Left;
use crate::connect::{ConnectArgs, ConnectSettings};
use crate::output::{self, Format, rfc3339, u64_string};

/// What all members together say of the cluster.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// 32 hex digits; `None` while no member knows of a cluster.
    pub cluster_id: Option<String>,
    /// `healthy`, `degraded`, `no leader` or `unreachable`.
    pub health: &'static str,
    /// The leader that has opened dispatch and reaches a majority.
    pub leader: Option<String>,
    /// The fencing number of workers and clients.
    #[serde(serialize_with = "u64_string")]
    pub coord_epoch: u64,
    /// Voters that answered, and take part.
    pub voters_reachable: u32,
    /// Voters there are.
    pub voters: u32,
    /// One line a member, by name.
    pub members: Vec<MemberLine>,
    /// Workers that may take work.
    pub workers_ready: u32,
    /// Workers that are silent.
    pub workers_suspect: u32,
    /// Workers that are leaving.
    pub workers_draining: u32,
    /// Runs that grant rows.
    pub runs_running: u32,
    /// Runs that do not, for now.
    pub runs_paused: u32,
    /// Runs that are finished or cancelled.
    pub runs_ended: u32,
    /// What cannot be said now, and why.
    pub unknown: Vec<String>,
    /// What is wrong by what the members say, and what mends it.
    pub alarms: Vec<Alarm>,
    /// When this was asked, RFC 3339.
    pub as_of: String,
}

/// What one member says of itself, or why it says nothing.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberLine {
    /// Its name; the endpoint where the name is not known.
    pub name: String,
    /// Where it was asked.
    pub address: String,
    /// Whether it has a vote; `None` where nobody who answered lists it.
    pub voter: Option<bool>,
    /// Why it did not answer; `None` where it did.
    pub problem: Option<String>,
    /// What it said.
    pub says: Option<MemberSays>,
    /// Whether the voter of that name is another, which does not answer, and whose place this one takes.
    #[serde(skip)]
    pub stands_in: bool,
}

/// A member's answer.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberSays {
    /// Its id; 0 of one that is part of no cluster.
    #[serde(skip)]
    pub id: u64,
    /// Failure domain.
    pub zone: String,
    /// `leader`, `follower`, `candidate`, `learner`, `stopped`, `waiting`, or [`AWAITING_REPLACE`].
    pub role: String,
    /// Raft term.
    #[serde(serialize_with = "u64_string")]
    pub term: u64,
    /// Highest index applied.
    #[serde(serialize_with = "u64_string")]
    pub applied_index: u64,
    /// Entries behind the most advanced member that answered.
    #[serde(serialize_with = "u64_string")]
    pub behind: u64,
    /// Index of the durable image.
    #[serde(serialize_with = "u64_string")]
    pub image_index: u64,
    /// Bytes of the image on disk.
    #[serde(serialize_with = "u64_string")]
    pub image_bytes: u64,
    /// Bytes of the log on disk.
    #[serde(serialize_with = "u64_string")]
    pub log_bytes: u64,
    /// Resident memory.
    #[serde(serialize_with = "u64_string")]
    pub resident_bytes: u64,
    /// Seconds since its start.
    pub uptime_seconds: f64,
    /// Seconds until its certificate ends; `None` without TLS.
    pub cert_seconds: Option<i64>,
    /// Seconds until it is about to end, and an alarm; negative since it is.
    pub cert_renewal_seconds: Option<i64>,
    /// Seconds until the certificate ends of the key by which it enrols; `None` where it does not, or does not say.
    pub issuer_seconds: Option<i64>,
    /// Seconds until that is about to end, and an alarm; negative since it is.
    pub issuer_renewal_seconds: Option<i64>,
    /// Why it does not take its changed certificate files; `None` where it has no others than it uses.
    pub cert_refused: Option<String>,
    /// Program version.
    pub version: String,
    /// Bytes free where its data is; `None` where it does not say.
    pub disk_free_bytes: Option<String>,
    /// `enough`, `low` or `full`; empty where it does not say.
    pub disk_room: String,
    /// Whether it reaches a majority, as far as it knows.
    pub has_quorum: bool,
}

/// The role of a voter by name whose disk is empty: it has forgotten what it voted for, so it has no vote any more.
pub(in crate::rolloutctl) const AWAITING_REPLACE: &str = "awaiting-replace";
/// The command that gives it its vote back, but for its name.
const REPLACE_WITH: &str = "--peer-addr HOST:PORT --client-addr HOST:PORT";

/// What puts a member in the place of the one of that name, which may be the same one on an empty disk.
pub(in crate::rolloutctl) fn replace_command(name: &str) -> String {
    format!("rolloutctl member replace {name} {REPLACE_WITH}")
}

/// What to do about a member that is lost with its disk. One without a vote is in nobody's place: it leaves, and comes anew.
pub(in crate::rolloutctl) fn lost_command(member: &MemberLine) -> String {
    let name = &member.name;
    match member.voter {
        Some(false) => format!(
            "rolloutctl member remove {name}, for it is a learner; then start one with an empty disk, and: rolloutctl \
             member add {name} {REPLACE_WITH}"
        ),
        _ => replace_command(name),
    }
}

impl MemberSays {
    /// What is left of its own certificate; none without TLS.
    pub(in crate::rolloutctl) fn cert(&self) -> Option<Left> {
        let renewal_seconds = self.cert_renewal_seconds?;
        Some(Left { seconds: self.cert_seconds?, renewal_seconds })
    }

    /// What is left of that of its issuing key; none where it has none.
    pub(in crate::rolloutctl) fn issuer(&self) -> Option<Left> {
        let renewal_seconds = self.issuer_renewal_seconds?;
        Some(Left { seconds: self.issuer_seconds?, renewal_seconds })
    }

    /// Whether it has what it has promised, and keeps it: one that waits, or has stopped, has no vote.
    pub(in crate::rolloutctl) fn takes_part(&self) -> bool {
        !matches!(self.role.as_str(), "waiting" | "stopped" | AWAITING_REPLACE)
    }
}

impl Survey {
    /// Whether the member of that name answers, and takes part: of a voter, that very one.
    pub(in crate::rolloutctl) fn takes_part(&self, name: &str) -> bool {
        let says = |member: &MemberLine| member.says.as_ref().is_some_and(MemberSays::takes_part);
        self.members.iter().any(|member| member.name == name && says(member) && !member.stands_in)
    }

    /// What is wrong, in one sentence.
    pub fn problems(&self) -> String {
        let mut said: Vec<String> = self
            .members
            .iter()
            .map(|member| match (&member.problem, &member.says) {
                (Some(problem), _) => format!("{} is unreachable: {problem}", member.name),
                (None, Some(says)) => format!("{} says {}", member.name, says.role),
                (None, None) => format!("{} says nothing", member.name),
            })
            .collect();
        let leader = self.leader.as_deref().unwrap_or("nobody");
        said.push(format!("{leader} leads; {} workers are ready", self.workers_ready));
        said.join("; ")
    }
}

/// Asks every member.
pub async fn survey(client: &Client) -> Survey {
    merge(ask_each(client).await, SystemTime::now())
}

/// What every member answers, or why it does not.
pub(in crate::rolloutctl) async fn ask_each(client: &Client) -> Vec<Answer> {
    client
        .each_member(|_, channel| async move {
            services::cluster(channel).status(v1::StatusRequest {}).await
        })
        .await
}

/// A member's answer.
pub(in crate::rolloutctl) type Answer = (MemberRef, Result<v1::StatusResponse, ClientError>);

/// How long one address is asked for its state.
const ONE_TIMEOUT: Duration = Duration::from_secs(3);

/// Asks one address, which may be no member of any cluster yet.
///
/// # Errors
/// Why it gave no answer, with the phase of the connection that failed.
pub(in crate::rolloutctl) async fn ask_one(
    settings: &ConnectSettings,
    endpoint: &Endpoint,
) -> Result<v1::StatusResponse, String> {
    let tls = ClientTls::load(&settings.security).map_err(|error| error.to_string())?;
    let channel = channel(endpoint, &tls, &settings.dial_map, &ChannelOptions::default());
    let channel = Channel::new(channel.map_err(|error| error.to_string())?, Stamp::default());
    let mut client = services::cluster(channel);
    match tokio::time::timeout(ONE_TIMEOUT, client.status(v1::StatusRequest {})).await {
        Ok(Ok(answer)) => Ok(answer.into_inner()),
        Ok(Err(status)) => Err(match ConnectError::find(&status) {
            Some(error) => format!("{}: {}", error.phase, error.cause),
            None => RpcError::from_status(&status).to_string(),
        }),
        Err(_) => Err(format!("no answer within {} s", ONE_TIMEOUT.as_secs())),
    }
}

/// Makes one picture of the members' answers.
pub(in crate::rolloutctl) fn merge(answers: Vec<Answer>, now: SystemTime) -> Survey {
    let mut survey = Survey { as_of: rfc3339(now), ..Survey::default() };
    let good = || answers.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let header = |answer: &v1::StatusResponse| answer.header.clone().unwrap_or_default();
    let applied = good()
        .filter_map(|answer| answer.self_.as_ref())
        .map(|own| own.applied_index.max(own.committed_index))
        .max()
        .unwrap_or(0);
    let newest = good().max_by_key(|answer| header(answer).applied_index);
    survey.cluster_id = good().map(|answer| header(answer).cluster_id).find(|id| !id.is_empty());
    survey.coord_epoch = good().map(|answer| header(answer).coord_epoch).max().unwrap_or(0);
    let leading = good()
        .filter(|answer| answer.has_quorum && header(answer).coord_epoch > 0)
        .filter(|answer| answer.self_.as_ref().is_some_and(|own| own.role == "leader"))
        .max_by_key(|answer| answer.self_.as_ref().map_or(0, |own| own.term));
    survey.leader = leading.and_then(|answer| answer.self_.as_ref()).map(|own| own.name.clone());
    if let Some(known) = leading.or(newest) {
        survey.workers_ready = known.workers_ready;
        survey.workers_suspect = known.workers_suspect;
        survey.workers_draining = known.workers_draining;
        survey.runs_running = known.runs_running;
        survey.runs_paused = known.runs_paused;
        survey.runs_ended = known.runs_ended;
    }
    let list = good().filter_map(|answer| header(answer).members).max_by_key(|list| list.version);
    survey.members =
        answers.into_iter().map(|(member, answer)| line(member, answer, applied, now)).collect();
    let votes = |line: &MemberLine| {
        let id = line.says.as_ref().map(|says| says.id);
        list.iter().flat_map(|list| &list.members).any(|m| m.voter && Some(m.id) == id)
    };
    // A member that answers at a seed's address and at its own is one member; of a voter and the one that comes in its place
    // under its name, the voter's answer counts.
    survey.members.sort_by(|a, b| {
        let by_name = a.name.cmp(&b.name).then(a.problem.cmp(&b.problem));
        by_name.then(votes(b).cmp(&votes(a)))
    });
    survey.members.dedup_by(|again, first| again.name == first.name);
    (survey.voters, survey.voters_reachable) = match &list {
        Some(list) => of_voters(&mut survey, list),
        None => {
            let answered = survey.members.iter().filter(|member| member.says.is_some()).count();
            (survey.members.len() as u32, answered as u32)
        }
    };
    survey.health = health(&survey);
    survey.unknown = unknown(&survey);
    survey.alarms = seen::of(&survey);
    survey
}

/// How many voters there are, and how many of them take part; those that wait with an empty disk are told as such. A voter
/// and the learner that comes in its place may have one name: it is the voter's.
fn of_voters(survey: &mut Survey, list: &v1::MemberList) -> (u32, u32) {
    let voters: Vec<(&str, u64)> = list
        .members
        .iter()
        .filter(|member| member.voter)
        .map(|member| (member.name.as_str(), member.id))
        .collect();
    for member in &mut survey.members {
        let is_voter = voters.iter().any(|(name, _)| *name == member.name);
        let another =
            |says: &MemberSays| says.id != 0 && voters.iter().all(|(_, id)| *id != says.id);
        member.stands_in = is_voter && member.says.as_ref().is_some_and(another);
        let is_listed = list.members.iter().any(|listed| listed.name == member.name);
        member.voter = is_listed.then_some(is_voter);
        if let Some(says) = member.says.as_mut().filter(|says| is_voter && says.role == "waiting") {
            says.role = AWAITING_REPLACE.into();
        }
    }
    let answering = voters.iter().filter(|(name, _)| survey.takes_part(name)).count();
    (voters.len() as u32, answering as u32)
}

/// Without a leader, what only a leader knows is not made up.
fn unknown(survey: &Survey) -> Vec<String> {
    let mut unknown = Vec::new();
    if survey.leader.is_none() && survey.cluster_id.is_some() {
        let missing = survey.voters / 2 + 1;
        unknown.push(format!(
            "what happens now: {} of {} voters answer and {missing} are needed to decide anything; workers and runs \
             are as the member knows them that has applied most",
            survey.voters_reachable, survey.voters
        ));
    }
    let silent: Vec<&str> = survey
        .members
        .iter()
        .filter(|member| member.says.is_none())
        .map(|member| member.name.as_str())
        .collect();
    if !silent.is_empty() && survey.cluster_id.is_some() {
        let silent = silent.join(", ");
        unknown.push(format!(
            "how {silent} is: no answer from here, which does not mean that it is down"
        ));
    }
    unknown
}

fn health(survey: &Survey) -> &'static str {
    match (&survey.leader, survey.voters_reachable, survey.cluster_id.is_some()) {
        (_, 0, _) => "unreachable",
        (None, _, false) => "not formed",
        (None, _, true) => "no leader",
        (Some(_), reachable, _) if reachable < survey.voters => "degraded",
        (Some(_), _, _) => "healthy",
    }
}

fn line(
    member: MemberRef,
    answer: Result<v1::StatusResponse, ClientError>,
    applied: u64,
    now: SystemTime,
) -> MemberLine {
    let address = member.addr;
    let named = if member.name.is_empty() { address.clone() } else { member.name };
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            let problem = Some(problem(&error));
            return MemberLine { name: named, address, problem, ..MemberLine::default() };
        }
    };
    let own = answer.self_.unwrap_or_default();
    let now_unix = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let cert = Left::of(own.cert_expires_unix, own.cert_renewal_unix, now_unix);
    let issuer = Left::of(own.issuer_expires_unix, own.issuer_renewal_unix, now_unix);
    let says = MemberSays {
        id: own.id,
        zone: own.zone,
        role: own.role,
        term: own.term,
        applied_index: own.applied_index,
        behind: applied.saturating_sub(own.applied_index),
        image_index: own.image_index,
        image_bytes: own.image_bytes,
        log_bytes: own.log_bytes,
        resident_bytes: own.resident_bytes,
        uptime_seconds: own.uptime_ms as f64 / 1000.0,
        cert_seconds: cert.map(|left| left.seconds),
        cert_renewal_seconds: cert.map(|left| left.renewal_seconds),
        issuer_seconds: issuer.map(|left| left.seconds),
        issuer_renewal_seconds: issuer.map(|left| left.renewal_seconds),
        cert_refused: Some(own.cert_refused).filter(|why| !why.is_empty()),
        version: own.version,
        disk_free_bytes: (own.disk_bytes > 0).then(|| own.disk_free_bytes.to_string()),
        disk_room: own.disk_room,
        has_quorum: answer.has_quorum,
    };
    let name = if own.name.is_empty() { named } else { own.name };
    MemberLine { name, address, says: Some(says), ..MemberLine::default() }
}

/// The phase that failed where a connection did, else the whole error.
fn problem(error: &ClientError) -> String {
    match error {
        ClientError::Connect(error) => format!("{}: {}", error.phase, error.cause),
        ClientError::Timeout { tried, .. } | ClientError::NoLeader { tried, .. } => {
            tried.first().map_or_else(|| error.to_string(), |(_, why)| why.clone())
        }
        other => other.to_string(),
    }
}

/// Prints the survey. Exit code 3 where no leader serves.
pub(crate) async fn run(connect: &ConnectArgs, format: Format) -> anyhow::Result<()> {
    let client = connect.client(None)?;
    let survey = survey(&client).await;
    output::emit(format, &survey)?;
    match survey.leader {
        Some(_) => Ok(()),
        None => Err(Failure::unavailable(match survey.health {
            "unreachable" => "no member can be reached",
            "not formed" => {
                "the cluster was not formed yet; see: rolloutctl cluster bootstrap --help"
            }
            _ => "no leader reaches a majority now",
        })
        .into()),
    }
}
