//! Owns: how test programs and checks run beside each other, and how each is judged.
//!
//! Invariant: a test program that cannot be started, dies, or prints no result is a failure. Each piece has ports that
//! no piece beside it has.
//! Absent: which pieces there are; that is `test`.

use crate::libtest::{Counts, Output};
use crate::report::Report;
use crate::run::{CommandOutcome, watched, watched_beside_others};
use anyhow::Result;
use std::collections::VecDeque;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// As many as have ports below those that Linux assigns.
pub(crate) const LANES_MAX: u16 = 3;

/// The first port of a piece that runs beside another one, and how many ports each has: `rollout_tests::free_addr`.
const FIRST_PORT: &str = "ROLLOUT_TEST_FIRST_PORT";
const PORTS_FROM: u16 = 10_000;
const PORTS_OF_LANE: u16 = 7_000;

/// The label of the doc tests of all crates.
const DOC_TESTS: &str = "doc tests";

/// A command that runs in a lane.
pub(crate) struct Piece<'a> {
    /// Its name in the report and before the lines that it prints.
    pub(crate) label: String,
    pub(crate) judge: Judge<'a>,
    pub(crate) command: Command,
    pub(crate) limit: Duration,
}

/// What decides whether a piece passed.
#[derive(Clone, Copy)]
pub(crate) enum Judge<'a> {
    /// The results that the test program with this label prints, and its exit status.
    Tests(&'a str),
    /// The exit status alone.
    ExitStatus,
}

/// Pieces of which none runs beside another.
pub(crate) type Sequence<'a> = Vec<Piece<'a>>;

/// Runs the sequences: in each lane one at a time, in their order. Returns how many tests they executed.
pub(crate) fn run(work: VecDeque<Sequence<'_>>, lanes: u16, report: &mut Report) -> u64 {
    // What a piece prints when none runs beside it needs no label, and no whole lines.
    let beside = lanes > 1 && work.len() > 1;
    let report = Mutex::new(report);
    let run_piece = |lane: u16, Piece { label, judge, mut command, limit }: Piece<'_>| {
        command.env(FIRST_PORT, (PORTS_FROM + lane * PORTS_OF_LANE).to_string());
        println!("-- {label}");
        let observed = Observed::of(|on_line| match beside {
            true => watched_beside_others(&label, command, limit, on_line),
            false => watched(command, limit, on_line),
        });
        observed.judge(judge, &label, &mut lock(&report))
    };
    let run = |lane: u16, sequence: Sequence<'_>| {
        sequence.into_iter().map(|piece| run_piece(lane, piece)).sum()
    };
    let Shared { executed, panicked } = share(work, lanes, run);
    if panicked > 0 {
        let what = "lanes of tests panicked: what they ran has no result";
        lock(&report).fail(format!("{panicked} {what}"));
    }
    executed
}

/// Runs the doc tests of all crates.
pub(crate) fn run_doc_tests(command: Command, limit: Duration, report: &mut Report) {
    observe(DOC_TESTS, command, limit, report);
}

/// Runs a command that prints what test programs print, and judges it. Returns how many tests it executed.
fn observe(program: &str, command: Command, limit: Duration, report: &mut Report) -> u64 {
    println!("-- {program}");
    let observed = Observed::of(|on_line| watched(command, limit, on_line));
    observed.judge(Judge::Tests(program), program, report)
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

    /// Adds it to the report under the label. Returns how many tests were executed.
    fn judge(self, judge: Judge<'_>, label: &str, report: &mut Report) -> u64 {
        match judge {
            Judge::Tests(program) => self.judge_tests(program, label, report),
            Judge::ExitStatus => {
                report.ended(label, self.took, self.problem, self.output.not_run);
                0
            }
        }
    }

    fn judge_tests(self, program: &str, label: &str, report: &mut Report) -> u64 {
        let Self { output, took, problem } = self;
        // A test may start its own program again, which then prints a result too. The program's own is the last.
        let counts = match program {
            DOC_TESTS => sum(&output.results),
            _ => output.results.last().copied().unwrap_or_default(),
        };
        report.stage(label, took, counts.to_string());
        for failure in failures(program, label, problem, &output) {
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

/// What failed of a program, by its exit status first. A test is named so that a filter selects it.
fn failures(program: &str, label: &str, problem: Option<String>, output: &Output) -> Vec<String> {
    let last = || match &output.last_begun {
        Some(test) => format!("; the test that began last is {test}"),
        None => String::new(),
    };
    match problem {
        Some(problem) if output.failures.is_empty() => {
            vec![format!("{label}: {problem}{}", last())]
        }
        Some(_) => output.failures.iter().map(|test| format!("{program}::{test}")).collect(),
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
        let died = failures("cluster", "cluster::a", Some("signal: 6".into()), &output);
        assert_eq!(died, ["cluster::a: signal: 6; the test that began last is a::b"]);
        FAILED.lines().for_each(|line| output.line(line));
        assert_eq!(
            failures("cluster", "cluster::a", Some("exit status: 101".into()), &output),
            ["cluster::a::b"]
        );
        // Another program's list, which a test printed: this one passed.
        assert!(failures("cluster", "cluster::a", None, &output).is_empty());
    }
}
