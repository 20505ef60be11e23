//! One child process: started, killed, paused, by its id alone.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// A running child. Killed when it is dropped.
pub struct Process {
    child: Child,
    /// Where its output goes.
    pub log: PathBuf,
}

impl Process {
    /// Starts a command whose output is appended to `log`, and which dies with this process.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        command.stdout(out.try_clone()?).stderr(out).stdin(std::process::Stdio::null());
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

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When there is no such process any more.
    pub fn signal(&self, signal: i32) -> Result<()> {
        // SAFETY: the child was not waited for, so its id is still its own.
        let sent = unsafe { libc::kill(self.child.id() as i32, signal) };
        ensure!(sent == 0, "cannot signal {}", self.child.id());
        Ok(())
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// SIGTERM, and waits until it is gone by itself.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(libc::SIGTERM)?;
        self.wait(limit)
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let begun = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(begun.elapsed() < limit, "pid {} still runs after {limit:?}", self.pid());
            std::thread::sleep(Duration::from_millis(10)); // The poll; the condition decides.
        }
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.signal(libc::SIGCONT);
        self.kill();
    }
}
