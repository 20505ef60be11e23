//! Owns: what processes use, as Linux counts it in /proc: processor time, memory, and bytes written to disks.
//!
//! Invariant: a process that is gone is an error, not zero.
//! Absent: children. The caller names each process.

use anyhow::{Context, Result};

/// What some processes have used together since their starts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// User and system time.
    pub cpu_s: f64,
    /// Resident memory now.
    pub resident_bytes: u64,
    /// Bytes that they made the kernel write to disks. Files in memory do not count.
    pub disk_bytes: u64,
}

impl Usage {
    /// Reads the present counts.
    ///
    /// # Errors
    /// When one of the processes is gone.
    pub fn of(pids: &[u32]) -> Result<Self> {
        let mut all = Self::default();
        for pid in pids {
            all.cpu_s += cpu_s(*pid)?;
            all.resident_bytes += resident_bytes(*pid)?;
            all.disk_bytes += field(*pid, "io", "write_bytes:")?;
        }
        Ok(all)
    }

    /// What the same processes have used since an earlier reading, with their present memory.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            cpu_s: self.cpu_s - before.cpu_s,
            resident_bytes: self.resident_bytes,
            disk_bytes: self.disk_bytes - before.disk_bytes,
        }
    }
}

fn cpu_s(pid: u32) -> Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // Parse after the name, which may contain anything: user and system time are the 12th and 13th fields.
    let fields = stat.rsplit_once(')').context("no stat")?.1;
    let ticks: u64 =
        fields.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    // SAFETY: sysconf reads none of our memory.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Ok(ticks as f64 / per_second as f64)
}

/// The resident memory of a process.
///
/// # Errors
/// When it is gone.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    Ok(field(pid, "status", "VmRSS:")? << 10)
}

fn field(pid: u32, file: &str, name: &str) -> Result<u64> {
    let path = format!("/proc/{pid}/{file}");
    let text = std::fs::read_to_string(&path).with_context(|| path.clone())?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.with_context(|| format!("{path} has no {name}"))
}

/// User and system time of all children of this process that have ended and were waited for.
pub fn ended_children_cpu_s() -> f64 {
    // SAFETY: rusage is plain data for which zeroes are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` outlives the call. It fails only for an unknown `who`.
    unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_gone_is_an_error() {
        let own = Usage::of(&[std::process::id()]).unwrap();
        assert!(own.resident_bytes > 0, "{own:?}");
        // Linux assigns no such id.
        assert!(Usage::of(&[std::process::id(), u32::MAX]).is_err());
    }
}
