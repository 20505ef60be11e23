//! `rollout-jepsen bugs`: measures which seeded bugs the suite finds.
//!
//! *Invariant:* the clean build runs every workload, fault and seed that a bug runs, each run in a process of its
//! own. This module knows nothing of what a bug does, except for `APART`. A bug that no run found is reported as not
//! found, and a run that could not be made finds nothing.

mod matrix;

use crate::nemesis::Family;
use crate::process::Process;
use crate::run::SECS_MAX;
use crate::workload::WorkloadName;
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use matrix::{Conditions, Detection, Matrix, Outcome, Row, digest};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// The environment variable that selects the bug in a member built with seeded bugs.
const BUG: &str = "ROLLOUT_SEEDED_BUG";
/// The program of a member.
const MEMBER: &str = "rollout-coordinator";
/// Time for starting, healing, the last reads and the judge, in addition to the run itself.
const BESIDE: Duration = Duration::from_secs(600);
/// Bugs that no family of `all` reaches, with the workload and the family that reach them. These families change the
/// timings of members, so they cannot be mixed with the others.
const APART: &[(&str, WorkloadName, Family)] =
    &[("lease-forgotten-on-restart", WorkloadName::Store, Family::Lease)];
/// The name under which the build without any bug stands in the matrix.
const CLEAN: &str = "(clean build)";

/// Measure the suite: which seeded bugs it finds, and that it finds nothing without one.
///
/// Exit status, for the requested bugs: 0 every bug was found and the clean build raised no alarm, 1 the clean build
/// raised one, 2 a bug was not found, or a run of the clean build was no pass; 64 wrong usage, 70 the measurement
/// failed.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of seeds to try for each bug
    #[arg(long, default_value_t = 5)]
    pub seeds: u64,
    /// Seconds that each run injects faults
    #[arg(long, default_value_t = 90, value_parser = clap::value_parser!(u64).range(..=SECS_MAX))]
    pub secs: u64,
    /// Workloads to run one after another with each seed [default: all, but only store for
    /// lease-forgotten-on-restart]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub workload: Vec<WorkloadName>,
    /// Fault families to inject, mixed; without this option and --workload, only lease for lease-forgotten-on-restart
    #[arg(long, value_enum, value_delimiter = ',', default_value = "all")]
    pub nemesis: Vec<Family>,
    /// Measure only these bugs
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Start no run after this many minutes
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=SECS_MAX / 60))]
    pub budget_mins: Option<u64>,
    /// Directory for all output; results in it of an earlier call with the same programs and plan are reused
    #[arg(long)]
    pub out: PathBuf,
    /// Directory of the member built with bugs [default: `../seeded-bugs/debug` beside this program]
    #[arg(long)]
    pub bin: Option<PathBuf>,
    /// Directory of the member built without bugs [default: the directory of this program]
    #[arg(long)]
    pub clean_bin: Option<PathBuf>,
}

impl Args {
    /// Whether a bug, or the clean build, was requested.
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}

/// Measures, and prints the results.
pub fn run(args: &Args) -> ExitCode {
    match measured(args) {
        Ok(matrix) => ExitCode::from(matrix.status(|bug| args.wants(bug))),
        Err(error) => {
            eprintln!("rollout-jepsen: {error:#}");
            ExitCode::from(crate::run::BROKEN)
        }
    }
}

/// One combination of workload and faults.
struct Plan {
    /// How rows and folders name it.
    label: String,
    workload: String,
    nemesis: String,
}

