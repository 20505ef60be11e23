//! Owns: one engine's process: started with its end of a socket, watched until it ends, killed with its children.
//!
//! Invariant: it dies with the agent: the kernel kills it when the thread that started it ends, and that thread waits
//! for it. It leads its own process group, which is killed as a whole when it ends, before its ID can be reused. The
//! kernel does not report the agent's death to grandchildren, so a guard in that group watches for it and kills the
//! group: the process's own children die too. Both ignore SIGTERM, because some supervisors send it to every process
//! of a job: only the agent decides when an engine ends, and uses SIGKILL.
//! Absent: the messages on the socket.

use std::ffi::OsString;
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

/// The program to start.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<String>,
    /// Variables that override the agent's own environment; of duplicates, the last counts.
    pub(crate) env: Vec<(String, String)>,
    /// Variables of the agent's own environment that it does not get.
    pub(crate) withheld: Vec<OsString>,
    pub(crate) slot: u32,
    /// Where the process writes why it died.
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

/// Waits for the end of its input, which means the agent's end, and kills its process group including itself.
const GUARD: [&str; 3] = ["/bin/sh", "-c", "trap '' TERM; read -r _; kill -9 0"];

/// A process of the group that outlives the agent by a moment. It also keeps the group's ID in use.
struct Guard {
    process: Child,
    /// Closed with the agent, however the agent ends.
    _lifeline: io::PipeWriter,
}

impl Guard {
    fn start(group: i32) -> io::Result<Self> {
        let (input, lifeline) = io::pipe()?;
        let process = Command::new(GUARD[0])
            .args(&GUARD[1..])
            .env_clear()
            .stdin(input)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(group)
            .spawn()?;
        Ok(Self { process, _lifeline: lifeline })
    }
}

/// Kills the group while it exists.
#[derive(Clone)]
pub(super) struct Killer {
    /// The process that leads the group.
    pub(super) pid: i32,
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
    /// Starts it from a dedicated thread, which stays until the process has ended.
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
            let guard = Guard::start(child.id() as i32)
                .inspect_err(|error| {
                    let slot = program.slot;
                    tracing::warn!(%error, slot, "the engine's children may outlive this agent");
                })
                .ok();
            let pid = child.id() as i32;
            let killer = Killer { pid, group: Arc::new(Mutex::new(Some(pid))) };
            // The caller has gone, so the process is of no use.
            if started.send(Ok((killer.clone(), last_words))).is_err() {
                killer.kill();
            }
            let status = reap(&mut child, &killer);
            // It belongs to the group, and was killed with it.
            if let Some(mut guard) = guard {
                let _ = guard.process.wait();
            }
            let _ = end.send(status);
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
        for name in &self.withheld {
            command.env_remove(name);
        }
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
        // SAFETY: between fork and exec only signal, prctl, getppid and fcntl are called, which are all
        // async-signal-safe, and nothing is allocated.
        unsafe {
            command.pre_exec(move || inherit(fd, parent));
        }
        let child = command.spawn()?;
        // The command holds the pipe's writing end, which only the child may hold.
        drop(command);
        let last_words = stderr::follow(log, self.slot)?;
        Ok((child, last_words))
    }
}

/// In the child: arranges to die with the agent and not by SIGTERM, and to keep the socket under its present number.
fn inherit(fd: i32, parent: u32) -> io::Result<()> {
    // SAFETY: plain system calls on numbers; the descriptor is open, the parent holds it until the spawn returned.
    unsafe {
        if libc::signal(libc::SIGTERM, libc::SIG_IGN) == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
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

/// Waits for the end; then kills the rest of the group, and only then releases the ID.
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// A process that starts another, which ignores the signals that it can, and waits; their PIDs are in a file.
    fn tree(dir: &Path) -> Program {
        let pids = dir.join("pids");
        let script = format!(
            "sh -c 'trap \"\" HUP INT TERM; echo $$ >>{0}; while :; do sleep 1; done' & echo $$ >>{0}; wait",
            pids.display()
        );
        Program {
            path: "/bin/sh".into(),
            args: vec!["-c".into(), script],
            env: Vec::new(),
            withheld: Vec::new(),
            slot: 0,
            crash_file: dir.join("crash.json"),
        }
    }

    fn eventually(what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !done() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn pids(dir: &Path) -> Vec<i32> {
        let text = std::fs::read_to_string(dir.join("pids")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// A process that waits to be reaped counts as gone.
    fn lives(pid: &i32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_end_of_a_process_is_that_of_all_that_it_started() {
        let dir = tempfile::tempdir().unwrap();
        let process = tree(dir.path()).start().await.unwrap();
        eventually("both run", || pids(dir.path()).len() == 2);
        process.killer.kill();
        assert_eq!(fate(process.ended.await.unwrap().unwrap()), (None, Some(libc::SIGKILL)));
        eventually("none is left", || !pids(dir.path()).iter().any(lives));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_sigterm_to_every_process_of_an_engine_ends_none() {
        let dir = tempfile::tempdir().unwrap();
        let process = tree(dir.path()).start().await.unwrap();
        eventually("both run", || pids(dir.path()).len() == 2);
        let group = -process.killer.pid;
        // SAFETY: a plain system call; the group's leader was not reaped, so the ID is still its own.
        assert_eq!(unsafe { libc::kill(group, libc::SIGTERM) }, 0);
        assert!(pids(dir.path()).iter().all(ignores_sigterm), "the kernel discards it");
        process.killer.kill();
        assert_eq!(fate(process.ended.await.unwrap().unwrap()), (None, Some(libc::SIGKILL)));
    }

    /// Whether the process runs and ignores SIGTERM, as Linux reports it.
    fn ignores_sigterm(pid: &i32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = ignored.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
        lives(pid) && ignored & (1 << (libc::SIGTERM - 1)) != 0
    }

    #[test]
    fn a_guard_kills_the_group_when_its_agent_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let program = tree(dir.path());
        // As the agent starts it, but without the parent-death signal, which only the first process gets.
        let mut child =
            Command::new(&program.path).args(&program.args).process_group(0).spawn().unwrap();
        let Guard { process: mut guard, _lifeline } = Guard::start(child.id() as i32).unwrap();
        eventually("both run", || pids(dir.path()).len() == 2);
        assert!(guard.try_wait().unwrap().is_none(), "it waits");
        // What the kernel does with an agent's descriptors, however the agent ends.
        drop(_lifeline);
        assert_eq!(child.wait().unwrap().signal(), Some(libc::SIGKILL));
        assert_eq!(guard.wait().unwrap().signal(), Some(libc::SIGKILL));
        eventually("none is left", || !pids(dir.path()).iter().any(lives));
    }
}
