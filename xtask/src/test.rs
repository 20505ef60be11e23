//! Owns: `cargo xtask test`: the order of the stages, and into which pieces the test programs are divided.
//!
//! Invariant: everything is built once, before anything runs, and a failure keeps nothing else from running.
//! Absent: the tests. Which ones filters select is in `filters`; how a piece is run and judged is in `lanes`.

use crate::artifacts::{self, Built, RELEASED, TestProgram};
use crate::checks;
use crate::filters::{self, Listed, Selected};
use crate::lanes::{self, Judge, LANES_MAX, Piece, Sequence};
use crate::report::Report;
use crate::seeded;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::cmp::Reverse;
use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Time for a program of unit and integration tests, and for all doc tests.
const UNIT_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Time for a program whose tests start real processes.
const PROCESS_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// Lanes for programs that compute, and for modules that measure: with three, some failed on two cores.
const LANES: u16 = 2;
/// Lanes for the other modules that start processes: in two of them, half of the time of two cores is unused.
const WAITING_LANES: u16 = LANES_MAX;

/// Pieces with few tests, or of no known number, that take most of a minute or longer on two cores. They begin first,
/// because a long piece that begins last would leave the other lanes without work.
const LONG: [&str; 12] = [
    "batch::fleets",
    "batch::soak",
    "batch::ten_runs",
    "batch::worker_deaths",
    "cluster::long_outage",
    "cluster::membership",
    "cluster::rolling_upgrade",
    "rollout-ledger/model",
    "rollout-ledger/behavior",
    "rollout-raft/members",
    "rollout-ctl/batch",
    "rollout-jepsen/run",
];

/// Modules whose tests compare times or rates with a limit, or need an exact step: a third lane would disturb them.
const MEASURING: [&str; 12] = [
    "batch::fleets",
    "batch::ten_runs",
    "cluster::clocks",
    "cluster::deposed_leaders",
    "cluster::fencing",
    "cluster::latency",
    "cluster::membership",
    "cluster::rolling_restart",
    "edge::disk",
    "operator::benches",
    "security::revoked_certificates",
    "training::ranks_and_rounds",
];

/// Where the process tests find the programs.
const BIN_DIR: &str = "ROLLOUT_BIN_DIR";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Without --unit, --process and --checks all three parts run. FILTER leaves out doc tests and \
                        checks.\nArguments after `--` go to each test program, such as --include-ignored."
)]
pub(crate) struct TestArgs {
    /// Run only these tests: PROGRAM, PROGRAM::NAME or NAME; a crate's name selects all of its programs
    #[arg(value_name = "FILTER")]
    filters: Vec<String>,
    /// Run the unit, integration and doc tests of the crates
    #[arg(long)]
    unit: bool,
    /// Run the tests that start real processes
    #[arg(long)]
    process: bool,
    /// Run the checks of deploy/, of the pages and guides, and of preflight
    #[arg(long, conflicts_with = "filters")]
    checks: bool,
    /// Also build the tests behind these features of rollout-tests: torch, vllm
    #[arg(long, value_name = "FEATURE", value_delimiter = ',')]
    features: Vec<String>,
    /// How many test programs run at a time [default: 2, but 3 of the modules that wait more than they compute]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(LANES_MAX))
    )]
    lanes: Option<u16>,
    /// List the selected tests and run none
    #[arg(long)]
    list: bool,
    /// Build everything, print the label and the path of each test program, and run none
    #[arg(long, conflicts_with_all = ["filters", "list"])]
    no_run: bool,
    /// Arguments for each test program
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

impl TestArgs {
    fn runs_everything(&self) -> bool {
        !self.unit && !self.process && !self.checks
    }

    /// How many test programs run at a time.
    fn lanes(&self) -> u16 {
        self.lanes.unwrap_or(LANES)
    }

    /// The same for those that neither measure nor compute.
    fn waiting_lanes(&self) -> u16 {
        self.lanes.unwrap_or(WAITING_LANES)
    }

    fn takes(&self, program: &TestProgram<'_>) -> bool {
        self.runs_everything() || if program.starts_processes() { self.process } else { self.unit }
    }

    fn doc_tests(&self) -> bool {
        self.filters.is_empty() && (self.unit || self.runs_everything())
    }

    fn runs_checks(&self) -> bool {
        self.filters.is_empty() && (self.checks || self.runs_everything())
    }
}

