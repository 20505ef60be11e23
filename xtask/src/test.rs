//! Owns: `cargo xtask test`: the order of the stages, and how each test program is run.
//!
//! Invariant: everything is built once, before anything runs, and a failure keeps nothing else from running. A test
//! program that cannot be started, dies, or prints no result is a failure.
//! Absent: the tests. Which ones filters select is in `filters`.

use crate::artifacts::{self, Built, RELEASED, TestProgram};
use crate::checks::{self, Check};
use crate::filters::{self, Listed, Selected};
use crate::libtest::{Counts, Output};
use crate::report::Report;
use crate::run::{CommandOutcome, watched, watched_beside_others};
use crate::seeded;
use crate::workspace::Workspace;
use anyhow::{Context, Result, ensure};
use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for a program of unit and integration tests, and for all doc tests.
const UNIT_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Time for a program whose tests start real processes.
const PROCESS_LIMIT: Duration = Duration::from_secs(2 * 60 * 60);

/// The label of the doc tests of all crates.
const DOC_TESTS: &str = "doc tests";

/// The first port of a program that runs beside another one, and how many ports each has: `rollout_tests::free_addr`.
const FIRST_PORT: &str = "ROLLOUT_TEST_FIRST_PORT";
const PORTS_FROM: u16 = 10_000;
const PORTS_OF_LANE: u16 = 11_000;

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
    /// How many test programs run at a time: many wait more than they compute, or use one core
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=2))]
    lanes: u16,
    /// List the selected tests and run none
    #[arg(long)]
    list: bool,
    /// Arguments for each test program
    #[arg(last = true, value_name = "ARGUMENT")]
    arguments: Vec<String>,
}

impl TestArgs {
    fn runs_everything(&self) -> bool {
        !self.unit && !self.process && !self.checks
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
    let pieces = runs.pieces(taken.iter().copied().zip(&selected), &mut report);
    let executed = in_lanes(pieces, args.lanes, &mut report);
    // Not beside the lanes: cargo holds the lock of the target directory meanwhile, and some tests build.
    if args.doc_tests() {
        runs.doc_tests(&mut report);
    }
    // One at a time: they share folders, ports and the package manager.
    if args.runs_checks() {
        for check in Check::ALL {
            checks::stage(workspace, check, &built.programs, &mut report);
        }
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

/// How programs are run.
struct Runs<'a> {
    workspace: &'a Workspace,
    built: &'a Built<'a>,
    arguments: &'a [String],
}

impl Runs<'_> {
    /// What is selected of each program: those that start processes first, because they take longest.
    fn pieces<'p>(
        &self,
        programs: impl Iterator<Item = (&'p TestProgram<'p>, &'p Selected)>,
        report: &mut Report,
    ) -> VecDeque<Piece<'p>> {
        let (mut processes, mut units) = (VecDeque::new(), VecDeque::new());
        for (program, selected) in programs {
            let Some(filters) = selected.filters() else { continue };
            let (pieces, limit) = match program.starts_processes() {
                true => (&mut processes, PROCESS_LIMIT),
                false => (&mut units, UNIT_LIMIT),
            };
            match self.command(program, filters) {
                Ok(command) => {
                    let label = program.label.as_str();
                    pieces.push_back(Piece { label, command, limit });
                }
                Err(error) => report.fail(format!("{}: {error:#}", program.label)),
            }
        }
        processes.append(&mut units);
        processes
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
        observe(DOC_TESTS, command, UNIT_LIMIT, report);
    }
}

/// A test program that runs in a lane.
struct Piece<'a> {
    label: &'a str,
    command: Command,
    limit: Duration,
}

/// Runs the pieces: in each lane one at a time, in their order. Returns how many tests they executed.
fn in_lanes(pieces: VecDeque<Piece<'_>>, lanes: u16, report: &mut Report) -> u64 {
    // What a piece prints when none runs beside it needs no label, and no whole lines.
    let beside = lanes > 1 && pieces.len() > 1;
    let report = Mutex::new(report);
    let run = |lane: u16, Piece { label, mut command, limit }: Piece<'_>| {
        command.env(FIRST_PORT, (PORTS_FROM + lane * PORTS_OF_LANE).to_string());
        println!("-- {label}");
        let observed = Observed::of(|on_line| match beside {
            true => watched_beside_others(label, command, limit, on_line),
            false => watched(command, limit, on_line),
        });
        observed.judge(label, &mut lock(&report))
    };
    let Shared { executed, panicked } = share(pieces, lanes, run);
    if panicked > 0 {
        let what = "lanes of tests panicked: what they ran has no result";
        lock(&report).fail(format!("{panicked} {what}"));
    }
    executed
}

/// Runs a command that prints what test programs print, and judges it. Returns how many tests it executed.
fn observe(label: &str, command: Command, limit: Duration, report: &mut Report) -> u64 {
    println!("-- {label}");
    Observed::of(|on_line| watched(command, limit, on_line)).judge(label, report)
}

/// What a test program printed, and how it ended.
struct Observed {
    output: Output,
    took: Duration,
    problem: Option<String>,
}

