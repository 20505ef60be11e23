//! Owns: freezing some threads of a child process with ptrace(2) while its other threads run, which looks like a
//! stuck runtime.
//!
//! Invariant: the threads stay frozen until the process ends or [`Frozen`] is dropped. Both happen only in the thread
//! that froze them, because ptrace requires it.
//! Absent: threads that start later. A frozen runtime starts none.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::Process;

/// Frozen threads.
pub struct Frozen {
    pid: i32,
    threads: Vec<i32>,
}

impl Process {
    /// Freezes every thread whose name `which` accepts.
    ///
    /// # Errors
    /// When the kernel refuses, or no thread has such a name.
    pub fn freeze_threads(&self, which: impl Fn(&str) -> bool) -> Result<Frozen> {
        let pid = i32::try_from(self.pid())?;
        let mut frozen = Frozen { pid, threads: Vec::new() };
        for entry in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let entry = entry?;
            let name = std::fs::read_to_string(entry.path().join("comm"))?;
            if which(name.trim_end()) {
                let thread = entry.file_name().to_string_lossy().parse()?;
                hold(thread).with_context(|| format!("cannot freeze thread {name}"))?;
                frozen.threads.push(thread);
            }
        }
        ensure!(!frozen.threads.is_empty(), "no such thread");
        Ok(frozen)
    }
}

fn hold(thread: i32) -> Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
        // SAFETY: neither request accesses our memory.
        if unsafe { libc::ptrace(request, thread, none, none) } != 0 {
            return Err(std::io::Error::last_os_error().into());
        }
    }
    ensure!(wait(thread, 0)?, "it ended");
    Ok(())
}

/// Waits or polls for the next state change of a thread; false when there is none.
fn wait(thread: i32, flags: i32) -> Result<bool> {
    // SAFETY: a null status is allowed.
    match unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL | flags) } {
        0 => Ok(false),
        found if found == thread => Ok(true),
        _ => Err(std::io::Error::last_os_error().into()),
    }
}

impl Frozen {
    /// Waits until the process is ended by its threads that still run. [`Process::wait`] returns its status.
    ///
    /// # Errors
    /// When it does not end within `limit`.
    pub fn until_the_process_ends(mut self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        // The kernel reports the end of a process only after all its traced threads were waited for.
        for thread in std::mem::take(&mut self.threads).into_iter().filter(|t| *t != self.pid) {
            while !wait(thread, libc::WNOHANG)? {
                if begun.elapsed() > limit {
                    bail!("thread {thread} is still frozen after {limit:?}");
                }
                std::thread::sleep(Duration::from_millis(10)); // The poll; the condition decides.
            }
        }
        Ok(())
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let none = std::ptr::null_mut::<libc::c_void>();
        for thread in &self.threads {
            // SAFETY: it does not access our memory. A thread that has ended is not worth an error.
            unsafe { libc::ptrace(libc::PTRACE_DETACH, *thread, none, none) };
        }
    }
}
