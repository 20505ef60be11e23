//! `rolloutctl status`: asks every member at once, whatever the cluster's state.
//!
//! Invariant: it works without a quorum and without a leader. A member that does not answer is a line of the table
//! that names the phase that failed. What only a leader knows comes from the member with the highest term that calls
//! itself leader. A member whose connection ends because of its certificate or the client's is shown as distrusted,
//! not unreachable. A voter that waits with an empty disk counts as one that does not answer. So does a voter in whose
//! place another member of its name answers, which has no vote yet.
//! Absent: a stored answer.

pub(in crate::rolloutctl) mod alarms;
mod ask;
pub(in crate::rolloutctl) mod certificate_alarms;
pub(in crate::rolloutctl) mod distrust;
pub(in crate::rolloutctl) mod fix;
mod merge;
mod table;
#[cfg(test)]
mod tests;

use rollout_batch::hint::namespace_flag;
use rollout_proto::v1;
use serde::Serialize;

pub use self::alarms::Alarm;
pub use self::ask::survey;
pub(in crate::rolloutctl) use self::ask::{MemberAnswer, ask_each, ask_one};
pub(in crate::rolloutctl) use self::merge::merge;
use super::Failure;
use super::remaining_validity::RemainingValidity;
use crate::output::{self, counted, u64_string};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// The members' combined view of the cluster.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Survey {
    /// 32 hex digits; `None` while no member belongs to a cluster.
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
    /// The number of voters.
    pub voters: u32,
    /// One line per member, by name.
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
    /// Runs with pending rows, none of which can be granted now: the first of those that the certificate may see.
    pub stuck_runs: Vec<StuckRun>,
    /// The number of further ones.
    pub stuck_runs_more: u32,
    /// What is unknown now, and why.
    pub unknown: Vec<String>,
    /// The problems that the members report, each with its fix.
    pub alarms: Vec<Alarm>,
    /// The time of the survey, RFC 3339.
    pub as_of: String,
}

/// A run that makes no progress.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StuckRun {
    pub namespace: String,
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether it is paused because a slot is to blame and the leader may cordon no more slots of its model.
    pub at_cordon_limit: bool,
    /// Why it makes no progress.
    pub why: String,
    /// Rows that wait.
    #[serde(serialize_with = "u64_string")]
    pub pending: u64,
}

impl StuckRun {
    /// The run's name in commands.
    pub(in crate::rolloutctl) fn display_name(&self) -> String {
        format!("{}{}", self.name, namespace_flag(&self.namespace))
    }

    /// What to do if it is paused at the limit of cordons.
    pub(in crate::rolloutctl) fn fix_at_cordon_limit(&self) -> String {
        format!(
            "repair or cordon the slot that the reason names, then: rolloutctl run resume {}",
            self.display_name()
        )
    }

    /// The problem in words.
    pub(in crate::rolloutctl) fn problem(&self) -> String {
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

/// A member's own report, or why it gave none.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberLine {
    /// Its name; the endpoint if the name is unknown.
    pub name: String,
    /// The address that was asked.
    pub address: String,
    /// Whether it has a vote; `None` if no member that answered lists it.
    pub voter: Option<bool>,
    /// Why it did not answer; `None` if it did.
    pub problem: Option<String>,
    /// Whether it did not answer because one side does not trust the other's certificate, or has none.
    pub distrusted: bool,
    /// Whether it refuses the caller's certificate as revoked.
    #[serde(skip)]
    pub revoked: bool,
    /// Whether it speaks TLS and the caller does not.
    #[serde(skip)]
    pub wants_tls: bool,
    #[serde(rename = "says")]
    pub report: Option<MemberReport>,
    /// Whether another member of that name is the voter, which does not answer and which this one replaces.
    #[serde(skip)]
    pub is_replacement: bool,
    /// The cluster's record of it; `None` if no member that answered lists it.
    #[serde(skip)]
    pub info: Option<v1::MemberInfo>,
    /// Whether it answers neither here nor any other member, which is known for about the last minute.
    #[serde(skip)]
    pub silent_to_all: bool,
}

/// A member's report of itself.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct MemberReport {
    /// Its ID; 0 for one that belongs to no cluster.
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
    #[serde(serialize_with = "u64_string")]
    pub resident_bytes: u64,
    /// Seconds since its start.
    pub uptime_seconds: f64,
    /// Seconds until its certificate expires; `None` without TLS.
    pub cert_seconds: Option<i64>,
    /// Seconds until it counts as about to expire, which is an alarm; negative afterward.
    pub cert_renewal_seconds: Option<i64>,
    /// Seconds until its intermediate CA's certificate expires; `None` if it does not issue certificates, or does not
    /// report it.
    pub issuer_seconds: Option<i64>,
    /// Seconds until that counts as about to expire, which is an alarm; negative afterward.
    pub issuer_renewal_seconds: Option<i64>,
    /// Why it does not use its changed certificate files; `None` if it uses the present ones.
    pub cert_refused: Option<String>,
    /// Program version.
    pub version: String,
    /// Free bytes on its data disk; `None` if it does not report them.
    pub disk_free_bytes: Option<String>,
    /// `enough`, `low` or `full`; empty if it does not report it.
    pub disk_room: String,
    /// Whether it reaches a majority, as far as it knows.
    pub has_quorum: bool,
}

