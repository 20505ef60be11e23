//! `rolloutctl snapshot restore FILE --data-dir DIR --member NAME`: the data directory of a member of a new cluster.
//!
//! Invariant: run on each member's host with the same file, members and token, it makes members of one cluster with
//! one state; if any of these differs, it makes members of another cluster. Absent: any contact with a
//! running cluster.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::coordinator;
use super::summary::SnapshotFile;
use crate::connect::ConnectArgs;
use crate::output::{self, Report};
use crate::progress::Progress;
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{Plan, PlannedHere, planned_here};
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio;

/// Which member, where, of what.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The new cluster has an id of its own: sessions, leases and epochs of the old one are void. Rows that ran are pending again, \
and everything after the snapshot is lost. Stop the old cluster and wipe what is left of it first: two clusters that share \
an object store delete each other's results.")]
pub(crate) struct RestoreArgs {
    /// The snapshot file
    pub(in crate::rolloutctl) file: PathBuf,
    /// The new member's data directory: missing, or empty
    #[arg(long, value_name = "DIR")]
    pub(in crate::rolloutctl) data_dir: PathBuf,
    /// The new member's name
    #[arg(long, value_name = "NAME")]
    pub(in crate::rolloutctl) member: String,
    /// A member of the new cluster; name all of them [default: the members of the snapshot]
    #[arg(long = "cluster-member", value_name = rollout_proto::MEMBER_ADDRESS_SHAPE)]
    members: Vec<String>,
    /// Any text: the same for all members of the new cluster, and a new one for each restore
    #[arg(long, value_name = "TEXT")]
    token: String,
}

/// The output of `rollout-coordinator snapshot restore --json`.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Restored {
    cluster_id: String,
    member: String,
    members: Vec<String>,
    from_cluster: String,
    index: String,
    salvaged: bool,
    digest: String,
}

impl Report for Restored {
    const KIND: &'static str = "SnapshotRestored";

    fn table(&self) -> String {
        let warning = match self.salvaged {
            true => "Warning  the snapshot was salvaged: acknowledged work may be missing\n",
            false => "",
        };
        format!(
            "member {} is restored\nCluster  {} (new)\nFrom     {} at index {}\nMembers  {}\n{warning}Next     restore the \
             other members with the same file, members and token; the cluster id must be the same; start them all\n",
            self.member,
            self.cluster_id,
            self.from_cluster,
            self.index,
            self.members.join(", "),
        )
    }
}

impl Verb for RestoreArgs {
    const KIND: Kind<Self> =
        Kind::Change { numbered: false, confirm: false, dry_run: planned_here };

    /// Makes the directory and prints its cluster.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let text = |text: &'static str| OsStr::new(text);
        let mut words = coordinator::arguments(&[text("restore"), self.file.as_os_str()]);
        let named = [
            ("--data-dir", self.data_dir.as_os_str()),
            ("--member", OsStr::new(&self.member)),
            ("--token", OsStr::new(&self.token)),
        ];
        let members = self.members.iter().map(|member| ("--cluster-member", OsStr::new(member)));
        for (flag, value) in named.into_iter().chain(members) {
            let mut word = std::ffi::OsString::from(flag);
            word.push("=");
            word.push(value);
            words.push(word);
        }
        words.push("--json".into());
        let printed = coordinator::run(&words)?;
        let restored: Restored =
            serde_json::from_str(&printed).context("rollout-coordinator is of another version")?;
        output::emit(globals.format, &restored)
    }
}

impl PlannedHere for RestoreArgs {
    /// Exit status 6 if the directory is in use, like that of the restore.
    fn plan(self, _connect: &ConnectArgs) -> anyhow::Result<Plan> {
        let shown = SnapshotFile::read(
            &self.file,
            &self.file,
            &Progress::new(stdio::are_notes_suppressed()),
        )?;
        let dir = self.data_dir.display();
        if !is_empty(&self.data_dir)? {
            let text = format!("{dir} is not empty: restore into an empty directory");
            return Err(Failure::refused(text).into());
        }
        let would = format!(
            "create the data directory of member {} in {dir}, for a new cluster",
            self.member
        );
        let now = format!(
            "{} is complete: cluster {} at index {}; {dir} is empty",
            self.file.display(),
            shown.cluster_id,
            shown.index
        );
        Ok(Plan::new(would, now))
    }
}

/// Whether a directory is missing or empty.
fn is_empty(dir: &Path) -> std::io::Result<bool> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Restored {
            cluster_id: "0123456789abcdef0123456789abcdef".into(),
            member: "n1".into(),
            members: ["n1", "n2", "n3"].map(String::from).into(),
            from_cluster: "fedcba9876543210fedcba9876543210".into(),
            index: "5000".into(),
            salvaged: true,
            digest: "aa".repeat(32),
        };
        crate::golden::report("snapshot-restore.txt", &report);
    }
}
