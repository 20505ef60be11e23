//! One child process: started, killed, paused, by its id alone.
//!
//! *Invariant:* it dies with whoever started it.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// A running child. Killed when it is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts a command whose output is appended to `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        command.stdout(out.try_clone()?).stderr(out).stdin(Stdio::null());
        // SAFETY: prctl is async-signal-safe, and nothing else happens between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    fn signal(&self, signal: i32) -> Result<()> {
        let pid = i32::try_from(self.child.id()).context("a process id")?;
        // SAFETY: the child was not waited for, so its id is still its own.
        let sent = unsafe { libc::kill(pid, signal) };
        ensure!(sent == 0, "cannot signal {pid}");
        Ok(())
    }

    /// SIGKILL, and waits until it is gone. True if it was alive until then.
    pub fn kill(&mut self) -> bool {
        let alive = self.ended().is_none();
        let _ = self.child.kill();
        let _ = self.child.wait();
        alive
    }

    /// Stops it where it stands. True once the system says that it is stopped.
    ///
    /// # Errors
    /// When there is no such process any more.
    pub fn pause(&self) -> Result<bool> {
        self.signal(libc::SIGSTOP)?;
        for _ in 0..200 {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
            let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next());
            if state == Some("T") {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(5)); // The poll; the state decides.
        }
        Ok(false)
    }

    /// SIGTERM, and waits until it has ended by itself.
    ///
    /// # Errors
    /// When there is no such process any more.
    pub async fn terminate(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        self.signal(libc::SIGTERM)?;
        let begun = Instant::now();
        while begun.elapsed() < limit {
            if let Some(ended) = self.ended() {
                return Ok(Some(ended));
            }
            tokio::time::sleep(Duration::from_millis(10)).await; // The poll; the end decides.
        }
        Ok(None)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When there is no such process any more.
    pub fn resume(&self) -> Result<()> {
        self.signal(libc::SIGCONT)
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Whether its log tells of a panic.
    pub fn panicked(&self) -> bool {
        std::fs::read_to_string(&self.log).is_ok_and(|log| log.contains("panicked at"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.resume();
        self.kill();
    }
}
