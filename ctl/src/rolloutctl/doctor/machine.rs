//! The machine: open files, clock, disk.
//!
//! Invariant: what the system does not report is shown as unknown. Absent: changing any setting.

use std::path::Path;
use std::time::Duration;

use super::finding::Finding;
use super::{DoctorArgs, space};
use crate::bench::disk;
use crate::output::duration;
use crate::rolloutctl::config::Daemon;

/// Open files of a member with many workers and clients, and of one with few.
const MEMBERS_FILES: (u64, u64) = (65_536, 4_096);
/// Open files of a worker whose engines run thousands of rows, and of one whose engine runs the usual number.
const WORKERS_FILES: (u64, u64) = (4_096, 512);
/// How long fsyncs are measured.
const FSYNC_TIME: Duration = Duration::from_secs(2);

pub(super) fn open_files(daemon: Daemon) -> Finding {
    // SAFETY: rlimit is plain data for which zeroes are a valid value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: `limit` outlives the call.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Finding::warn(
            "files",
            "the limit on open files is unknown",
            "each worker, client and table needs one",
            "run: ulimit -n",
        );
    }
    files(daemon, limit)
}

/// A member raises its own limit as far as allowed; a worker does not change it.
fn files(daemon: Daemon, limit: libc::rlimit) -> Finding {
    let (files, (wanted, needed), of, why) = match daemon {
        Daemon::Coordinator => (
            limit.rlim_max,
            MEMBERS_FILES,
            "hard limit for a member run by this user",
            "each connection of a worker or client needs one, and so does each table of the store",
        ),
        Daemon::Worker => (
            limit.rlim_cur,
            WORKERS_FILES,
            "soft limit for a worker run by this user",
            "each running row of an engine may need one",
        ),
    };
    let found = match files {
        libc::RLIM_INFINITY => format!("unlimited open files, {of}"),
        _ => format!("at most {files} open files, {of}"),
    };
    let todo = format!("set LimitNOFILE={wanted} in the unit, or run ulimit -n {wanted}");
    match files {
        _ if files >= wanted => Finding::ok("files", found),
        _ if files >= needed => Finding::warn("files", found, why, todo),
        _ => Finding::fail("files", found, why, todo),
    }
}

pub(super) fn clock() -> Finding {
    // SAFETY: timex is plain data for which zeroes are a valid value; no mode asks for no change.
    let mut timex: libc::timex = unsafe { std::mem::zeroed() };
    // SAFETY: `timex` outlives the call.
    let state = unsafe { libc::adjtimex(&raw mut timex) };
    let why = "certificate validity and log timestamps use this clock";
    let todo = "run chrony or systemd-timesyncd";
    match state {
        -1 => Finding::warn("clock", "it is unknown whether the clock is synchronized", why, todo),
        _ if timex.status & libc::STA_UNSYNC != 0 => {
            Finding::warn("clock", "the clock is not synchronized", why, todo)
        }
        _ => {
            let error = Duration::from_micros(u64::try_from(timex.esterror).unwrap_or_default());
            let error = duration(error.as_secs_f64());
            Finding::ok("clock", format!("synchronized, off by about {error}"))
        }
    }
}

/// The quality of a data directory: it exists, is writable, is not in memory, has space, and how fast it syncs.
pub(super) fn data_dir(dir: &Path, args: &DoctorArgs) -> Vec<Finding> {
    let shown = dir.display();
    if !dir.is_dir() {
        let todo = format!("mkdir -p {shown}; then chown it to the daemon's user");
        let why = "the daemon stores its identity, log and image there";
        return vec![Finding::fail("data", format!("{shown} is not a directory"), why, todo)];
    }
    let mut findings = Vec::new();
    if disk::is_memory(dir) {
        let why = "it is a tmpfs: a reboot loses all data";
        findings.push(Finding::fail("data", format!("{shown} is in memory"), why, "use a disk"));
    }
    match free_bytes(dir) {
        Some(free) => findings.push(space(&shown.to_string(), free, args)),
        None => findings.push(Finding::warn(
            "space",
            format!("the free space of {shown} is unknown"),
            "a member halts when its disk is full",
            "run: df",
        )),
    }
    findings.push(fsync(dir, args));
    findings
}

