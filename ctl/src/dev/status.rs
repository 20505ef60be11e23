//! `rollout dev status`: the processes of a development cluster.
//!
//! Invariant: it reports which processes run here, not the cluster's view; that is `rolloutctl status`.

use std::path::Path;

use anyhow::Context as _;

use super::layout::Layout;
use super::pids::{DirLock, Pids};
use super::saved_settings::Saved;
use crate::output::{Table, write_stdout};

/// Prints a table of the processes.
///
/// # Errors
/// The directory has no cluster, or its files cannot be read.
pub(super) fn run(dir: &Path) -> anyhow::Result<()> {
    let layout = Layout::existing(dir)
        .with_context(|| format!("there is no cluster in {}", dir.display()))?;
    let saved = Saved::load(&layout)?
        .with_context(|| format!("there is no cluster in {}", layout.root().display()))?;
    let runs = DirLock::try_take(&layout)?.is_none();
    let pids = Pids::load(&layout)?.filter(|_| runs).unwrap_or_default();
    let state = pids.state(runs);
    let mut table = Table::new(&["PROCESS", "KIND", "PID", "CLIENT ADDRESS"]);
    let pid = |pid: Option<&u32>| pid.map_or("-".to_owned(), u32::to_string);
    for member in &saved.members {
        table.row([
            member.name.clone(),
            "member".into(),
            pid(pids.members.get(&member.name)),
            member.client_addr(),
        ]);
    }
    for (name, number) in &pids.workers {
        table.row([name.clone(), "worker".into(), pid(Some(number)), "-".into()]);
    }
    write_stdout(&format!(
        "{state}  {}\n\n{table}\ncontext  {}\n",
        layout.root().display(),
        layout.context("admin").display()
    ))
}
