//! `rollout-jepsen bugs`: what the suite finds of bugs that were seeded on purpose.
//!
//! *Invariant:* each bug meets the same workloads, faults and seeds as the clean build, in runs of
//! their own processes; nothing here knows what a bug does. What no run found is told as such, and
//! a run that could not be made finds nothing.

mod matrix;

use crate::nemesis::Family;
use crate::process::Process;
use crate::run::SECS_MAX;
use crate::workload::WorkloadName;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use matrix::{Conditions, Found, Matrix, Outcome, Row, digest};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// Names the bug to a member that was built with bugs.
const BUG: &str = "ROLLOUT_SEEDED_BUG";
/// The program of a member.
const MEMBER: &str = "rollout-coordinator";
/// What starting, healing, the last reads and the judge may take beside the run itself.
const BESIDE: Duration = Duration::from_secs(600);
/// The name under which the build without any bug stands in the matrix.
const CLEAN: &str = "(clean build)";

/// Measure the suite: which seeded bugs it finds, and that it finds nothing without one.
///
/// Exit status, of what was asked for: 0 every bug was found and the clean build raised no alarm, 1 the clean build did,
/// 2 a bug was not found, or the clean build's runs were no passes; 64 wrong usage, 70 it could not be
/// measured.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Seeds that a bug has to be found in
    #[arg(long, default_value_t = 5)]
    pub seeds: u64,
    /// How long each run breaks things
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(..=SECS_MAX))]
    pub secs: u64,
    /// What clients do, one after another with each seed; without it all there is
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<WorkloadName>,
    /// What breaks, mixed
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    pub nemesis: Vec<Family>,
    /// These bugs alone
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// No run begins after so many minutes
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=SECS_MAX / 60))]
    pub budget_mins: Option<u64>,
    /// Where everything is written; what it holds of an earlier call with the same programs and plan is not run again
    #[arg(long)]
    pub out: PathBuf,
    /// The members with bugs; without it `../seeded-bugs/debug` beside this program
    #[arg(long)]
    pub bin: Option<PathBuf>,
    /// The members without; without it beside this program
    #[arg(long)]
    pub clean_bin: Option<PathBuf>,
}

impl Args {
    /// Whether a bug, or the clean build, was asked for.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// Measures, and tells.
pub fn run(args: &Args) -> ExitCode {
    match measured(args) {
        Ok(matrix) => ExitCode::from(matrix.status(|bug| args.wants(bug))),
        Err(error) => {
            eprintln!("rollout-jepsen: {error:#}");
            ExitCode::from(crate::run::BROKEN)
        }
    }
}

/// A way to torment a fleet.
struct Plan {
    workload: String,
    nemesis: String,
}

fn name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

fn names<T: ValueEnum + Clone>(given: &[T]) -> Vec<String> {
    let all = if given.is_empty() { T::value_variants() } else { given };
    all.iter().map(name).collect()
}

fn measured(args: &Args) -> Result<Matrix> {
    let own = std::env::current_exe()?;
    let beside = own.parent().map(Path::to_owned).unwrap_or_default();
    let clean = args.clean_bin.clone().unwrap_or_else(|| beside.clone());
    let with_bugs = args.bin.clone().unwrap_or_else(|| beside.join("../seeded-bugs/debug"));
    let bugs = bugs_of(&with_bugs)?;
    std::fs::create_dir_all(&args.out)?;
    let with_bugs = beside_the_rest(&args.out.join("bin"), &with_bugs, &clean)?;
    println!("members with bugs: {}", with_bugs.display());
    println!("members without:   {}", clean.display());
    if let Some(unknown) = args.only.iter().find(|name| !bugs.contains(name) && *name != CLEAN) {
        bail!("there is no bug {unknown}; there are: {}", bugs.join(", "));
    }
    let families: Vec<String> = Family::expanded(&args.nemesis).iter().map(name).collect();
    let nemesis = Family::listed(&families);
    let plan = |workload| Plan { workload, nemesis: nemesis.clone() };
    let plans: Vec<Plan> = names(&args.workload).into_iter().map(plan).collect();
    let conditions = Conditions {
        seeds: args.seeds,
        secs: args.secs,
        workloads: plans.iter().map(|plan| plan.workload.clone()).collect(),
        nemesis,
        member: digest(&with_bugs.join(MEMBER))?,
        suite: digest(&own)?,
    };
    let without = Conditions { member: digest(&clean.join(MEMBER))?, ..conditions.clone() };
    let of = |bug: &str| if bug == CLEAN { without.clone() } else { conditions.clone() };
    let (mut matrix, forgotten) = Matrix::open(&args.out, of)?;
    if forgotten > 0 {
        println!(
            "{forgotten} rows were measured of other programs or under another plan, and do not count"
        );
    }
    let begun = Instant::now();
    let budget = args.budget_mins.map(|mins| Duration::from_secs(mins * 60));
    let over = || budget.is_some_and(|budget| begun.elapsed() >= budget);
    // The build without a bug last: a bug that nobody finds is known early.
    for bug in bugs.iter().map(String::as_str).chain([CLEAN]).filter(|bug| args.wants(bug)) {
        if matrix.knows(bug) {
            continue;
        }
        let bin = if bug == CLEAN { &clean } else { &with_bugs };
        let row = hunted(args, Row::new(bug, of(bug)), bin, &plans, &over)?;
        println!("{}", row.line());
        matrix.add(row)?;
    }
    println!("\n{}", matrix.table());
    println!("matrix: {}", matrix.write()?.display());
    Ok(matrix)
}

/// The bugs that the members in `bin` can have.
fn bugs_of(bin: &Path) -> Result<Vec<String>> {
    let build = "cargo build -p rollout-coordinator --features seeded-bugs --target-dir \
                 \"${CARGO_TARGET_DIR:-target}/seeded-bugs\"";
    let asked = Command::new(bin.join(MEMBER)).arg("seeded-bugs").output();
    let told = asked.with_context(|| format!("no members in {}: {build}", bin.display()))?;
    let bugs: Vec<String> =
        String::from_utf8_lossy(&told.stdout).lines().map(str::to_owned).collect();
    if !told.status.success() || bugs.is_empty() {
        bail!("the members in {} have no bugs: {build}", bin.display());
    }
    Ok(bugs)
}

/// A folder with the members of one build and all other programs of another: a run looks for them
/// in one place.
fn beside_the_rest(folder: &Path, members: &Path, rest: &Path) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder)?;
    }
    std::fs::create_dir_all(folder)?;
    for entry in std::fs::read_dir(rest)? {
        let name = entry?.file_name();
        let program = name.to_str().unwrap_or_default();
        let ours = program.starts_with("rollout") || program.ends_with("preload.so");
        if ours && !program.ends_with(".d") {
            let from = if program == MEMBER { members } else { rest };
            symlink(from.canonicalize()?.join(program), folder.join(program))?;
        }
    }
    Ok(folder.canonicalize()?)
}

