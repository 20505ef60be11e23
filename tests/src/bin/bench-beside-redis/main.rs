//! `rolloutctl bench ledger` compared with a Redis 7 stream on the same machine and disk, in alternating runs.
//!
//! `make bench-redis` runs this in a release build. It needs `redis-server` in PATH. `ROUNDS` (5) is the number of
//! runs of each, `SECONDS` (10) the duration of each run. Figures are JSON lines; the last line of each load has the
//! medians.
//!
//! An item is one claim plus one completion, each durable when it is acknowledged: on a quorum of three members, or
//! in Redis's append-only file with `appendfsync always`. The comparison favors Redis: one node, no TLS, no payload,
//! and entries are never removed from the stream.

mod stream;

use anyhow::{Context, Result, ensure};
use rollout_tests::bench::measured;
use serde_json::{Value, json};
use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Workers and rows of a claim, as docs/figures/rows.md shows them.
const LOADS: [(u32, u32); 3] = [(8, 256), (8, 32), (64, 1)];

/// One run of either system.
#[derive(Clone, Copy)]
struct Figures {
    items_per_second: f64,
    server_cpu_us: f64,
    generator_cpu_us: f64,
}

fn main() -> Result<()> {
    check_disk(&std::env::temp_dir())?;
    let rounds = number("ROUNDS", 5)?;
    let seconds = number("SECONDS", 10)?;
    for (workers, batch) in LOADS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for round in 1..=rounds {
            ours.push(rollout(workers, batch, seconds)?);
            print(workers, batch, &format!("rollout {round}"), ours[ours.len() - 1]);
            theirs.push(stream::measure(workers, batch, Duration::from_secs(seconds))?);
            print(workers, batch, &format!("redis {round}"), theirs[theirs.len() - 1]);
        }
        let (ours, theirs) = (median(&ours), median(&theirs));
        print(workers, batch, "rollout median", ours);
        print(workers, batch, "redis median", theirs);
        let ratio = (ours.items_per_second / theirs.items_per_second * 100.0).round() / 100.0;
        println!("{}", json!({ "workers": workers, "batch": batch, "ratio": ratio }));
    }
    Ok(())
}

fn number(name: &str, default: u64) -> Result<u64> {
    match std::env::var(name) {
        Ok(text) => text.parse().with_context(|| format!("{name}={text} is not a number")),
        Err(_) => Ok(default),
    }
}

fn rollout(workers: u32, batch: u32, seconds: u64) -> Result<Figures> {
    let (workers, batch) = (workers.to_string(), batch.to_string());
    let time = format!("{seconds}s");
    let args = ["ledger", "--workers", &workers, "--batch", &batch, "--seconds", &time];
    let lines = measured(&args)?;
    let (_, data) = lines.first().context("bench ledger printed no line")?;
    let figure = |key: &str| data[key].as_f64().with_context(|| format!("no {key} in {data}"));
    Ok(Figures {
        items_per_second: figure("itemsPerSecond")?,
        server_cpu_us: figure("membersCpuUsPerItem")?,
        generator_cpu_us: figure("generatorCpuUsPerItem")?,
    })
}

/// The median of each figure separately.
fn median(runs: &[Figures]) -> Figures {
    let of = |figure: fn(&Figures) -> f64| {
        let mut sorted: Vec<f64> = runs.iter().map(figure).collect();
        sorted.sort_by(f64::total_cmp);
        sorted[sorted.len() / 2]
    };
    Figures {
        items_per_second: of(|f| f.items_per_second),
        server_cpu_us: of(|f| f.server_cpu_us),
        generator_cpu_us: of(|f| f.generator_cpu_us),
    }
}

fn print(workers: u32, batch: u32, of: &str, figures: Figures) {
    let rounded = |value: f64, to: f64| (value * to).round() / to;
    let line: Value = json!({
        "workers": workers,
        "batch": batch,
        "of": of,
        "itemsPerSecond": figures.items_per_second.round(),
        "serverCpuUsPerItem": rounded(figures.server_cpu_us, 100.0),
        "generatorCpuUsPerItem": rounded(figures.generator_cpu_us, 100.0),
    });
    println!("{line}");
}

/// The types that statfs reports for file systems in memory.
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Refuses a directory in memory, where neither side waits for a disk: both servers write to the temporary directory.
fn check_disk(dir: &Path) -> Result<()> {
    let path = CString::new(dir.as_os_str().as_bytes())?;
    // SAFETY: statfs is plain data for which zeroes are a valid value.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are valid for the time of the call.
    let found = unsafe { libc::statfs(path.as_ptr(), &raw mut stat) };
    ensure!(found == 0, "cannot tell what {} is: {}", dir.display(), io::Error::last_os_error());
    ensure!(
        !IN_MEMORY.contains(&stat.f_type),
        "{} is in memory, so nothing here would wait for a disk: set TMPDIR to a directory on one",
        dir.display()
    );
    Ok(())
}

/// Refuses a server that is not comparable.
fn check_version(said: &str) -> Result<()> {
    ensure!(said.contains("v=7."), "the figures are of Redis 7, not of: {said}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_in_memory_is_refused() {
        // Linux mounts a tmpfs at /dev/shm.
        let error = check_disk(Path::new("/dev/shm")).unwrap_err().to_string();
        assert!(error.contains("TMPDIR"), "{error}");
    }
}
