//! The speed of the disk itself: append and fdatasync in a loop, before anything else runs, or as `rolloutctl bench
//! fsync`.
//!
//! Invariant: it measures the file system that the members write to, with blocks of the size of a small log write.
//! Absent: any optimization; this is the baseline.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;

use super::measurements::{CallTimes, Times};
use crate::connect::parse_duration;
use crate::output::{self, Report, count, duration};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which disk, for how long.
#[derive(Debug, clap::Args)]
pub(crate) struct FsyncArgs {
    /// A directory on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    work_dir: PathBuf,
    /// For how long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    seconds: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FsyncFigures {
    directory: PathBuf,
    /// Whether it is in memory, where an fsync proves nothing.
    in_memory: bool,
    fsyncs_per_second: f64,
    p50_us: u64,
    p99_us: u64,
}

impl Report for FsyncFigures {
    const KIND: &'static str = "BenchFsync";

    fn table(&self) -> String {
        let time = |us: u64| duration(us as f64 / 1e6);
        let rate = count(self.fsyncs_per_second as u64);
        let memory = if self.in_memory { ", in memory: it proves nothing" } else { "" };
        format!(
            "{rate} fsyncs/s, median {}, p99 {}{memory}\n",
            time(self.p50_us),
            time(self.p99_us)
        )
    }
}

impl Verb for FsyncArgs {
    const KIND: Kind<Self> = Kind::Once;

    /// Measures, and prints the figures.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let dir = &self.work_dir;
        // A new file, so that no existing file is overwritten.
        let own = tempfile::Builder::new()
            .prefix("fsync-")
            .tempdir_in(dir)
            .with_context(|| format!("cannot write in {}", dir.display()))?;
        let rate = measure(own.path(), self.seconds)?;
        output::emit_next(
            globals.format,
            &FsyncFigures {
                directory: dir.clone(),
                in_memory: is_memory(dir),
                fsyncs_per_second: rate.fsyncs_per_second.round(),
                p50_us: rate.p50_us,
                p99_us: rate.p99_us,
            },
        )
    }
}

const BLOCK: [u8; 4096] = [0x5a; 4096];
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The disk's own rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DiskRate {
    pub(crate) fsyncs_per_second: f64,
    pub(crate) p50_us: u64,
    pub(crate) p99_us: u64,
}

/// Measures for about `time`.
///
/// # Errors
/// The directory cannot be written.
pub(crate) fn measure(dir: &Path, time: Duration) -> std::io::Result<DiskRate> {
    let path = dir.join("fsync-rate");
    let mut file = std::fs::File::create(&path)?;
    let mut times = Times::new();
    let start = Instant::now();
    let mut count = 0_u32;
    while start.elapsed() < time {
        let before = Instant::now();
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        times.record_us(before.elapsed().as_micros() as u64);
        count += 1;
    }
    let seconds = start.elapsed().as_secs_f64();
    std::fs::remove_file(&path)?;
    let CallTimes { p50_us, p99_us, .. } = times.summary();
    Ok(DiskRate { fsyncs_per_second: f64::from(count) / seconds, p50_us, p99_us })
}

/// Whether a directory is in memory, where an fsync proves nothing.
pub(crate) fn is_memory(dir: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt as _;
    let Ok(path) = std::ffi::CString::new(dir.as_os_str().as_bytes()) else { return false };
    // SAFETY: statfs is plain data for which zeroes are a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in NUL and `stat` outlives the call.
    let found = unsafe { libc::statfs(path.as_ptr(), &raw mut stat) };
    found == 0 && stat.f_type == TMPFS_MAGIC
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_positive_and_the_file_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let rate = measure(dir.path(), Duration::from_millis(50)).unwrap();
        assert!(rate.fsyncs_per_second > 0.0);
        // The count and the median time agree, within the effect of a few slow writes.
        assert!(0 < rate.p50_us && rate.p50_us <= rate.p99_us);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn output_matches_the_golden_file() {
        let report = FsyncFigures {
            directory: "/var/lib/rollout".into(),
            in_memory: false,
            fsyncs_per_second: 1_000.0,
            p50_us: 900,
            p99_us: 1_500,
        };
        crate::golden::report("bench-fsync.txt", &report);
    }
}
