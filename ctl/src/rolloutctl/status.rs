//! `rolloutctl status`: asks every member at once, whatever the cluster's state.
//!
//! Invariant: it works without a quorum and without a leader. A member that does not answer is a line of the table
//! that names the phase that failed. What only a leader knows comes from the member with the highest term that calls
//! itself leader. A member whose connection ends because of its certificate or the client's is shown as distrusted,
//! not unreachable. A voter that waits with an empty disk counts as one that does not answer. So does a voter in whose
//! place another member of its name answers, which has no vote yet.
//! Deliberately absent: a stored answer.

mod ask;
pub(in crate::rolloutctl) mod distrust;
pub(in crate::rolloutctl) mod fix;
mod merge;
mod table;
#[cfg(test)]
mod tests;

use rollout_proto::v1;
use serde::Serialize;

pub use self::ask::survey;
pub(in crate::rolloutctl) use self::ask::{Answer, ask_each, ask_one};
pub(in crate::rolloutctl) use self::merge::merge;
use super::Failure;
use super::alarm::seen::Alarm;
use super::cert::left::Left;
use crate::connect::ConnectArgs;
use crate::hint::namespace_flag;
use crate::output::{self, Format, counted, u64_string};

/// What all members together say of the cluster.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// 32 hex digits; `None` while no member knows of a cluster.
    pub cluster_id: Option<String>,
    /// `healthy`, `degraded`, `no leader`, `not formed`, `unreachable` or [`DISTRUSTED`].
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
    /// Runs with rows to give, none of which can be given now: the first of those that the certificate may see.
    pub stuck_runs: Vec<StuckRun>,
    /// How many more of them there are.
    pub stuck_runs_more: u32,
    /// What cannot be said now, and why.
    pub unknown: Vec<String>,
    /// What is wrong by what the members say, and what mends it.
    pub alarms: Vec<Alarm>,
    /// When this was asked, RFC 3339.
    pub as_of: String,
}

/// A run that cannot move.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StuckRun {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether it is paused because a slot is to blame and the leader may cordon no more slots of its model.
    pub at_cordon_limit: bool,
    /// Why it does not move.
    pub why: String,
    /// Rows that wait.
    #[serde(serialize_with = "u64_string")]
    pub pending: u64,
}

impl StuckRun {
    /// The run as commands name it.
    pub(in crate::rolloutctl) fn shown(&self) -> String {
        format!("{}{}", self.name, namespace_flag(&self.namespace))
    }

    /// What to do where it is paused at the limit of cordons.
    pub(in crate::rolloutctl) fn fix_at_cordon_limit(&self) -> String {
        format!(
            "repair or cordon the slot that the reason names, then: rolloutctl run resume {}",
            self.shown()
        )
    }

    /// What is seen, in words.
    pub(in crate::rolloutctl) fn told(&self) -> String {
        let rows = counted(self.pending, "row");
        match (self.paused, self.why.is_empty()) {
            (true, true) => format!("{rows} wait: it is paused"),
            (true, false) => format!("{rows} wait: it is paused: {}", self.why),
            (false, _) => format!("{rows} wait: {}", self.why),
        }
    }
}

impl From<v1::StuckRun> for StuckRun {
    fn from(wire: v1::StuckRun) -> Self {
        let v1::StuckRun { namespace, name, paused, why, pending, at_cordon_limit } = wire;
        Self { namespace, name, paused, at_cordon_limit, why, pending }
    }
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
    /// Whether it did not answer because one of the two sides does not trust the other's certificate, or has none.
    pub distrusted: bool,
    /// Whether it refuses the caller's certificate because that is revoked.
    #[serde(skip)]
    pub revoked: bool,
    /// Whether it speaks TLS and the caller does not.
    #[serde(skip)]
    pub wants_tls: bool,
    /// What it said.
    pub says: Option<MemberSays>,
    /// Whether the voter of that name is another, which does not answer, and whose place this one takes.
    #[serde(skip)]
    pub stands_in: bool,
    /// What the cluster has on record of it; `None` where nobody who answered lists it.
    #[serde(skip)]
    pub known: Option<v1::MemberInfo>,
    /// Whether it answers neither here nor any other member, by what those have heard for about a minute.
    #[serde(skip)]
    pub silent_to_all: bool,
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
/// The health of a cluster of which nobody answers, and some do so for the certificates alone; or of which a member says
/// that the caller's certificate is revoked, whatever the others say.
pub(in crate::rolloutctl) const DISTRUSTED: &str = "distrusted";

impl MemberLine {
    /// Why it does not answer, and whether anybody else has heard of it.
    pub(in crate::rolloutctl) fn silence(&self) -> String {
        let why = self.problem.as_deref().unwrap_or("it says nothing");
        match self.silent_to_all {
            true => format!("{why}; no member has heard of it for a minute"),
            false => why.to_owned(),
        }
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

    /// How a command ends that needs a leader; `None` where there is one, and the caller's certificate is not revoked.
    pub(in crate::rolloutctl) fn leaderless(&self) -> Option<Failure> {
        let why = match self.health {
            DISTRUSTED => return Some(Failure::distrusted(distrust::summary(self))),
            _ if self.leader.is_some() => return None,
            "unreachable" => "no member can be reached",
            "not formed" => {
                "the cluster was not formed yet; see: rolloutctl cluster bootstrap --help"
            }
            _ => "no leader reaches a majority now",
        };
        Some(Failure::unavailable(why))
    }

    /// What is wrong, in one sentence.
    pub fn problems(&self) -> String {
        let mut said: Vec<String> = self
            .members
            .iter()
            .map(|member| match (&member.problem, &member.says) {
                (Some(problem), _) if member.distrusted => {
                    format!("{} is distrusted: {problem}", member.name)
                }
                (Some(problem), _) => format!("{} is unreachable: {problem}", member.name),
                (None, Some(says)) => format!("{} says {}", member.name, says.role),
                (None, None) => format!("{} says nothing", member.name),
            })
            .collect();
        let leader = self.leader.as_deref().unwrap_or("no member");
        let workers = counted(self.workers_ready.into(), "worker");
        said.push(format!("{leader} leads; {workers} ready"));
        said.join("; ")
    }
}

/// Prints the survey. Exit code 3 where no leader serves, 7 where no member is trusted, or trusts the caller, or one says
/// that the caller's certificate is revoked.
pub(crate) async fn run(connect: &ConnectArgs, format: Format) -> anyhow::Result<()> {
    let client = connect.client(None)?;
    let survey = survey(&client).await;
    output::emit(format, &survey)?;
    survey.leaderless().map_or(Ok(()), |failure| Err(failure.into()))
}
