//! What the operating system reports about this process, and how the process reports its end.

use rollout_raft::{NO_SPACE_EXIT, OpenError};

/// User and system time so far, in microseconds.
pub(crate) fn cpu_us() -> u64 {
    // SAFETY: getrusage writes one rusage to the pointer, which refers to zeroed memory of this function.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        match libc::getrusage(libc::RUSAGE_SELF, &mut usage) {
            0 => usage,
            _ => return 0,
        }
    };
    let us = |t: libc::timeval| t.tv_sec as u64 * 1_000_000 + t.tv_usec as u64;
    us(usage.ru_utime) + us(usage.ru_stime)
}

/// Resident memory in bytes, or 0 if the system does not report it.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    pages * 4096
}

/// The exit status after this error. It tells a supervisor whether a restart may help.
pub(crate) fn exit_status(error: &anyhow::Error) -> i32 {
    match error.downcast_ref::<OpenError>() {
        Some(error) if error.is_no_space() => NO_SPACE_EXIT,
        _ => 1,
    }
}

/// Ends the process at once, without running destructors.
///
/// All acknowledged data is on disk. The stores are closed, or still used by a connection that a peer keeps open;
/// waiting for it would only delay the restart.
pub(crate) fn leave(code: i32) -> ! {
    use std::io::Write;
    let _ = std::io::stdout().flush();
    let _ = std::io::stderr().flush();
    // SAFETY: _exit has no preconditions, and no code of this process runs after it.
    unsafe { libc::_exit(code) }
}
