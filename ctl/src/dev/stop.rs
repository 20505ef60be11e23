//! `rollout dev stop`: stops a development cluster, whichever process started it.
//!
//! Invariant: a PID is signaled only while the directory's lock proves that it is still the PID of the `rollout dev`
//! that wrote it.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::layout::Layout;
use super::pids::{DirLock, Pids};
use crate::stdio::to_stderr;

const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// Stops the cluster, and waits until it is gone. If none is running, that is not an error.
///
/// # Errors
/// It does not end within a minute.
pub(super) async fn run(dir: &Path) -> anyhow::Result<()> {
    let layout = Layout::existing(dir)
        .with_context(|| format!("there is no cluster in {}", dir.display()))?;
    if DirLock::try_take(&layout)?.is_some() {
        to_stderr(&format!("no cluster runs in {}\n", layout.root().display()));
        return Ok(());
    }
    let pid = Pids::load(&layout)?.map_or(0, |pids| pids.dev);
    if pid == 0 {
        bail!("a cluster starts in {}, try again", layout.root().display());
    }
    // SAFETY: kill has no memory effects; the lock is held, so the PID still belongs to the holder.
    unsafe {
        libc::kill(pid.cast_signed(), libc::SIGTERM);
    }
    let deadline = Instant::now() + PATIENCE;
    while DirLock::try_take(&layout)?.is_none() {
        if Instant::now() >= deadline {
            bail!("pid {pid} did not end within {PATIENCE:?}");
        }
        tokio::time::sleep(PAUSE).await;
    }
    to_stderr("stopped\n");
    Ok(())
}
