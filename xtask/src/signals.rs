//! Owns: the process groups of the commands that run, and their end on Ctrl-C, SIGTERM and SIGHUP.
//!
//! Invariant: no command outlives this program, unless this program is killed with SIGKILL. Daemons that tests start die
//! with the test program.
//! Absent: reading the commands' output; that is `run`.

use anyhow::{Context, Result, ensure};
use std::io::Read as _;
use std::os::fd::{IntoRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time between SIGTERM and SIGKILL: scripts unmount and remove directories then.
pub(crate) const GRACE: Duration = Duration::from_secs(5);

static GROUPS: Mutex<Vec<i32>> = Mutex::new(Vec::new());
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// A command's process group. When it is dropped, the processes that are left in it are killed.
pub(crate) struct Group(i32);

impl Group {
    /// Asks its processes to end.
    pub(crate) fn end(&self) {
        send(self.0, libc::SIGTERM);
    }

    pub(crate) fn kill(&self) {
        send(self.0, libc::SIGKILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        groups().retain(|group| *group != self.0);
    }
}

fn groups() -> MutexGuard<'static, Vec<i32>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a signal to a process group; returns whether it still has a process.
fn send(group: i32, signal: i32) -> bool {
    // SAFETY: kill(2) reads no memory of this process.
    unsafe { libc::kill(-group, signal) == 0 }
}

/// Starts a command without input, in a process group of its own.
///
/// # Errors
/// When it cannot be started.
pub(crate) fn spawn(command: &mut Command) -> Result<(Child, Group)> {
    command.stdin(Stdio::null()).process_group(0);
    // A signal that arrives now waits for this lock, and then finds the group.
    let mut groups = groups();
    let child = command.spawn().with_context(|| format!("cannot start {command:?}"))?;
    let id = i32::try_from(child.id()).context("a process id is too large")?;
    groups.push(id);
    Ok((child, Group(id)))
}

extern "C" fn caught(signal: libc::c_int) {
    let byte = [u8::try_from(signal).unwrap_or(u8::MAX)];
    // SAFETY: write(2) is async-signal-safe, and the byte lives until it returns.
    unsafe {
        libc::write(PIPE.load(Ordering::Acquire), byte.as_ptr().cast(), 1);
    }
}

/// From now on Ctrl-C, SIGTERM and SIGHUP end all commands, then this program. A signal that was ignored stays ignored, as
/// SIGHUP under nohup.
///
/// # Errors
/// When a signal cannot be handled.
pub(crate) fn watch() -> Result<()> {
    let (mut reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    PIPE.store(OwnedFd::from(writer).into_raw_fd(), Ordering::Release);
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: all bytes zero are a valid sigaction.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: `old` can be written.
        let read = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut old) };
        ensure!(read == 0, "cannot read how signal {signal} is handled");
        if old.sa_sigaction == libc::SIG_IGN {
            continue;
        }
        // SAFETY: all bytes zero are a valid sigaction.
        let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
        new.sa_sigaction = caught as *const () as usize;
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: `caught` is a handler of one argument, as SA_RESTART alone asks for, and calls write(2) only.
        let set = unsafe { libc::sigaction(signal, &raw const new, std::ptr::null_mut()) };
        ensure!(set == 0, "cannot handle signal {signal}");
    }
    let wait = move || {
        let mut byte = [0_u8];
        if reader.read_exact(&mut byte).is_ok() {
            end_all(byte[0]);
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)
        .context("cannot start a thread")?;
    Ok(())
}

fn end_all(signal: u8) -> ! {
    eprintln!("xtask: signal {signal}: ending what runs");
    // Held until the end: no command starts any more.
    let groups = groups();
    for group in groups.iter() {
        send(*group, libc::SIGTERM);
    }
    let begun = Instant::now();
    while groups.iter().any(|group| send(*group, 0)) && begun.elapsed() < GRACE {
        std::thread::sleep(Duration::from_millis(50)); // The poll; the condition decides.
    }
    for group in groups.iter() {
        send(*group, libc::SIGKILL);
    }
    std::process::exit(128 + i32::from(signal));
}
