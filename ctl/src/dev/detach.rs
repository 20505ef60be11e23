//! `rollout dev --detach`: the same command again in a session of its own.
//!
//! Invariant: it returns success only when the cluster is ready, and otherwise shows why not.
//! Deliberately absent: a daemon's double fork; a new session is enough to outlive the terminal.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::args::DevArgs;
use super::layout::Layout;
use super::pids::{DirLock, Pids};
use super::process;
use crate::say::to_stderr;

const PAUSE: Duration = Duration::from_millis(50);
const LOG_LINES: usize = 30;

/// Starts the cluster in the background and waits until it is ready.
///
/// # Errors
/// When it could not be started, with the end of its log.
pub(super) async fn run(args: &DevArgs) -> anyhow::Result<()> {
    let layout = Layout::open(&args.dir)
        .with_context(|| format!("cannot use the directory {}", args.dir.display()))?;
    drop(DirLock::take(&layout)?);
    Pids::default().save(&layout)?;
    let log = layout.log("dev");
    let output =
        std::fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe()?);
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
    to_stderr(&format!(
        "ready in the background, pid {}\n  export ROLLOUT_CONTEXT={}\n  \
         rolloutctl --context {} status\n  rollout dev stop --dir {}\n",
        child.id(),
        layout.context("client").display(),
        layout.context("admin").display(),
        layout.root().display()
    ));
    Ok(())
}
