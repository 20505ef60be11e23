//! What the operating system says of this process.

/// User and system time so far, in microseconds.
pub(crate) fn cpu_us() -> u64 {
    // SAFETY: getrusage writes one rusage to the place that it is given, which is zeroed and ours.
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

/// Resident memory in bytes, or 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|p| p.parse().ok()).unwrap_or(0);
    pages * 4096
}
