//! `rollout-jepsen matrix`: runs every workload under every family of faults, under all families mixed, and under the
//! operations of an operator, one seed after another until a time budget ends.
//!
//! *Invariant:* every pair of a workload and a kind of faults runs once before any pair runs twice, and few runs
//! reach each workload and each kind. A pair that the budget did not reach is reported. Each run is a process in a
//! directory of its own, so that no run disturbs the next; a run that could not be made is no pass. The index is
//! rewritten after each run, so an interrupted matrix can be read.

mod index;

use crate::nemesis::Family;
use crate::process::Process;
use crate::run::{BROKEN, SECS_MAX};
use crate::workload::WorkloadName;
use anyhow::{Context, Result, anyhow, bail};
use index::{Cell, Index};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Time for starting, healing, the last reads and the judge, in addition to the run itself.
const BESIDE: Duration = Duration::from_secs(600);

/// The longest duration of the shorter runs, so that the longer ones stay within the limit of a run.
pub(crate) const SHORT_SECS_MAX: u64 = SECS_MAX / 3 * 2;

/// Run every workload under every family of faults, and under all of them mixed, until a time budget ends.
///
/// Exit status: 0 all passed, 1 a violation, 2 a run that is no pass or could not be made, or, with --all-pairs, a
/// pair without a run; 64 wrong usage, 70 no run could be made.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Start no run that would end after this time: 90s, 45m, 1h
    #[arg(long, default_value = "1h", value_parser = span)]
    pub budget: Duration,
    /// Directory for all output; it must be empty
    #[arg(long)]
    pub out: PathBuf,
    /// Seconds that each run injects faults; half as long again if all families are mixed, and for membership
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=SHORT_SECS_MAX))]
    pub secs: u64,
    /// Seed of the first run; each further run uses the next seed
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run only these workloads
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<WorkloadName>,
    /// Inject only these families, each in runs of its own
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all,rolling,membership")]
    pub nemesis: Vec<Family>,
    /// Exit with 2 if a pair of a workload and a kind of faults had no run
    #[arg(long)]
    pub all_pairs: bool,
    /// Runs at a time; each has its own members and ports, but they share the machine
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub jobs: u64,
    /// Directory of the programs [default: the directory of this one]
    #[arg(long)]
    pub bin: Option<PathBuf>,
}

/// Parses a time with its unit.
fn span(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is no time: 90s, 45m, 1h"))?;
    let seconds = match &text[digits.len()..] {
        "s" => Some(number),
        "m" => number.checked_mul(60),
        "h" => number.checked_mul(3600),
        _ => return Err(format!("{text:?} has no unit: 90s, 45m, 1h")),
    };
    seconds.map(Duration::from_secs).ok_or_else(|| format!("{text:?} is too long"))
}

/// Runs the matrix, and prints the results.
pub fn run(args: &Args) -> ExitCode {
    match filled(args) {
        Ok(index) => ExitCode::from(index.status(args.all_pairs)),
        Err(error) => {
            eprintln!("rollout-jepsen: {error:#}");
            ExitCode::from(BROKEN)
        }
    }
}

/// The plan of one run.
struct Plan {
    workload: WorkloadName,
    nemesis: Vec<Family>,
    seed: u64,
    secs: u64,
}

/// The workloads and the fault kinds: all families mixed, then each family.
fn axes(args: &Args) -> (Vec<WorkloadName>, Vec<Vec<Family>>) {
    let workloads = match args.workload.is_empty() {
        true => WorkloadName::ALL.to_vec(),
        false => args.workload.clone(),
    };
    let families = Family::expanded(&args.nemesis);
    let mut kinds: Vec<Vec<Family>> = Vec::new();
    let faults: Vec<Family> = families.iter().copied().filter(|f| f.is_mixed()).collect();
    if faults.len() > 1 {
        kinds.push(faults);
    }
    kinds.extend(families.iter().map(|family| vec![*family]));
    if kinds.is_empty() {
        kinds.push(Vec::new()); // Nothing breaks.
    }
    (workloads, kinds)
}

/// How many steps two wheels with these numbers of teeth take to return to their first position.
fn steps(one: usize, other: usize) -> usize {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    one / a.max(1) * other
}

/// The plan of the run with this number. Both axes advance with each run, so that few runs reach all values of
/// either. If that would return to a pair before all pairs had a run, one axis advances once more.
fn plan(args: &Args, number: u64) -> Plan {
    let (workloads, kinds) = axes(args);
    let round = usize::try_from(number % (workloads.len() * kinds.len()) as u64).unwrap_or(0);
    let shift = round / steps(workloads.len(), kinds.len());
    let workload = workloads[round % workloads.len()];
    let nemesis = kinds[(round + shift) % kinds.len()].clone();
    // These need more time: many kinds of faults, or membership changes.
    let long = nemesis.len() > 1 || nemesis == [Family::Membership];
    let secs = if long { args.secs + args.secs / 2 } else { args.secs };
    Plan { workload, nemesis, seed: args.seed.wrapping_add(number), secs }
}