/// Builds, then runs what the arguments select. Returns whether everything passed.
///
/// # Errors
/// When a filter selects no test.
pub(crate) fn run(workspace: &Workspace, args: &TestArgs) -> Result<bool> {
    let mut report = Report::begin("test");
    let built = report.try_stage("build", || artifacts::everything(workspace, &args.features));
    let Some(built) = built else { return Ok(report.end()) };
    let taken: Vec<&TestProgram<'_>> =
        built.tests.iter().filter(|program| args.takes(program)).collect();
    if args.no_run {
        taken.iter().for_each(|program| println!("{}\t{}", program.label, program.path.display()));
        return Ok(true);
    }
    let selected = select(workspace, &taken, args)?;
    if args.list {
        return Ok(true);
    }
    if args.filters.is_empty() {
        // Clippy sees the code with the seeded bugs only.
        if built.warnings > 0 {
            report.fail(format!("build: the compiler printed {} warnings", built.warnings));
        }
        report.try_stage("no seeded bugs", || {
            seeded::check(&built.programs, &RELEASED, &seeded::names(&workspace.root)?)
        });
    }
    if workspace.commit.is_none() {
        report.not_run("the comparison of the programs' commits: git names none".into());
    }
    let runs = Runs { workspace, built: &built, arguments: &args.arguments };
    let programs = taken.iter().copied().zip(&selected);
    let Pieces { measuring, waiting, mut units } = runs.pieces(programs, args.lanes(), &mut report);
    let mut executed = lanes::run(measuring, args.lanes(), &mut report);
    executed += lanes::run(waiting, args.waiting_lanes(), &mut report);
    // Beside the unit tests, not beside those that start processes: the guides start clusters too.
    if args.runs_checks() {
        units.push_front(checks::all(workspace, &built.programs));
    }
    executed += lanes::run(units, args.lanes(), &mut report);
    // Not beside the lanes: cargo holds the lock of the target directory meanwhile, and some tests build.
    if args.doc_tests() {
        runs.doc_tests(&mut report);
    }
    if !taken.is_empty() && executed == 0 {
        report.fail("no test ran; ignored ones need `-- --include-ignored`".into());
    }
    Ok(report.end())
}

/// What of each program is run. With `--list` it prints the tests.
fn select(
    workspace: &Workspace,
    programs: &[&TestProgram<'_>],
    args: &TestArgs,
) -> Result<Vec<Selected>> {
    if args.filters.is_empty() && !args.list {
        return Ok(vec![Selected::All; programs.len()]);
    }
    let listed: Vec<Listed> =
        programs.iter().map(|program| list(workspace, program)).collect::<Result<_>>()?;
    let selected = filters::select(&listed, &args.filters)?;
    if args.list {
        for (program, selected) in listed.iter().zip(&selected) {
            let Some(names) = selected.filters() else { continue };
            let is_selected = |test: &&String| {
                names.is_empty() || names.iter().any(|name| test.contains(name.as_str()))
            };
            for test in program.tests.iter().filter(is_selected) {
                println!("{}::{test}", program.label);
            }
        }
    }
    Ok(selected)
}

/// Asks a program for its tests.
fn list(workspace: &Workspace, program: &TestProgram<'_>) -> Result<Listed> {
    let label = &program.label;
    let mut command = workspace.test_program(&program.path, program.package)?;
    command.args(["--list", "--format", "terse"]).stdin(Stdio::null());
    let out = command.output().with_context(|| format!("cannot start {label}"))?;
    ensure!(out.status.success(), "{label} does not list its tests: {}", out.status);
    let text = String::from_utf8_lossy(&out.stdout);
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned);
    Ok(Listed {
        label: label.clone(),
        package: program.package.name.clone(),
        tests: tests.collect(),
    })
}

/// What is run, in the order in which it begins.
struct Pieces<'a> {
    measuring: VecDeque<Sequence<'a>>,
    /// Other pieces that start processes.
    waiting: VecDeque<Sequence<'a>>,
    units: VecDeque<Sequence<'a>>,
}

/// How programs are run.
struct Runs<'a> {
    workspace: &'a Workspace,
    built: &'a Built<'a>,
    arguments: &'a [String],
}

