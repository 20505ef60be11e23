//! `rolloutctl job rendezvous describe JOB...`: a job's participants, their round, and those that are gone.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::{Rendezvous, table};
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, age, duration, u64_string};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::run_summary::now_wall_ms;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which job.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The job's name, as `torchrun --rdzv-id` gives it, or several
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Participant {
    name: String,
    host: String,
    addr: String,
    local_world_size: u32,
    standing: String,
    /// Of a member.
    rank: Option<u32>,
    #[serde(serialize_with = "u64_string")]
    ticket: u64,
    /// None if no leader answered: only a leader knows.
    pub(in crate::rolloutctl) silent_seconds: Option<f64>,
    keep_alive_seconds: f64,
}

impl From<v1::ParticipantInfo> for Participant {
    fn from(wire: v1::ParticipantInfo) -> Self {
        Self {
            rank: (wire.standing == "member").then_some(wire.rank),
            name: wire.name,
            host: wire.host,
            addr: wire.addr,
            local_world_size: wire.local_world_size,
            standing: wire.standing,
            ticket: wire.ticket,
            silent_seconds: Some(wire.silent_ms as f64 / 1000.0),
            keep_alive_seconds: wire.keep_alive_ms as f64 / 1000.0,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct DepartedParticipant {
    name: String,
    host: String,
    /// `lost`, `left` or `replaced`.
    why: String,
    #[serde(serialize_with = "u64_string")]
    at_wall_ms: u64,
    #[serde(serialize_with = "u64_string")]
    heard_wall_ms: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Description {
    #[serde(flatten)]
    rendezvous: Rendezvous,
    members: Vec<Participant>,
    gone: Vec<DepartedParticipant>,
    #[serde(skip)]
    now_wall_ms: u64,
}

impl Report for Description {
    const KIND: &'static str = "Rendezvous";

    fn table(&self) -> String {
        let text = table(std::slice::from_ref(&self.rendezvous), false).to_string();
        text + &participants(&self.members) + &departures(&self.gone, self.now_wall_ms)
    }
}

/// A table after an empty line; nothing if there are none.
pub(in crate::rolloutctl) fn participants(all: &[Participant]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let titles = ["PARTICIPANT", "STATE", "RANK", "HOST", "ADDRESS", "SILENT", "LIMIT"];
    let mut table = Table::new(&titles).align(2, Align::Right);
    for one in all {
        table.row([
            one.name.clone(),
            one.standing.clone(),
            one.rank.map_or_else(|| "-".into(), |rank| rank.to_string()),
            one.host.clone(),
            one.addr.clone(),
            one.silent_seconds.map_or_else(|| "-".into(), duration),
            duration(one.keep_alive_seconds),
        ]);
    }
    format!("\n{table}")
}

/// The same, of those that are gone.
pub(in crate::rolloutctl) fn departures(all: &[DepartedParticipant], now_wall_ms: u64) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["DEPARTED", "WHY", "HOST", "WHEN", "LAST HEARD"]);
    for one in all {
        table.row([
            one.name.clone(),
            one.why.clone(),
            one.host.clone(),
            age(one.at_wall_ms, now_wall_ms),
            age(one.heard_wall_ms, now_wall_ms),
        ]);
    }
    format!("\n{table}")
}

impl From<v1::GoneInfo> for DepartedParticipant {
    fn from(wire: v1::GoneInfo) -> Self {
        let v1::GoneInfo { name, host, why, at_wall_ms, heard_wall_ms } = wire;
        Self { name, host, why, at_wall_ms, heard_wall_ms }
    }
}

fn description(answer: v1::RendezvousDescribeResponse, now_wall_ms: u64) -> Description {
    Description {
        rendezvous: answer.rendezvous.unwrap_or_default().into(),
        members: answer.participants.into_iter().map(Participant::from).collect(),
        gone: answer.gone.into_iter().map(DepartedParticipant::from).collect(),
        now_wall_ms,
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.jobs, globals.format, None, async |job, format| {
            one(&globals.connect, format, job).await
        })
        .await
    }
}

async fn one(connect: &ConnectArgs, format: Format, job: String) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let job = v1::JobName { namespace: settings.namespace, job };
    let request = v1::RendezvousDescribeRequest { job: Some(job), ..Default::default() };
    let answer = read(&client, "describe rendezvous", &request, |channel, request| async move {
        services::rendezvous(channel).describe(request).await
    })
    .await?;
    output::emit(format, &description(answer, now_wall_ms()))
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn a_description_names_the_members_by_rank_and_who_is_gone() {
        let member = v1::ParticipantInfo {
            name: "node-0".into(),
            host: "h0".into(),
            standing: "member".into(),
            rank: 0,
            keep_alive_ms: 15_000,
            silent_ms: 1200,
            ..v1::ParticipantInfo::default()
        };
        let late = v1::ParticipantInfo {
            name: "node-9".into(),
            standing: "late".into(),
            ..member.clone()
        };
        let gone = v1::GoneInfo {
            name: "node-1".into(),
            host: "h1".into(),
            why: "lost".into(),
            at_wall_ms: 85_000,
            heard_wall_ms: 70_000,
        };
        let answer = v1::RendezvousDescribeResponse {
            header: None,
            rendezvous: Some(sample()),
            participants: vec![member, late],
            gone: vec![gone],
        };
        let report = description(answer, 100_000);
        crate::golden::report("rendezvous-describe.txt", &report);
        let text = report.table();
        assert!(text.contains("node-0       member     0  h0             1.2s    15s\n"), "{text}");
        assert!(text.contains("node-9       late       -"), "{text}");
        assert!(text.contains("node-1    lost  h1    15s ago  30s ago\n"), "{text}");
        let json = output::render(Format::Json, &report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["data"]["round"], "3");
        assert_eq!(value["data"]["members"][0]["rank"], 0);
        assert_eq!(value["data"]["members"][1]["rank"], serde_json::Value::Null);
    }
}
