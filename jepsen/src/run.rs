//! `rollout-jepsen run` and `recheck`: a fleet, a workload, a nemesis, a record, a verdict, a report.

use crate::events::EventKind;
use crate::fleet::{Fleet, earlier_build};
use crate::nemesis::{Family, Nemesis};
use crate::observe::{self, Observers};
use crate::process::panic_in;
use crate::recorder::Recorder;
use crate::report;
use crate::verdict::{Judged, Recorded, judged};
use crate::workload::WorkloadName;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A failure of the harness is neither a pass nor a violation (as in sysexits.h: the software failed).
pub(crate) const BROKEN: u8 = 70;
/// Time within which writes must succeed after everything was healed.
const RECOVERY: Duration = Duration::from_secs(30);
/// Time limit for the members' digests.
const DIGESTS: Duration = Duration::from_secs(60);

/// The longest duration of a run's faults, in seconds: a week.
pub(crate) const SECS_MAX: u64 = 7 * 86_400;

/// Options of a run.
///
/// Exit status: 0 pass, 1 violation, 2 unknown, 64 wrong usage, 70 the run itself failed.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Workload to run
    #[arg(long, value_enum, default_value = "item")]
    pub workload: WorkloadName,
    /// Fault families to inject, alone and mixed; none: no faults
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    pub nemesis: Vec<Family>,
    /// Seed that decides which faults happen when, and what clients do
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seconds to inject faults, a week at most
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(..=SECS_MAX))]
    pub secs: u64,
    /// Directory for all output [default: a new temporary directory]
    #[arg(long)]
    pub dir: Option<PathBuf>,
    /// Keep the directory even if the run passed
    #[arg(long)]
    pub keep: bool,
    /// Directory of the programs [default: the directory of this one]
    #[arg(long)]
    pub bin: Option<PathBuf>,
    /// With the family `upgrade`: directory of the programs of an earlier build [default: that of the last line of
    /// release/BASELINES, which `make test-upgrade` builds]
    #[arg(long)]
    pub baseline: Option<PathBuf>,
}

/// Judge a recorded run again.
#[derive(Clone, Debug, clap::Args)]
pub struct RecheckArgs {
    /// Directory of the run
    pub dir: PathBuf,
}

/// Runs, and prints the verdict.
pub fn run(args: &Args) -> ExitCode {
    exit_code(run_with_faults(args))
}

/// Judges again, and prints the verdict.
pub fn recheck(args: &RecheckArgs) -> ExitCode {
    exit_code(verdict(&args.dir))
}

fn exit_code(judged: Result<Judged>) -> ExitCode {
    match judged {
        Ok(judged) => ExitCode::from(judged.verdict.status()),
        Err(error) => {
            eprintln!("rollout-jepsen: {error:#}");
            ExitCode::from(BROKEN)
        }
    }
}

fn run_with_faults(args: &Args) -> Result<Judged> {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => std::env::temp_dir().join(format!("rollout-jepsen-{}", std::process::id())),
    };
    std::fs::create_dir_all(&dir)?;
    let dir = dir.canonicalize()?;
    if std::fs::read_dir(&dir)?.next().is_some() {
        bail!("{} is not empty", dir.display());
    }
    let again = report::replay(args.workload.name(), &args.nemesis, args.seed, args.secs);
    println!("{again}");
    println!("recorded in {}", dir.display());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    runtime.block_on(record(args, &dir))?;
    drop(runtime);
    let judged = verdict(&dir)?;
    if judged.verdict.status() == 0 && !args.keep && args.dir.is_none() {
        std::fs::remove_dir_all(&dir)?;
    }
    Ok(judged)
}

fn bin_dir(args: &Args) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let bin = args.bin.clone().or_else(|| own.parent().map(Path::to_owned)).unwrap_or_default();
    if !bin.join("rollout-coordinator").exists() {
        bail!("no rollout-coordinator in {}: cargo build --workspace --bins", bin.display());
    }
    Ok(bin)
}