impl Runs<'_> {
    /// What is selected of each program: first of those that start processes, then of the others. In several lanes, the
    /// modules of the first are pieces of their own, and those with the most tests come first, after the [`LONG`] ones.
    fn pieces<'p>(
        &self,
        programs: impl Iterator<Item = (&'p TestProgram<'p>, &'p Selected)>,
        lanes: u16,
        report: &mut Report,
    ) -> Pieces<'p> {
        let mut processes: Vec<(usize, Piece<'p>)> = Vec::new();
        let mut units: Vec<Piece<'p>> = Vec::new();
        for (program, selected) in programs {
            let Some(filters) = selected.filters() else { continue };
            let by_module = lanes > 1 && filters.is_empty() && program.starts_processes();
            let pieces = match by_module {
                true => self.modules(program),
                false => self.piece(program, filters).map(|piece| vec![(filters.len(), piece)]),
            };
            match pieces {
                Ok(pieces) if program.starts_processes() => processes.extend(pieces),
                Ok(pieces) => units.extend(pieces.into_iter().map(|(_, piece)| piece)),
                Err(error) => report.fail(format!("{}: {error:#}", program.label)),
            }
        }
        processes.sort_by_key(|(tests, piece)| (!is_long(&piece.label), Reverse(*tests)));
        units.sort_by_key(|piece| !is_long(&piece.label));
        let alone = |piece: Piece<'p>| -> Sequence<'p> { vec![piece] };
        let (measuring, waiting): (Vec<_>, Vec<_>) =
            processes.into_iter().map(|(_, piece)| piece).partition(|piece| measures(&piece.label));
        Pieces {
            measuring: measuring.into_iter().map(alone).collect(),
            waiting: waiting.into_iter().map(alone).collect(),
            units: units.into_iter().map(alone).collect(),
        }
    }

    /// The tests of a program that filters select; all without filters.
    fn piece<'p>(&self, program: &'p TestProgram<'p>, filters: &[String]) -> Result<Piece<'p>> {
        let command = self.command(program, filters)?;
        let limit = if program.starts_processes() { PROCESS_LIMIT } else { UNIT_LIMIT };
        let (label, judge) = (program.label.clone(), Judge::Tests(&program.label));
        Ok(Piece { label, judge, command, limit })
    }

    /// A piece for each module of a program, with the number of its tests.
    fn modules<'p>(&self, program: &'p TestProgram<'p>) -> Result<Vec<(usize, Piece<'p>)>> {
        let modules = by_module(list(self.workspace, program)?.tests);
        let piece = |(module, mut tests): (String, Vec<String>)| {
            let count = tests.len();
            // Without this option, a test's name would also select each test whose name contains it.
            tests.push("--exact".to_owned());
            let piece = self.piece(program, &tests)?;
            Ok((count, Piece { label: format!("{}::{module}", program.label), ..piece }))
        };
        modules.into_iter().map(piece).collect()
    }

    fn command(&self, program: &TestProgram<'_>, filters: &[String]) -> Result<Command> {
        let mut command = self.workspace.test_program(&program.path, program.package)?;
        if program.starts_processes() {
            // What they print shows how far a long test is.
            command.args(["--test-threads=1", "--nocapture"]);
            command.env(BIN_DIR, &self.built.programs);
            self.workspace.name_commit(&mut command);
        }
        command.args(self.arguments).args(filters);
        Ok(command)
    }

    fn doc_tests(&self, report: &mut Report) {
        let command = self.workspace.cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
        lanes::run_doc_tests(command, UNIT_LIMIT, report);
    }
}

fn is_long(label: &str) -> bool {
    LONG.contains(&label)
}

/// Whether it is one of the [`MEASURING`] modules, or has them all.
fn measures(label: &str) -> bool {
    MEASURING.contains(&label) || MEASURING.iter().any(|one| one.split("::").next() == Some(label))
}

/// The tests of each top-level module, in the order of the program's list. A test outside modules is its own.
fn by_module(tests: Vec<String>) -> Vec<(String, Vec<String>)> {
    let mut modules: Vec<(String, Vec<String>)> = Vec::new();
    for test in tests {
        let module = test.split("::").next().unwrap_or(&test).to_owned();
        match modules.last_mut() {
            Some((last, tests)) if *last == module => tests.push(test),
            _ => modules.push((module, vec![test])),
        }
    }
    modules
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn each_named_module_exists() {
        let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/tests");
        let named = LONG.iter().chain(&MEASURING);
        for (program, module) in named.filter_map(|label| label.split_once("::")) {
            let file = tests.join(program).join(format!("{module}.rs"));
            assert!(file.is_file(), "{} is not there", file.display());
        }
    }

    #[test]
    fn each_test_of_a_program_is_in_one_module() {
        let tests = ["resume::a", "resume::deep::b", "resume_late::a", "alone"].map(str::to_owned);
        let modules = by_module(tests.to_vec());
        let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["resume", "resume_late", "alone"]);
        let all: Vec<String> = modules.into_iter().flat_map(|(_, tests)| tests).collect();
        assert_eq!(all, tests);
    }
}