/// The name of a kind of faults.
fn kind(nemesis: &[Family]) -> String {
    match nemesis {
        [] => Family::None.name(),
        [one] => one.name(),
        _ => "mixed".to_owned(),
    }
}

/// Every pair that the matrix should run.
fn pairs(args: &Args) -> Vec<(String, String)> {
    let (workloads, kinds) = axes(args);
    let of = |workload: &WorkloadName| {
        let workload = workload.name().to_owned();
        kinds.iter().map(move |nemesis| (workload.clone(), kind(nemesis)))
    };
    workloads.iter().flat_map(of).collect()
}

fn filled(args: &Args) -> Result<Index> {
    std::fs::create_dir_all(&args.out)?;
    if std::fs::read_dir(&args.out)?.next().is_some() {
        bail!("{} is not empty", args.out.display());
    }
    let state = Mutex::new(LaneState {
        begun: Instant::now(),
        next: 0,
        longest_overhead: Duration::from_secs(20),
        index: Index::new(&args.out, pairs(args)),
    });
    println!("{}", index::HEADING);
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..args.jobs).map(|_| scope.spawn(|| lane(args, &state))).collect();
        lanes
            .into_iter()
            .try_for_each(|lane| lane.join().map_err(|_| anyhow!("a lane panicked"))?)
    })?;
    let index = state.into_inner().map_err(|_| anyhow!("a lane panicked"))?.index;
    println!("{}", index.summary());
    index
        .without_a_run()
        .iter()
        .for_each(|(workload, kind)| println!("no run of {workload} under {kind}"));
    println!("index: {}", args.out.join(index::PAGE).display());
    Ok(index)
}

/// State shared by the lanes.
struct LaneState {
    begun: Instant,
    /// The number of the next run that no lane has taken.
    next: u64,
    /// The longest time so far that a run took in addition to injecting faults.
    longest_overhead: Duration,
    index: Index,
}

/// One run after another until none fits into the budget.
fn lane(args: &Args, state: &Mutex<LaneState>) -> Result<()> {
    let held = || state.lock().map_err(|_| anyhow!("another lane panicked"));
    loop {
        let (number, plan) = {
            let mut state = held()?;
            let plan = plan(args, state.next);
            let takes = Duration::from_secs(plan.secs) + state.longest_overhead;
            if state.next > 0 && state.begun.elapsed() + takes > args.budget {
                return Ok(());
            }
            state.next += 1;
            (state.next - 1, plan)
        };
        let started = Instant::now();
        let cell = one(args, &plan, number)?;
        let overhead = started.elapsed().saturating_sub(Duration::from_secs(plan.secs));
        let mut state = held()?;
        state.longest_overhead = state.longest_overhead.max(overhead).min(BESIDE);
        println!("{}", cell.line());
        state.index.add(cell)?;
    }
}

fn one(args: &Args, plan: &Plan, number: u64) -> Result<Cell> {
    let nemesis: Vec<String> = plan.nemesis.iter().map(|family| family.name()).collect();
    let (nemesis, what) = (Family::listed(&nemesis), kind(&plan.nemesis));
    let name = format!("{:03}-{}-{what}-{}", number + 1, plan.workload.name(), plan.seed);
    let (dir, log) = (args.out.join(&name), args.out.join(format!("{name}.log")));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--workload", plan.workload.name(), "--nemesis", &nemesis]);
    command.args(["--seed", &plan.seed.to_string(), "--secs", &plan.secs.to_string()]);
    command.arg("--dir").arg(&dir);
    if let Some(bin) = &args.bin {
        command.arg("--bin").arg(bin);
    }
    let started = Instant::now();
    let mut process = Process::start(command, &log)?;
    let limit = started + Duration::from_secs(plan.secs) + BESIDE;
    let status = loop {
        match process.ended() {
            Some(ended) => break ended.code(),
            None if Instant::now() > limit => break None,
            None => std::thread::sleep(Duration::from_millis(200)), // The poll; the end decides.
        }
    };
    drop(process);
    if status == Some(0) {
        remove_data(&dir).context("cannot remove the data of a run that passed")?;
    }
    Cell::of(name, plan.workload.name(), &what, plan.seed, status, &dir, started.elapsed())
}

/// Removes what members stored: it is large, and needed only to explain a failure.
fn remove_data(dir: &Path) -> Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            std::fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
