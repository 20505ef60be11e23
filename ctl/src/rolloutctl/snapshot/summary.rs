//! A snapshot file, human-readable and for programs.
//!
//! Invariant: what is shown was checked against the file's digest.

use std::path::Path;

use rollout_proto::{ClientError, ErrorCode, RpcError};
use rollout_storage::{SnapshotFileError, SnapshotFileReader, SnapshotProblem};
use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::output::{Report, bytes, count, hex, u64_string};
use crate::progress::Progress;

/// A whole file.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotFile {
    file: String,
    pub(crate) cluster_id: String,
    member: String,
    #[serde(serialize_with = "u64_string")]
    pub(crate) index: u64,
    #[serde(serialize_with = "u64_string")]
    term: u64,
    taken_at: Option<String>,
    cluster_version: u32,
    program: String,
    /// True if it was made from one member's directory, without a majority.
    salvaged: bool,
    members: Vec<Member>,
    #[serde(serialize_with = "u64_string")]
    records: u64,
    #[serde(serialize_with = "u64_string")]
    bytes: u64,
    digest: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Member {
    name: String,
    peer_addr: String,
    client_addr: String,
    zone: String,
}

impl SnapshotFile {
    /// Reads the whole file. `name` is its name in the report.
    pub(crate) fn read(path: &Path, name: &Path, progress: &Progress) -> anyhow::Result<Self> {
        Ok(Self::check(path, name, progress).map_err(unusable)?)
    }

    /// As [`read`](Self::read), for callers that need the fault of the file.
    pub(super) fn check(
        path: &Path,
        name: &Path,
        progress: &Progress,
    ) -> Result<Self, SnapshotFileError> {
        let mut reader = SnapshotFileReader::open(path)?;
        let total = std::fs::metadata(path).map_or(0, |meta| meta.len());
        while let Some(record) = reader.next() {
            record?;
            progress.reading_file(reader.bytes_read(), total);
        }
        progress.finish();
        let Some(summary) = reader.summary() else {
            let problem =
                SnapshotProblem::Truncated { bytes: reader.bytes_read(), what: "its records" };
            return Err(SnapshotFileError { path: path.to_owned(), problem });
        };
        let header = reader.header().clone();
        let taken = i128::from(header.taken_unix_ms) * 1_000_000;
        let taken = OffsetDateTime::from_unix_timestamp_nanos(taken).ok();
        let members = header.members.into_iter().map(|member| Member {
            name: member.name,
            peer_addr: member.peer_addr,
            client_addr: member.client_addr,
            zone: member.zone,
        });
        Ok(Self {
            file: name.display().to_string(),
            cluster_id: header.cluster_id,
            member: header.member,
            index: header.index,
            term: header.term,
            taken_at: taken.and_then(|at| at.format(&Rfc3339).ok()),
            cluster_version: header.cluster_version,
            program: header.program,
            salvaged: header.salvaged,
            members: members.collect(),
            records: summary.records,
            bytes: summary.bytes,
            digest: hex(&summary.digest),
        })
    }
}

/// An unusable file's error, with the code that explains it.
pub(super) fn unusable(error: SnapshotFileError) -> ClientError {
    RpcError::new(ErrorCode::SnapshotUnusable, error.to_string()).into()
}

impl Report for SnapshotFile {
    const KIND: &'static str = "Snapshot";

    fn table(&self) -> String {
        let names: Vec<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
        let taken = self.taken_at.as_deref().unwrap_or("-");
        let mut text = format!(
            "{}: complete\nCluster  {}\nIndex    {} (term {})\nTaken    {taken} at {}\nMembers  {}\nSize     {}, {} records\n\
             Digest   {}\n",
            self.file,
            self.cluster_id,
            self.index,
            self.term,
            self.member,
            names.join(", "),
            bytes(self.bytes),
            count(self.records),
            self.digest,
        );
        if self.salvaged {
            text += "Warning  salvaged from one member without a majority: acknowledged work may be missing\n";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let member = Member {
            name: "c1".into(),
            peer_addr: "c1:7421".into(),
            client_addr: "c1:7420".into(),
            zone: "eu-1a".into(),
        };
        let report = SnapshotFile {
            file: "backup.snap".into(),
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            member: "c1".into(),
            index: 5_000,
            term: 3,
            taken_at: Some("2026-11-22T00:00:00Z".into()),
            cluster_version: 1,
            program: "0.1.0".into(),
            salvaged: true,
            members: vec![member],
            records: 1_200,
            bytes: 5 << 20,
            digest: "aa".repeat(32),
        };
        crate::golden::report("snapshot-verify.txt", &report);
    }
}
