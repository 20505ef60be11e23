//! Owns: one engine's process: started with its end of a socket, watched until it ends, killed with its children.
//!
//! Invariant: it dies with the agent: the kernel kills it when the thread that started it is gone, and that thread
//! waits for it to end. It leads a process group of its own, which is killed whole when it ends, before its id can
//! be another's.
//! Absent: what is said over the socket.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::frame::SOCKET_ENV;
use super::stderr::{self, LastWords};
use rollout_engine_protocol::CRASH_FILE_ENV;

/// What is started.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
    /// Over the agent's own environment; of one name, the last counts.
    pub(crate) env: Vec<(String, String)>,
    pub(crate) slot: u32,
    /// Where the process says what it died of.
    pub(crate) crash_file: PathBuf,
}

/// A running process.
pub(super) struct Process {
    pub(super) socket: UnixStream,
    pub(super) killer: Killer,
    /// Resolves when it has ended and its group is gone.
    pub(super) ended: oneshot::Receiver<io::Result<ExitStatus>>,
    pub(super) last_words: LastWords,
}

/// Ends the group while there is one.
#[derive(Clone)]
pub(super) struct Killer {
    group: Arc<Mutex<Option<i32>>>,
}

impl Killer {
    pub(super) fn kill(&self) {
        let group = self.group.lock();
        if let Some(group) = *group {
            // SAFETY: no memory is involved; the group's leader was not reaped, so the id is still its own.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
    }
}

impl Program {
    /// Starts it from a thread of its own, which stays until the process has ended.
    pub(super) async fn start(&self) -> io::Result<Process> {
        let (socket, theirs) = UnixStream::pair()?;
        let (started, starting) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let program = self.clone();
        std::thread::Builder::new().name(format!("engine-{}", self.slot)).spawn(move || {
            let (mut child, last_words) = match program.spawn(theirs.into()) {
                Ok(spawned) => spawned,
                Err(error) => {
                    let _ = started.send(Err(error));
                    return;
                }
            };
            let killer = Killer { group: Arc::new(Mutex::new(Some(child.id() as i32))) };
            // Nobody there to take it: it is of no use.
            if started.send(Ok((killer.clone(), last_words))).is_err() {
                killer.kill();
            }
            let _ = end.send(reap(&mut child, &killer));
        })?;
        let (killer, last_words) =
            starting.await.map_err(|_| io::Error::other("the starting thread failed"))??;
        socket.set_nonblocking(true)?;
        Ok(Process { socket, killer, ended, last_words })
    }

    fn spawn(&self, socket: OwnedFd) -> io::Result<(Child, LastWords)> {
        remove(&self.crash_file)?;
        let (log, to_log) = io::pipe()?;
        let mut command = Command::new(&self.path);
        command
            .args(&self.args)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .env(SOCKET_ENV, socket.as_raw_fd().to_string())
            .env(CRASH_FILE_ENV, &self.crash_file)
            .stdin(Stdio::null())
            .stdout(to_log.try_clone()?)
            .stderr(to_log)
            .process_group(0);
        let (fd, parent) = (socket.as_raw_fd(), std::process::id());
        // SAFETY: between fork and exec only prctl, getppid and fcntl are called, which are all
        // async-signal-safe, and nothing is allocated.
        unsafe {
            command.pre_exec(move || inherit(fd, parent));
        }
        let child = command.spawn()?;
        // The command holds the pipe's writing end, which must be the child's alone.
        drop(command);
        let last_words = stderr::follow(log, self.slot)?;
        Ok((child, last_words))
    }
}

/// In the child: to die with the agent, and to keep the socket, under the number that it has here.
fn inherit(fd: i32, parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls on numbers; the descriptor is open, the parent holds it until the spawn returned.
    unsafe {
        if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
            return Err(io::Error::last_os_error());
        }
        if libc::getppid() as u32 != parent {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        match libc::fcntl(fd, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// Waits for the end; then the rest of the group goes, and only then the id.
fn reap(child: &mut Child, killer: &Killer) -> io::Result<ExitStatus> {
    loop {
        // SAFETY: the structure is plain numbers, for which zero is a value, and is written by the call alone.
        let waited = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            libc::waitid(libc::P_PID, child.id(), &mut info, libc::WEXITED | libc::WNOWAIT)
        };
        if waited == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    killer.kill();
    *killer.group.lock() = None;
    child.wait()
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Exit status and signal.
pub(super) fn fate(status: ExitStatus) -> (Option<i32>, Option<i32>) {
    (status.code(), status.signal())
}
