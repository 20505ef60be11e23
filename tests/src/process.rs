//! One child process: started, killed and paused by its own id only.

use anyhow::{Context, Result, bail, ensure};
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

fn die_with_parent(command: &mut Command) {
    // SAFETY: prctl is async-signal-safe, and nothing else happens between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Limits the number of open files of the process, which cannot raise it.
pub(crate) fn limit_open_files(command: &mut Command, files: u64) {
    // SAFETY: setrlimit is async-signal-safe, and nothing else happens between fork and exec.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: files, rlim_max: files };
            match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
}

/// Runs a command to its end and returns what it printed.
///
/// # Errors
/// When it cannot be started, or still runs after `limit`; the error has the output so far.
pub fn output(mut command: Command, limit: Duration) -> Result<Output> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    die_with_parent(&mut command);
    let mut child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
    let begun = std::time::Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if begun.elapsed() >= limit {
            let _ = child.kill();
            let _ = child.wait();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5)); // The poll; the condition decides.
    };
    let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
    let Some(status) = status else {
        let said = [stdout, stderr].concat();
        bail!("{command:?} still ran after {limit:?}: {}", String::from_utf8_lossy(&said));
    };
    Ok(Output { status, stdout, stderr })
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // Keep what was read before an error.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

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
        command.stdout(out.try_clone()?).stderr(out).stdin(Stdio::null());
        die_with_parent(&mut command);
        let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// Starts a command whose input and output are this terminal; the caller writes its output to `log`.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_in(mut command: Command, terminal: OwnedFd, log: &Path) -> Result<Self> {
        command.stdin(terminal.try_clone()?).stdout(terminal.try_clone()?).stderr(terminal);
        die_with_parent(&mut command);
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

    /// Sends SIGTERM, and waits until it has exited.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn terminate(&mut self, limit: Duration) -> Result<ExitStatus> {
        self.signal(libc::SIGTERM)?;
        self.wait(limit)
    }

    /// Sends SIGINT, as Ctrl-C does, until it has exited: a busy process may miss the first one.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn interrupt(&mut self, limit: Duration) -> Result<ExitStatus> {
        let begun = std::time::Instant::now();
        while self.runs() && begun.elapsed() < limit {
            self.signal(libc::SIGINT)?;
            std::thread::sleep(Duration::from_millis(100)); // The poll; the condition decides.
        }
        self.wait(Duration::ZERO)
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
            ensure!(
                begun.elapsed() < limit,
                "pid {} still runs after {limit:?}: {}",
                self.pid(),
                self.log_tail()
            );
            std::thread::sleep(Duration::from_millis(10)); // The poll; the condition decides.
        }
    }

    /// The last lines of its output.
    pub fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
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

/// The engine processes of an agent: its children that lead a process group. The guard process of each engine is in
/// its group.
pub fn engines(agent: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{agent}/task")).into_iter().flatten().flatten();
    // A child belongs to the thread that started it.
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let mut found: Vec<u32> = lists
        .flat_map(|l| l.split_whitespace().filter_map(|p| p.parse().ok()).collect::<Vec<_>>())
        // SAFETY: getpgid reads no memory.
        .filter(|pid| unsafe { libc::getpgid(*pid as i32) } == *pid as i32)
        .collect();
    found.sort_unstable();
    found
}

/// Whether a process is alive; a zombie is not.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    state.is_some_and(|state| state != 'Z')
}
