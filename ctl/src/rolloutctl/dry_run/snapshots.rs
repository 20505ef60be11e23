//! Plans of snapshots: a file to be written, a data directory to be made.
//!
//! Invariant: nothing is written, and an input file is read to its end, as the command itself does.

use std::path::Path;

use super::{Plan, Reader, changes_nothing};
use crate::progress::Progress;
use crate::rolloutctl::Failure;
use crate::rolloutctl::cli::SnapshotVerb;
use crate::rolloutctl::snapshot::restore::RestoreArgs;
use crate::rolloutctl::snapshot::save::SaveArgs;
use crate::rolloutctl::snapshot::shown::Shown;
use crate::rolloutctl::status;
use crate::say;

impl Reader {
    pub(super) async fn snapshot(&self, verb: SnapshotVerb) -> anyhow::Result<Plan> {
        match verb {
            SnapshotVerb::Save(args) => self.save(&args).await,
            SnapshotVerb::Restore(_) | SnapshotVerb::Verify(_) => Err(changes_nothing()),
        }
    }

    async fn save(&self, args: &SaveArgs) -> anyhow::Result<Plan> {
        let file = args.file.display();
        let there = args.file.exists();
        if there && !args.overwrite {
            let text = format!("{file} exists; name another file, or give --overwrite");
            return Err(Failure::conflict(text).into());
        }
        let file_now = if there { "is there, and would be replaced" } else { "is not there" };
        if let Some(dir) = &args.from_dir {
            let would = format!("save what the member of {} has to {file}", dir.display());
            let dir_now = if dir.is_dir() { "is a directory" } else { "is no directory" };
            return Ok(Plan::new(would, format!("{} {dir_now}; {file} {file_now}", dir.display())));
        }
        let survey = status::survey(&self.client).await;
        let Some(leader) = survey.leader else {
            let text = format!(
                "there is no leader, and only a leader saves: {}",
                survey.unknown.join("; ")
            );
            return Err(Failure::unavailable(text).into());
        };
        let would = format!("save the ledger of the cluster to {file}");
        Ok(Plan::new(would, format!("{leader} leads; {file} {file_now}")))
    }
}

/// Needs no cluster. Exit code 6 if the directory is in use, like that of the restore.
pub(super) fn restore(args: &RestoreArgs) -> anyhow::Result<Plan> {
    let shown = Shown::read(&args.file, &args.file, &Progress::new(say::is_quiet()))?;
    let dir = args.data_dir.display();
    if !is_empty(&args.data_dir)? {
        let text = format!("{dir} is not empty: a member is restored into a directory that is");
        return Err(Failure::refused(text).into());
    }
    let would = format!("make {dir} that of member {} of a new cluster", args.member);
    let now = format!(
        "{} is whole: cluster {} at index {}; {dir} is empty",
        args.file.display(),
        shown.cluster_id,
        shown.index
    );
    Ok(Plan::new(would, now))
}

/// Whether a directory is missing or empty.
fn is_empty(dir: &Path) -> std::io::Result<bool> {
    match std::fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(true),
        Err(error) => Err(error),
    }
}
