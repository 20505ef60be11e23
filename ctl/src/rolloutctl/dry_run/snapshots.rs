//! Plans of snapshots: a file to be written, a data directory to be made.
//!
//! Invariant: nothing is written, and an input file is read to its end, as the command itself does.

use std::path::Path;

use super::{Plan, Planned, PlannedHere, Reader};
use crate::connect::ConnectArgs;
use crate::progress::Progress;
use crate::rolloutctl::Failure;
use crate::rolloutctl::snapshot::restore::RestoreArgs;
use crate::rolloutctl::snapshot::save::SaveArgs;
use crate::rolloutctl::snapshot::summary::SnapshotFile;
use crate::rolloutctl::status;
use crate::stdio;

impl Planned for SaveArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let file = self.file.display();
        let there = self.file.exists();
        if there && !self.overwrite {
            let text = format!("{file} exists; name another file, or give --overwrite");
            return Err(Failure::conflict(text).into());
        }
        let file_now = if there { "exists and would be replaced" } else { "does not exist" };
        if let Some(dir) = &self.from_dir {
            let would = format!("save the ledger of the member in {} to {file}", dir.display());
            let dir_now = if dir.is_dir() { "is a directory" } else { "is not a directory" };
            return Ok(Plan::new(would, format!("{} {dir_now}; {file} {file_now}", dir.display())));
        }
        let survey = status::survey(&reader.client).await;
        let Some(leader) = survey.leader else {
            let text = format!(
                "there is no leader, and only a leader saves a snapshot: {}",
                survey.unknown.join("; ")
            );
            return Err(Failure::unavailable(text).into());
        };
        let would = format!("save the ledger of the cluster to {file}");
        Ok(Plan::new(would, format!("{leader} leads; {file} {file_now}")))
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
