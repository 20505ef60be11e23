//! Child processes that never outlive this process.
//!
//! Invariant: the kernel kills every child when its launcher's thread ends, so nothing is left when `rollout dev`
//! itself is killed. The signal is tied to the *thread* that forked, so a dedicated thread forks: a runtime's threads
//! come and go. Absent: the decision to restart.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use anyhow::Context as _;

type Request = (Command, SyncSender<io::Result<Child>>);

/// The thread that forks. When it is dropped, the remaining children are killed.
#[derive(Debug)]
pub struct Launcher {
    requests: SyncSender<Request>,
}

impl Launcher {
    /// Starts the thread.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start() -> io::Result<Self> {
        let (requests, received) = sync_channel(1);
        std::thread::Builder::new().name("launcher".into()).spawn(move || launch(&received))?;
        Ok(Self { requests })
    }

    /// Starts `program` with `arguments` in its own process group, so that Ctrl-C reaches only this process, which
    /// then stops it in order. Its output is appended to `log`.
    ///
    /// # Errors
    /// The program or its log file cannot be opened, naming it.
    pub fn spawn(&self, program: &Path, arguments: &[&Path], log: &Path) -> anyhow::Result<Child> {
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0);
        // The user's own settings must not reach the daemons, whose flags read the same variables: an exported
        // endpoint would send these workers to another cluster.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("ROLLOUT_") && name != "ROLLOUT_LOG" {
                command.env_remove(name);
            }
        }
        die_with_parent(&mut command);
        let (reply, answer) = sync_channel(1);
        self.requests.send((command, reply)).context("the launcher is gone")?;
        answer
            .recv()
            .context("the launcher is gone")?
            .with_context(|| format!("cannot start {}", program.display()))
    }
}

fn launch(requests: &Receiver<Request>) {
    while let Ok((mut command, reply)) = requests.recv() {
        if let Err(unheard) = reply.send(command.spawn())
            && let Ok(mut child) = unheard.0
        {
            // It would never be waited for. An error because it has already ended does not matter.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn die_with_parent(command: &mut Command) {
    let parent = std::process::id();
    let arrange = move || {
        // SAFETY: prctl and getppid are async-signal-safe and touch no memory of this process.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the request took effect.
            if libc::getppid().cast_unsigned() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: `arrange` calls only async-signal-safe functions and allocates nothing.
    unsafe {
        command.pre_exec(arrange);
    }
}

/// Sends a signal to a child that has not been waited for, so the PID still belongs to it.
pub fn signal(child: &Child, signal: libc::c_int) {
    // SAFETY: kill has no memory effects; the PID belongs to a child that is not reaped yet.
    unsafe {
        libc::kill(child.id().cast_signed(), signal);
    }
}

/// How a process ended, human-readable: `exit code 1`, `signal 9 (SIGKILL)`.
pub fn describe_exit(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(libc::SIGKILL)) => "signal 9 (SIGKILL)".into(),
        (None, Some(libc::SIGTERM)) => "signal 15 (SIGTERM)".into(),
        (None, Some(libc::SIGABRT)) => "signal 6 (SIGABRT)".into(),
        (None, Some(libc::SIGSEGV)) => "signal 11 (SIGSEGV)".into(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// The last lines of a log file, for an error message. Empty if it cannot be read.
pub fn log_tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let start = text.len().saturating_sub(16 << 10);
    let text = String::from_utf8_lossy(&text[start..]);
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..]
        .iter()
        .fold(String::new(), |tail, line| tail + "  | " + line + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_launcher_kills_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("sleep.log");
        let launcher = Launcher::start().unwrap();
        let mut child = launcher.spawn(Path::new("/bin/sleep"), &[Path::new("600")], &log).unwrap();
        assert!(child.try_wait().unwrap().is_none());
        drop(launcher);
        let status = child.wait().unwrap();
        assert_eq!(describe_exit(status), "signal 9 (SIGKILL)");
    }

    #[test]
    fn output_of_a_child_goes_to_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("echo.log");
        let launcher = Launcher::start().unwrap();
        let mut child =
            launcher.spawn(Path::new("/bin/echo"), &[Path::new("hello")], &log).unwrap();
        assert!(child.wait().unwrap().success());
        assert_eq!(log_tail(&log, 20), "  | hello\n");
    }
}