/// The plans to run with each seed for a bug, or for the clean build.
fn plans(args: &Args, bug: &str) -> Vec<Plan> {
    let default = args.workload.is_empty() && args.nemesis == [Family::All];
    let applies = |of: &str| default && (bug == of || bug == CLEAN);
    let apart = APART.iter().filter(|(of, ..)| applies(of)).map(|(_, workload, family)| {
        let (workload, nemesis) = (workload.name().to_owned(), family.name());
        Plan { label: format!("{workload}-{nemesis}"), workload, nemesis }
    });
    let apart: Vec<Plan> = apart.collect();
    if bug != CLEAN && !apart.is_empty() {
        return apart;
    }
    let families: Vec<String> = Family::expanded(&args.nemesis).iter().map(name).collect();
    let nemesis = Family::listed(&families);
    let mixed = names(&args.workload).into_iter().map(|workload| Plan {
        label: workload.clone(),
        workload,
        nemesis: nemesis.clone(),
    });
    mixed.chain(apart).collect()
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
    let folder = own.parent().map(Path::to_owned).unwrap_or_default();
    let clean = args.clean_bin.clone().unwrap_or_else(|| folder.clone());
    let with_bugs = args.bin.clone().unwrap_or_else(|| folder.join("../seeded-bugs/debug"));
    let bugs = bugs_of(&with_bugs)?;
    std::fs::create_dir_all(&args.out)?;
    let with_bugs = beside_the_rest(&args.out.join("bin"), &with_bugs, &clean)?;
    println!("members with bugs:    {}", with_bugs.display());
    println!("members without bugs: {}", clean.display());
    if let Some(unknown) = args.only.iter().find(|name| !bugs.contains(name) && *name != CLEAN) {
        bail!("unknown bug {unknown}; known bugs: {}", bugs.join(", "));
    }
    let (buggy, sound) = (digest(&with_bugs.join(MEMBER))?, digest(&clean.join(MEMBER))?);
    let suite = digest(&own)?;
    let of = |bug: &str| {
        let plans = plans(args, bug);
        Conditions {
            seeds: args.seeds,
            secs: args.secs,
            workloads: plans.iter().map(|plan| plan.label.clone()).collect(),
            // A plan with other faults says so in its label.
            nemesis: plans.first().map_or_else(String::new, |plan| plan.nemesis.clone()),
            member: if bug == CLEAN { sound.clone() } else { buggy.clone() },
            suite: suite.clone(),
        }
    };
    let (mut matrix, forgotten) = Matrix::open(&args.out, of)?;
    if forgotten > 0 {
        println!(
            "{forgotten} rows were measured with other programs or another plan, and do not count"
        );
    }
    let begun = Instant::now();
    let budget = args.budget_mins.map(|mins| Duration::from_secs(mins * 60));
    let over = || budget.is_some_and(|budget| begun.elapsed() >= budget);
    // The clean build comes last, so that a bug that no run finds is reported early.
    for bug in bugs.iter().map(String::as_str).chain([CLEAN]).filter(|bug| args.wants(bug)) {
        if matrix.is_decided(bug) {
            continue;
        }
        let bin = if bug == CLEAN { &clean } else { &with_bugs };
        let row = hunted(args, Row::new(bug, of(bug)), bin, &plans(args, bug), &over)?;
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
    let output = Command::new(bin.join(MEMBER)).arg("seeded-bugs").output();
    let output = output.with_context(|| format!("no members in {}: {build}", bin.display()))?;
    let bugs: Vec<String> =
        String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    if !output.status.success() || bugs.is_empty() {
        bail!("the members in {} have no bugs: {build}", bin.display());
    }
    Ok(bugs)
}

/// Makes a folder with the members of one build and all other programs of another, because a run takes all programs
/// from one folder.
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

/// Runs every seed until one finds the bug; the clean build must run all of them.
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
            println!("{bug}, seed {seed}, {}: {}", plan.label, found.text());
            let alarm = matches!(found, Outcome::Violation(_));
            row.broken += u64::from(matches!(found, Outcome::Broken(_)));
            row.unknown += u64::from(matches!(found, Outcome::Unknown(_)));
            if let Outcome::Violation(alarms) = found {
                row.found = Some(Detection { seed, workload: plan.label.clone(), alarms });
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
    let name = format!("{folder}-{}-{seed}", plan.label);
    let (dir, log) = (args.out.join(&name), args.out.join(format!("{name}.log")));
    if dir.exists() {
        std::fs::remove_dir_all(&dir).context("cannot remove the files of an interrupted run")?;
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

/// Removes the members' data, which is large and useless for a known bug.
fn remove_data(dir: &Path) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        if let Err(error) = std::fs::remove_dir_all(&path) {
            eprintln!("{} stays: {error}", path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(workload: &[WorkloadName], nemesis: &[Family]) -> Args {
        Args {
            seeds: 5,
            secs: 90,
            workload: workload.to_vec(),
            nemesis: nemesis.to_vec(),
            only: Vec::new(),
            budget_mins: None,
            out: PathBuf::new(),
            bin: None,
            clean_bin: None,
        }
    }

    fn labels(args: &Args, bug: &str) -> Vec<String> {
        plans(args, bug).into_iter().map(|plan| plan.label).collect()
    }

    #[test]
    fn a_bug_that_a_family_apart_reaches_meets_that_alone_and_the_clean_build_meets_all() {
        let default = args(&[], &[Family::All]);
        let mixed: Vec<String> = WorkloadName::ALL.iter().map(|one| one.name().into()).collect();
        assert_eq!(labels(&default, "stale-read"), mixed);
        let apart = plans(&default, "lease-forgotten-on-restart");
        let [only] = &apart[..] else { panic!("{} plans", apart.len()) };
        assert_eq!((&*only.workload, &*only.nemesis), ("store", "lease"));
        let all: Vec<String> = mixed.iter().cloned().chain([only.label.clone()]).collect();
        assert_eq!(labels(&default, CLEAN), all);
    }

    #[test]
    fn workloads_and_nemeses_selected_by_name_apply_to_every_bug() {
        for bug in ["stale-read", "lease-forgotten-on-restart", CLEAN] {
            let steal = args(&[WorkloadName::Steal], &[Family::All]);
            assert_eq!(labels(&steal, bug), ["steal"]);
            let kill = args(&[], &[Family::Kill]);
            assert!(plans(&kill, bug).iter().all(|plan| plan.nemesis == "kill"), "{bug}");
            assert_eq!(plans(&kill, bug).len(), WorkloadName::ALL.len());
        }
    }
}