async fn record(args: &Args, dir: &Path) -> Result<()> {
    let families = Family::expanded(&args.nemesis);
    let bin = bin_dir(args)?;
    let (clients, workers) = (args.workload.clients(), args.workload.workers());
    let earlier = match families.contains(&Family::Upgrade) {
        true => Some(earlier_build(args.baseline.as_deref(), &bin)?),
        false => None,
    };
    let fleet = Fleet::start(dir, &bin, earlier.as_deref(), clients, workers, &families).await?;
    let recorder = Arc::new(Recorder::create(dir)?);
    recorder.event(EventKind::Plan {
        workload: args.workload.name().into(),
        nemesis: families.iter().map(|family| family.name()).collect(),
        seed: args.seed,
        secs: args.secs,
    });
    let observers = Observers::start(&fleet, &recorder)?;
    let running = args.workload.start(&fleet, &recorder, &families, args.seed)?;
    let clients: Vec<&str> = clients.iter().chain(workers).copied().collect();
    let mut nemesis = Nemesis::new(fleet, &clients, &families, args.seed);
    let begun = Instant::now();
    while recorder.succeeded() == 0 {
        if begun.elapsed() > RECOVERY {
            bail!("no write succeeded before the first fault; logs are in {}", dir.display());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let until = Instant::now() + Duration::from_secs(args.secs);
    nemesis.run(&observers, &recorder, until).await?;
    let left = until.saturating_duration_since(Instant::now());
    tokio::time::sleep(left).await;
    println!("{:>6.1} s  everything is healed", recorder.now_ns() as f64 / 1e9);
    running.finish(RECOVERY).await?;
    let digests = observe::digests(&nemesis.fleet, &recorder, DIGESTS).await;
    nemesis.record_deaths(&recorder);
    record_panics(dir, &recorder)?;
    recorder.finish()?;
    // Members without a digest are a doubt; the verdict notices the missing records.
    digests.or_else(|error| {
        eprintln!("{error:#}");
        Ok(())
    })
}

/// Records every log with a panic: its process may have been killed and restarted before the suite checked how it
/// ended.
fn record_panics(dir: &Path, recorder: &Recorder) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "log")
            && let Some(line) = panic_in(&path, 0)
        {
            let log = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            recorder.event(EventKind::Panicked { log, line });
        }
    }
    Ok(())
}

fn verdict(dir: &Path) -> Result<Judged> {
    let run = Recorded::read(dir)?;
    let judged = judged(&run)?;
    let json = serde_json::to_vec_pretty(&judged)?;
    std::fs::write(dir.join("verdict.json"), json)?;
    let page = dir.join("report.html");
    std::fs::write(&page, report::html(&run, &judged)).context("cannot write the report")?;
    println!("{}", report::text(&judged));
    println!("report: {}", page.display());
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events;
    use crate::recorder::EVENTS;

    #[test]
    fn a_time_that_no_clock_can_count_to_is_wrong_usage() {
        use crate::matrix::SHORT_SECS_MAX;
        use clap::{Args as _, Command};
        let commands = [
            (super::Args::augment_args(Command::new("run")), "--secs", SECS_MAX),
            (crate::matrix::Args::augment_args(Command::new("matrix")), "--secs", SHORT_SECS_MAX),
            (crate::bugs::Args::augment_args(Command::new("bugs")), "--secs", SECS_MAX),
            (crate::bugs::Args::augment_args(Command::new("bugs")), "--budget-mins", SECS_MAX / 60),
        ];
        const { assert!(SHORT_SECS_MAX + SHORT_SECS_MAX / 2 <= SECS_MAX) };
        for (command, flag, max) in commands {
            let name = command.get_name().to_owned();
            let out = (name != "run").then_some("--out=x");
            let taken = |number: u64| {
                let number = format!("{flag}={number}");
                let arguments = std::iter::once(name.as_str()).chain(out).chain([number.as_str()]);
                command.clone().try_get_matches_from(arguments).map_err(|err| err.kind())
            };
            assert!(taken(max).is_ok(), "{name} {flag}");
            for number in [max + 1, u64::MAX] {
                let refused = taken(number).err();
                assert_eq!(refused, Some(clap::error::ErrorKind::ValueValidation), "{name} {flag}");
            }
        }
    }

    #[test]
    fn a_panic_in_any_log_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("c1.log", "all is well\nthread 'main' panicked at src/lib.rs:7\nkilled\n"),
            ("worker-w2.log", "thread 'main' panicked at src/lib.rs:8\n"),
            ("c2.log", "all is well\n"),
            ("c3.toml", "panicked at\n"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let recorder = Recorder::create(dir.path()).unwrap();
        record_panics(dir.path(), &recorder).unwrap();
        recorder.finish().unwrap();
        let events = std::fs::read(dir.path().join(EVENTS)).unwrap();
        let mut told: Vec<String> = Vec::new();
        for event in events::read(&events[..]).unwrap() {
            if let EventKind::Panicked { log, line } = event.what {
                told.push(format!("{log}: {line}"));
            }
        }
        told.sort();
        let panics = [
            "c1.log: thread 'main' panicked at src/lib.rs:7",
            "worker-w2.log: thread 'main' panicked at src/lib.rs:8",
        ];
        assert_eq!(told, panics);
    }
}
