//! `rollout dev --detach`: the same command again in its own session.
//!
//! Invariant: it succeeds only when the cluster is ready, and otherwise shows why not. A cluster that is already
//! running is found and left as it is.
//! Absent: a daemon's double fork; a new session is enough to outlive the terminal.

use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rollout_batch::hint::shell_path;
use rollout_proto::programs;

use super::args::DevArgs;
use super::layout::Layout;
use super::pids::{DirLock, Pids};
use super::saved_settings::Saved;
use super::{process, usage};
use crate::stdio::to_stderr;

const PAUSE: Duration = Duration::from_millis(50);
const LOG_LINES: usize = 30;
/// How long to wait for a cluster that another command starts.
const PATIENCE: Duration = Duration::from_secs(150);

/// Starts the cluster in the background and waits until it is ready.
///
/// # Errors
/// It could not be started; shows the end of its log.
pub(super) async fn run(args: &DevArgs) -> anyhow::Result<()> {
    let layout = Layout::open(&args.dir)
        .with_context(|| format!("cannot use the directory {}", args.dir.display()))?;
    match DirLock::try_take(&layout)? {
        Some(lock) => drop(lock),
        None => return found(&layout, args).await,
    }
    Pids::default().save(&layout)?;
    let log = layout.log("dev");
    let output =
        std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = programs::own()?.command();
    command
        .args(std::env::args_os().skip(1).filter(|argument| argument != "--detach"))
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output);
    // SAFETY: setsid is async-signal-safe, allocates nothing and has no arguments.
    unsafe {
        command.pre_exec(|| match libc::setsid() {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().context("cannot start in the background")?;
    loop {
        if let Some(status) = child.try_wait()? {
            bail!(
                "the cluster did not start ({}); the end of {}:\n{}",
                process::describe_exit(status),
                log.display(),
                process::log_tail(&log, LOG_LINES)
            );
        }
        if Pids::load(&layout)?.is_some_and(|pids| pids.ready && pids.dev == child.id()) {
            break;
        }
        tokio::time::sleep(PAUSE).await;
    }
    to_stderr(&summary(&layout, &format!("ready in the background, pid {}", child.id())));
    Ok(())
}

/// If a cluster is already running in the directory, waits until it is ready.
async fn found(layout: &Layout, args: &DevArgs) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(saved) = Saved::load(layout)? {
            saved.check(layout, args)?;
        }
        if let Some(pids) = Pids::load(layout)?.filter(|pids| pids.ready && lives(pids.dev)) {
            let what = format!(
                "it is already running, pid {}; options of this call do not apply to it",
                pids.dev
            );
            to_stderr(&summary(layout, &what));
            return Ok(());
        }
        if DirLock::try_take(layout)?.is_some() {
            bail!(
                "the cluster in {} ended before it was ready; give the command again",
                layout.root().display()
            );
        }
        if Instant::now() >= deadline {
            bail!(
                "the cluster in {} was not ready within {PATIENCE:?}; look at: rollout dev logs --dir {}",
                layout.root().display(),
                shell_path(layout.root())
            );
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether the process exists: until a start rewrites the file, the PID is of an earlier start.
fn lives(pid: u32) -> bool {
    // SAFETY: signal 0 is never delivered, and kill has no memory effects.
    unsafe { libc::kill(pid.cast_signed(), 0) == 0 }
}

fn summary(layout: &Layout, what: &str) -> String {
    let (commands, python) = (usage::commands(layout), usage::python(layout));
    format!("{what}\n{commands}{python}  {}\n", usage::stop(layout))
}