/// Runs every seed until one finds the bug; the clean build has to go through all of them.
fn hunted(
    args: &Args,
    mut row: Row,
    bin: &Path,
    plans: &[Plan],
    over: &impl Fn() -> bool,
) -> Result<Row> {
    let begun = Instant::now();
    let bug = row.bug.clone();
    for seed in 1..=args.seeds {
        for plan in plans {
            if over() {
                row.cut = true;
                return Ok(row);
            }
            let found = one(args, &bug, bin, plan, seed)?;
            row.runs += 1;
            row.secs = begun.elapsed().as_secs();
            println!("{bug}, seed {seed}, {}: {}", plan.workload, found.text());
            let alarm = matches!(found, Outcome::Violation(_));
            row.broken += u64::from(matches!(found, Outcome::Broken(_)));
            row.unknown += u64::from(matches!(found, Outcome::Unknown(_)));
            if let Outcome::Violation(alarms) = found {
                row.found = Some(Found { seed, workload: plan.workload.clone(), alarms });
            }
            if alarm {
                return Ok(row);
            }
        }
    }
    Ok(row)
}

fn one(args: &Args, bug: &str, bin: &Path, plan: &Plan, seed: u64) -> Result<Outcome> {
    let folder = if bug == CLEAN { "clean" } else { bug };
    let name = format!("{folder}-{}-{seed}", plan.workload);
    let (dir, log) = (args.out.join(&name), args.out.join(format!("{name}.log")));
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("what an interrupted run left")?;
    }
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--workload", &plan.workload, "--nemesis", &plan.nemesis]);
    command.args(["--seed", &seed.to_string(), "--secs", &args.secs.to_string(), "--keep"]);
    command.arg("--dir").arg(&dir).arg("--bin").arg(bin).env_remove(BUG);
    if bug != CLEAN {
        command.env(BUG, bug);
    }
    let mut process = Process::start(command, &log)?;
    let limit = Instant::now() + Duration::from_secs(args.secs) + BESIDE;
    let ended = loop {
        match process.ended() {
            Some(ended) => break ended.code(),
            None if Instant::now() > limit => break None,
            None => std::thread::sleep(Duration::from_millis(200)), // The poll; the end decides.
        }
    };
    drop(process);
    let outcome = Outcome::of(ended, &dir)?;
    if bug != CLEAN {
        remove_data(&dir);
    }
    Ok(outcome)
}

/// The members' data is of no use for a bug that is known, and large.
fn remove_data(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if let Err(error) = std::fs::remove_dir_all(&path) {
            eprintln!("{} stays: {error}", path.display());
        }
    }
}