fn fsync(dir: &Path, args: &DoctorArgs) -> Finding {
    let shown = dir.display();
    let rate = match disk::measure(dir, FSYNC_TIME) {
        Ok(rate) => rate,
        Err(error) => {
            let found = format!("{shown} cannot be written: {error}");
            return Finding::fail(
                "data",
                found,
                "the daemon stores its identity, log and image there",
                "chown it to the daemon's user, and run this command as that user",
            );
        }
    };
    let time = |us: u64| duration(us as f64 / 1e6);
    let found = format!(
        "fsync in {shown}: median {}, p99 {}, {:.0} per second",
        time(rate.p50_us),
        time(rate.p99_us),
        rate.fsyncs_per_second
    );
    let why = "each acknowledgment waits for an fsync, and a leader whose disk stalls for 1 s transfers leadership";
    let max_us = args.fsync_max.as_micros() as u64;
    match rate.p99_us {
        us if us <= max_us => Finding::ok("fsync", found),
        us if us <= max_us.saturating_mul(20) => Finding::warn(
            "fsync",
            found,
            why,
            "use a faster disk, or set [raft] profile = \"far-zones\"",
        ),
        _ => Finding::fail(
            "fsync",
            found,
            why,
            "use another disk: this one causes repeated elections",
        ),
    }
}

/// Bytes that an ordinary user can still write.
pub(super) fn free_bytes(dir: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(dir.as_os_str().as_bytes()).ok()?;
    // SAFETY: statvfs is plain data for which zeroes are a valid value.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL, and `stat` outlives the call.
    let found = unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) };
    (found == 0).then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    #[test]
    fn the_machine_says_something_of_each() {
        for daemon in [Daemon::Coordinator, Daemon::Worker] {
            assert!(open_files(daemon).found.contains("open files"));
        }
        assert!(clock().found.contains("synchronized"));
        let dir = tempfile::tempdir().unwrap();
        assert!(free_bytes(dir.path()).is_some_and(|bytes| bytes > 0));
        assert_eq!(free_bytes(&dir.path().join("not-there")), None);
    }

    #[test]
    fn a_member_is_judged_by_what_it_raises_its_limit_to_and_a_worker_by_what_it_has() {
        // Debian's default limits: 1024 now, a million if the process asks for more.
        let stock = libc::rlimit { rlim_cur: 1024, rlim_max: 1 << 20 };
        assert_eq!(files(Daemon::Coordinator, stock).level, Level::Ok);
        assert_eq!(files(Daemon::Worker, stock).level, Level::Warn);
        let capped = |rlim_max| libc::rlimit { rlim_cur: 1024, rlim_max };
        assert_eq!(files(Daemon::Coordinator, capped(4_096)).level, Level::Warn);
        assert_eq!(files(Daemon::Coordinator, capped(4_095)).level, Level::Fail);
        let unlimited = libc::rlimit { rlim_cur: 8, rlim_max: libc::RLIM_INFINITY };
        assert_eq!(files(Daemon::Coordinator, unlimited).level, Level::Ok);
        assert_eq!(files(Daemon::Worker, unlimited).level, Level::Fail);
    }

    #[test]
    fn a_directory_that_is_not_there_fails_with_the_command_that_makes_it() {
        let dir = tempfile::tempdir().unwrap();
        let findings = data_dir(&dir.path().join("data"), &super::super::tests::args());
        assert_eq!(findings[0].level, Level::Fail);
        assert!(findings[0].todo.as_ref().unwrap().starts_with("mkdir -p"));
    }
}
