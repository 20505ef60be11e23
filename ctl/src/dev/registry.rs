//! The directories that have a development cluster, and `rollout dev list`, which shows them.
//!
//! Invariant: one file for each directory, written as a whole, so clusters that start at once do not lose each other.
//! The list is only a convenience: a start that cannot write it continues, and a directory that is gone is forgotten.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::layout::Layout;
use super::pids::{DirLock, Pids};
use super::saved_settings::{Saved, write_atomically};
use crate::output::{Table, write_stdout};

/// The maximum number of listed directories.
const KNOWN_MAX: usize = 1_000;

/// The directory of the records; `None` if the environment has no home directory.
fn records() -> Option<PathBuf> {
    let state = match std::env::var_os("XDG_STATE_HOME") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        _ => Path::new(&std::env::var_os("HOME")?).join(".local/state"),
    };
    Some(state.join("rollout/dev"))
}

/// Records the directory of a starting cluster.
pub(super) fn remember(layout: &Layout) {
    if let Some(records) = records()
        && let Err(error) = remember_in(&records, layout)
    {
        tracing::debug!(%error, "cannot record the directory for `rollout dev list`");
    }
}

fn remember_in(records: &Path, layout: &Layout) -> anyhow::Result<()> {
    let root = layout.root().to_string_lossy();
    let name = blake3::hash(root.as_bytes()).to_hex();
    std::fs::create_dir_all(records)?;
    write_atomically(&records.join(format!("{}.txt", &name[..16])), root.as_bytes())
}

/// The recorded directories that still have a cluster, in order. Removes the other records.
fn remembered(records: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut roots = BTreeSet::new();
    let entries = match std::fs::read_dir(records) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(roots),
        Err(error) => return Err(error),
    };
    for entry in entries.take(KNOWN_MAX) {
        let path = entry?.path();
        if path.extension().is_none_or(|ending| ending != "txt") {
            continue;
        }
        let root = PathBuf::from(std::fs::read_to_string(&path)?);
        if root.join("dev.json").is_file() {
            roots.insert(root);
        } else {
            // Another process may have removed it meanwhile.
            let _ = std::fs::remove_file(&path);
        }
    }
    Ok(roots)
}

/// Prints a table of the recorded clusters and the one in `dir`.
///
/// # Errors
/// The records cannot be read.
pub(super) fn run(dir: &Path) -> anyhow::Result<()> {
    let mut roots = match records() {
        Some(records) => remembered(&records)?,
        None => BTreeSet::new(),
    };
    if dir.join("dev.json").is_file() {
        roots.insert(dir.canonicalize()?);
    }
    write_stdout(&table(&roots))
}

fn table(roots: &BTreeSet<PathBuf>) -> String {
    let mut table = Table::new(&["DIRECTORY", "STATE", "PID", "MEMBERS", "WORKERS"]);
    for root in roots {
        // An unreadable cluster is listed too: it may be the one that the user looks for.
        let cells = described(root)
            .unwrap_or_else(|error| [format!("{error:#}"), "-".into(), "-".into(), "-".into()]);
        let [state, pid, members, workers] = cells;
        table.row([root.display().to_string(), state, pid, members, workers]);
    }
    table.to_string()
}

/// State, pid, members and workers of a cluster.
fn described(root: &Path) -> anyhow::Result<[String; 4]> {
    let layout = Layout::existing(root)?;
    let members = Saved::load(&layout)?.map_or(0, |saved| saved.members.len());
    let runs = DirLock::try_take(&layout)?.is_none();
    let pids = Pids::load(&layout)?.filter(|_| runs).unwrap_or_default();
    let pid = if runs { pids.dev.to_string() } else { "-".into() };
    let workers = pids.workers.len().to_string();
    Ok([pids.state(runs).into(), pid, members.to_string(), workers])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_listed_until_their_directory_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let records = dir.path().join("state/rollout/dev");
        let layouts = ["a", "b"].map(|name| Layout::open(&dir.path().join(name)).unwrap());
        let [a, b] = &layouts;
        assert!(remembered(&records).unwrap().is_empty());
        for layout in [a, b, a] {
            remember_in(&records, layout).unwrap();
        }
        std::fs::write(a.saved(), "no JSON").unwrap();
        assert_eq!(remembered(&records).unwrap(), BTreeSet::from([a.root().to_path_buf()]));
        assert_eq!(std::fs::read_dir(&records).unwrap().count(), 1, "b is forgotten");
        let shown = table(&remembered(&records).unwrap());
        assert_eq!(shown.lines().count(), 2, "{shown}");
        assert!(shown.contains("is not a valid description of a cluster"), "{shown}");
    }
}
