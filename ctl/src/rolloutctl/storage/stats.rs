//! `rolloutctl storage stats`: bytes of log and image, member by member.
//!
//! Invariant: it works without a quorum; a member that does not answer has a line that says why.
//! Absent: the object store, which members only name.

use serde::Serialize;

use crate::output::{self, Align, Report, Table, bytes, count, u64_string};
use crate::rolloutctl::Failure;
use crate::rolloutctl::status::{DISTRUSTED, MemberLine, survey};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Stats {
    members: Vec<MemberStats>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MemberStats {
    name: String,
    /// Why it did not answer; `null` if it did.
    problem: Option<String>,
    /// Bytes of the image and its snapshot; shared files count twice.
    #[serde(serialize_with = "u64_string")]
    image_bytes: u64,
    #[serde(serialize_with = "u64_string")]
    log_bytes: u64,
    #[serde(serialize_with = "u64_string")]
    resident_bytes: u64,
    #[serde(serialize_with = "u64_string")]
    applied_index: u64,
    /// Applied entries that are not in the image yet: a restart replays them.
    #[serde(serialize_with = "u64_string")]
    not_imaged: u64,
}

impl From<MemberLine> for MemberStats {
    fn from(line: MemberLine) -> Self {
        let report = line.report.as_ref();
        let of =
            |field: fn(&crate::rolloutctl::status::MemberReport) -> u64| report.map_or(0, field);
        Self {
            image_bytes: of(|report| report.image_bytes),
            log_bytes: of(|report| report.log_bytes),
            resident_bytes: of(|report| report.resident_bytes),
            applied_index: of(|report| report.applied_index),
            not_imaged: of(|report| report.applied_index.saturating_sub(report.image_index)),
            name: line.name,
            problem: line.problem,
        }
    }
}

impl Report for Stats {
    const KIND: &'static str = "StorageStats";

    fn table(&self) -> String {
        let titles = ["MEMBER", "IMAGE", "LOG", "MEMORY", "APPLIED", "NOT IN IMAGE", "PROBLEM"];
        let mut table =
            (1..6).fold(Table::new(&titles), |table, column| table.align(column, Align::Right));
        for member in &self.members {
            let cells = match &member.problem {
                Some(_) => ["-"; 5].map(String::from),
                None => [
                    bytes(member.image_bytes),
                    bytes(member.log_bytes),
                    bytes(member.resident_bytes),
                    member.applied_index.to_string(),
                    count(member.not_imaged),
                ],
            };
            let mut row = vec![member.name.clone()];
            row.extend(cells);
            row.push(member.problem.clone().unwrap_or_default());
            table.row(row);
        }
        table.to_string()
    }
}

/// No arguments.
#[derive(Debug, clap::Args)]
pub(crate) struct StatsArgs {}

impl Verb for StatsArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.client(None)?;
        let survey = survey(&client).await;
        if let Some(failure) = survey.leaderless().filter(|_| survey.health == DISTRUSTED) {
            return Err(failure.into());
        }
        let members: Vec<MemberStats> = survey.members.into_iter().map(MemberStats::from).collect();
        if members.iter().all(|member| member.problem.is_some()) {
            let problems: Vec<String> =
                members.into_iter().filter_map(|member| member.problem).collect();
            return Err(Failure::unavailable(format!(
                "no member answers: {}",
                problems.join("; ")
            ))
            .into());
        }
        output::emit(globals.format, &Stats { members })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_does_not_answer_is_a_line() {
        let member = |name: &str, problem: Option<&str>| MemberStats {
            name: name.into(),
            problem: problem.map(String::from),
            image_bytes: 5 << 20,
            log_bytes: 1 << 30,
            resident_bytes: 300 << 20,
            applied_index: 1200,
            not_imaged: 1100,
        };
        let stats =
            Stats { members: vec![member("c1", None), member("c2", Some("refused at tcp"))] };
        crate::golden::report("storage-stats.txt", &stats);
        assert_eq!(
            stats.table(),
            "MEMBER    IMAGE      LOG   MEMORY  APPLIED  NOT IN IMAGE  PROBLEM\n\
             c1      5.0 MiB  1.0 GiB  300 MiB     1200         1,100\n\
             c2            -        -        -        -             -  refused at tcp\n"
        );
    }
}
