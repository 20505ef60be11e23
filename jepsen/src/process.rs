//! One child process: started, killed and paused by its own id only.
//!
//! *Invariant:* it dies with its parent.

use anyhow::{Context, Result, ensure};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The text that Rust logs when a thread panics.
const PANIC: &str = "panicked at";

/// The first line of a log, from this byte on, that reports a panic.
pub fn panic_in(log: &Path, from: u64) -> Option<String> {
    let mut file = File::open(log).ok()?;
    file.seek(SeekFrom::Start(from)).ok()?;
    let lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
    let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.find(|line| line.contains(PANIC))
}

/// A running child. Killed when it is dropped.
pub struct Process {
    child: Child,
    log: PathBuf,
    /// Where in the log its own lines begin.
    begins_at: u64,
}

impl Process {
    /// Starts a command whose output is appended to `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start(mut command: Command, log: &Path) -> Result<Self> {
        let out = File::options().create(true).append(true).open(log)?;
        let begins_at = out.metadata()?.len();
        command.stdout(out.try_clone()?).stderr(out).stdin(Stdio::null());
        // SAFETY: prctl is async-signal-safe, and nothing else happens between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log: log.to_owned(), begins_at })
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

    /// Sends SIGSTOP. True once the system says that the process is stopped.
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

    /// Sends SIGTERM, and waits until it has exited.
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

    /// Resumes it.
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

    /// Whether it could not start because another process had its address: ports of stopped members are free for any
    /// process.
    pub fn found_its_port_taken(&self) -> bool {
        let Ok(log) = std::fs::read(&self.log) else { return false };
        let own = log.get(self.begins_at as usize..).unwrap_or_default();
        String::from_utf8_lossy(own).contains("cannot listen on")
    }

    /// Whether its log reports a panic of this process, not of an earlier one.
    pub fn panicked(&self) -> bool {
        panic_in(&self.log, self.begins_at).is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.resume();
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_of_the_process_that_wrote_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("c1.log");
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let mut process = Process::start(command, &log).unwrap();
            while process.ended().is_none() {
                std::thread::sleep(Duration::from_millis(5));
            }
            process
        };
        assert!(!run("echo all is well").panicked());
        let first = run(r"printf 'thread x panicked at a.rs:1\n\377\n'; exit 3");
        assert!(first.panicked());
        assert!(!run("exit 74").panicked(), "the log has a panic of the process before");
        assert_eq!(panic_in(&log, 0).as_deref(), Some("thread x panicked at a.rs:1"));
    }
}