/// The role of a member that is a voter by name but has an empty disk: it has forgotten its votes, so it has no vote
/// any more.
pub(in crate::rolloutctl) const AWAITING_REPLACE: &str = "awaiting-replace";
/// The health of a cluster in which no member answers, some of them only because of certificates; or in which a member
/// reports that the caller's certificate is revoked, whatever the others report.
pub(in crate::rolloutctl) const DISTRUSTED: &str = "distrusted";

impl MemberLine {
    /// Why it does not answer, and whether any other member has heard of it.
    pub(in crate::rolloutctl) fn silence(&self) -> String {
        let why = self.problem.as_deref().unwrap_or("it says nothing");
        match self.silent_to_all {
            true => format!("{why}; no member has heard of it for a minute"),
            false => why.to_owned(),
        }
    }
}

impl MemberReport {
    /// The remaining validity of its own certificate; none without TLS.
    pub(in crate::rolloutctl) fn cert(&self) -> Option<RemainingValidity> {
        let renewal_seconds = self.cert_renewal_seconds?;
        Some(RemainingValidity { seconds: self.cert_seconds?, renewal_seconds })
    }

    /// The remaining validity of its intermediate CA's certificate; none if it has none.
    pub(in crate::rolloutctl) fn issuer(&self) -> Option<RemainingValidity> {
        let renewal_seconds = self.issuer_renewal_seconds?;
        Some(RemainingValidity { seconds: self.issuer_seconds?, renewal_seconds })
    }

    /// Whether it still has its Raft state and acts on it: a member that waits, or has stopped, has no vote.
    pub(in crate::rolloutctl) fn takes_part(&self) -> bool {
        !matches!(self.role.as_str(), "waiting" | "stopped" | AWAITING_REPLACE)
    }
}

impl Survey {
    /// Whether the member of that name answers and takes part; if the name is a voter's, that voter itself.
    pub(in crate::rolloutctl) fn takes_part(&self, name: &str) -> bool {
        let takes_part =
            |member: &MemberLine| member.report.as_ref().is_some_and(MemberReport::takes_part);
        self.members
            .iter()
            .any(|member| member.name == name && takes_part(member) && !member.is_replacement)
    }

    /// The failure of a command that needs a leader; `None` if there is one and the caller's certificate is not
    /// revoked.
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
        let mut lines: Vec<String> = self
            .members
            .iter()
            .map(|member| match (&member.problem, &member.report) {
                (Some(problem), _) if member.distrusted => {
                    format!("{} is distrusted: {problem}", member.name)
                }
                (Some(problem), _) => format!("{} is unreachable: {problem}", member.name),
                (None, Some(report)) => format!("{} says {}", member.name, report.role),
                (None, None) => format!("{} says nothing", member.name),
            })
            .collect();
        let leader = self.leader.as_deref().unwrap_or("no member");
        let workers = counted(self.workers_ready.into(), "worker");
        lines.push(format!("{leader} leads; {workers} ready"));
        lines.join("; ")
    }
}

/// No arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct StatusArgs {}

impl Verb for StatusArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints the survey. Exit status 3 if no leader serves, 7 if no member is trusted, or trusts the caller, or one
    /// reports that the caller's certificate is revoked.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let survey = survey(&client).await;
        output::emit(globals.format, &survey)?;
        survey.leaderless().map_or(Ok(()), |failure| Err(failure.into()))
    }
}