impl Observed {
    fn of(run: impl FnOnce(&mut dyn FnMut(&str)) -> Result<CommandOutcome>) -> Self {
        let begun = Instant::now();
        let mut output = Output::default();
        let problem = match run(&mut |line| output.line(line)) {
            Ok(ended) => ended.problem(),
            Err(error) => Some(format!("{error:#}")),
        };
        Self { output, took: begun.elapsed(), problem }
    }

    /// Adds it to the report. Returns how many tests were executed.
    fn judge(self, label: &str, report: &mut Report) -> u64 {
        let Self { output, took, problem } = self;
        // A test may start its own program again, which then prints a result too. The program's own is the last.
        let counts = match label {
            DOC_TESTS => sum(&output.results),
            _ => output.results.last().copied().unwrap_or_default(),
        };
        report.stage(label, took, counts.to_string());
        for failure in failures(label, problem, &output) {
            report.fail(failure);
        }
        for reason in output.not_run {
            report.not_run(reason);
        }
        counts.passed + counts.failed
    }
}

/// What the lanes did.
struct Shared {
    executed: u64,
    /// Lanes that ended before their work did.
    panicked: usize,
}

/// Does the work in so many lanes: each takes the next piece when it has done one.
fn share<W: Send>(work: VecDeque<W>, lanes: u16, run: impl Fn(u16, W) -> u64 + Sync) -> Shared {
    let work = Mutex::new(work);
    let run_lane = |lane: u16| {
        let mut executed = 0;
        loop {
            let next = lock(&work).pop_front();
            let Some(piece) = next else { return executed };
            executed += run(lane, piece);
        }
    };
    let run_lane = &run_lane;
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..lanes).map(|lane| scope.spawn(move || run_lane(lane))).collect();
        let ended: Vec<_> = running.into_iter().map(|lane| lane.join()).collect();
        let panicked = ended.iter().filter(|lane| lane.is_err()).count();
        Shared { executed: ended.into_iter().flatten().sum(), panicked }
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sum(results: &[Counts]) -> Counts {
    results.iter().fold(Counts::default(), |sum, of| Counts {
        passed: sum.passed + of.passed,
        failed: sum.failed + of.failed,
        ignored: sum.ignored + of.ignored,
    })
}

/// What failed in a program, by its exit status first.
fn failures(label: &str, problem: Option<String>, output: &Output) -> Vec<String> {
    let last = || match &output.last_begun {
        Some(test) => format!("; the test that began last is {test}"),
        None => String::new(),
    };
    match problem {
        Some(problem) if output.failures.is_empty() => {
            vec![format!("{label}: {problem}{}", last())]
        }
        Some(_) => output.failures.iter().map(|test| format!("{label}::{test}")).collect(),
        None if output.results.is_empty() => {
            vec![format!("{label}: it ended without a result{}", last())]
        }
        None => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &str = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";
    const FAILED: &str =
        "failures:\n    a::b\n\ntest result: FAILED. 0 passed; 1 failed; 0 ignored";

    fn observed(script: &str) -> (bool, u64) {
        let mut report = Report::begin("test");
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let executed = observe("program", command, Duration::from_secs(60), &mut report);
        (report.end(), executed)
    }

    #[test]
    fn a_program_passes_only_with_exit_status_0_and_a_result() {
        assert_eq!(observed(&format!("echo '{OK}'")), (true, 1));
        assert_eq!(observed(&format!("echo '{OK}'; exit 1")), (false, 1));
        assert_eq!(observed(&format!("echo '{FAILED}'; exit 101")), (false, 1));
        assert_eq!(observed("exit 0"), (false, 0));
        assert_eq!(observed("echo 'test a::b ... '; kill -ABRT $$"), (false, 0));
    }

    #[test]
    fn a_program_that_cannot_be_started_fails() {
        let mut report = Report::begin("test");
        let command = Command::new("/no/such/program");
        assert_eq!(observe("program", command, Duration::from_secs(60), &mut report), 0);
        assert!(!report.end());
    }

    #[test]
    fn each_piece_of_work_is_done_once_even_if_another_lane_panics() {
        for lanes in [1, 2] {
            let shared = share((1..=9).collect(), lanes, |_, piece: u64| piece);
            assert_eq!((shared.executed, shared.panicked), (45, 0));
        }
        let done = Mutex::new(Vec::new());
        let run = |_: u16, piece: u64| {
            assert_ne!(piece, 3, "a panic of a test");
            lock(&done).push(piece);
            1
        };
        assert_eq!(share((1..=6).collect(), 2, run).panicked, 1);
        let mut done = lock(&done).clone();
        done.sort_unstable();
        assert_eq!(done, [1, 2, 4, 5, 6]);
    }

    #[test]
    fn a_failure_names_the_test_or_else_the_one_that_began_last() {
        let mut output = Output::default();
        output.line("test a::b ... ");
        let died = failures("cluster", Some("signal: 6".into()), &output);
        assert_eq!(died, ["cluster: signal: 6; the test that began last is a::b"]);
        FAILED.lines().for_each(|line| output.line(line));
        assert_eq!(
            failures("cluster", Some("exit status: 101".into()), &output),
            ["cluster::a::b"]
        );
        // Another program's list, which a test printed: this one passed.
        assert!(failures("cluster", None, &output).is_empty());
    }
}
