//! Owns: reading the output of a Rust test program: counts, failed tests, and what was not run.
//!
//! Invariant: it is a help for the reader only. The exit status decides whether a program passed; one that printed no
//! result at all did not.
//! Absent: printing.

use std::fmt;

/// How many lines that begin with `NOT RUN` are kept of one program.
const NOT_RUN_MAX: usize = 200;
const NOT_RUN: &str = "NOT RUN: ";

/// Counts of one result line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { passed, failed, ignored } = self;
        write!(f, "{passed} passed, {failed} failed, {ignored} ignored")
    }
}

/// What the output says so far.
#[derive(Debug, Default)]
pub(crate) struct Output {
    /// One for each result line. Doc tests print one for each crate.
    pub(crate) results: Vec<Counts>,
    pub(crate) failures: Vec<String>,
    pub(crate) not_run: Vec<String>,
    /// The test that began last, where the program names each at its begin.
    pub(crate) last_begun: Option<String>,
    /// The names below `failures:`, which may still turn out to be the outputs of the tests.
    listed: Option<Vec<String>>,
}

impl Output {
    /// Reads the next line.
    pub(crate) fn line(&mut self, line: &str) {
        if let Some(reason) = not_run(line)
            && self.not_run.len() < NOT_RUN_MAX
        {
            self.not_run.push(reason.to_owned());
        }
        if line == "failures:" {
            self.listed = Some(Vec::new());
        } else if let Some(counts) = result(line) {
            self.failures.extend(self.listed.take().unwrap_or_default());
            self.results.push(counts);
        } else if let Some(name) = begun(line) {
            self.last_begun = Some(name.to_owned());
        } else if let Some(listed) = &mut self.listed {
            match line.strip_prefix("    ") {
                Some(name) => listed.push(name.to_owned()),
                None if line.is_empty() => {}
                // The output of a failed test. The list follows it.
                None => self.listed = None,
            }
        }
    }
}

/// The reason in a line that says what was not run.
pub(crate) fn not_run(line: &str) -> Option<&str> {
    // `test NAME ... ` may stand before it.
    let begins = line.starts_with(NOT_RUN) || begun(line).is_some();
    line.find(NOT_RUN).filter(|_| begins).map(|at| &line[at + NOT_RUN.len()..])
}

/// The test in a line of the shape `test NAME ...`.
fn begun(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("test ")?.split_once(" ...")?;
    Some(name)
}

/// The counts in a line of the shape `test result: ok. 1 passed; 0 failed; 2 ignored; …`.
fn result(line: &str) -> Option<Counts> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut found = Counts::default();
    for part in counts.split("; ") {
        let (number, what) = part.split_once(' ')?;
        let place = match what {
            "passed" => &mut found.passed,
            "failed" => &mut found.failed,
            "ignored" => &mut found.ignored,
            _ => continue,
        };
        *place = number.parse().ok()?;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Output {
        let mut output = Output::default();
        text.lines().for_each(|line| output.line(line));
        output
    }

    #[test]
    fn failed_tests_are_those_of_the_last_list() {
        let output = read(
            "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\nfailures:\n\n---- a::c stdout ----\n\
             \n    no::test of the list\n\n\nfailures:\n    a::c\n    a::d\n\n\
             test result: FAILED. 1 passed; 2 failed; 4 ignored; 0 measured; 7 filtered out; finished in 0.01s\n",
        );
        assert_eq!(output.failures, ["a::c", "a::d"]);
        assert_eq!(output.results, [Counts { passed: 1, failed: 2, ignored: 4 }]);
    }

    #[test]
    fn the_list_of_a_program_that_captures_nothing_is_read_too() {
        let output = read(
            "test x::y ... it says something\nFAILED\n\nfailures:\n\nfailures:\n    x::y\n\n\
             test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n",
        );
        assert_eq!(output.failures, ["x::y"]);
        assert_eq!(output.last_begun.as_deref(), Some("x::y"));
    }

    #[test]
    fn a_program_that_dies_has_no_result_and_names_the_test_that_began_last() {
        let output = read("running 2 tests\ntest a ... ok\ntest b ... ");
        assert!(output.results.is_empty());
        assert_eq!(output.last_begun.as_deref(), Some("b"));
    }

    #[test]
    fn each_crate_of_doc_tests_counts() {
        let ok = "test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0s\n";
        let failed = "failures:\n    src/lib.rs - f (line 5)\n\n\
                      test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let output = read(&format!("{ok}{failed}{ok}"));
        assert_eq!(output.results.len(), 3);
        assert_eq!(output.failures, ["src/lib.rs - f (line 5)"]);
    }

    #[test]
    fn lines_about_tests_that_were_not_run_are_kept() {
        let output =
            read("NOT RUN: a: no root\ntest b ... NOT RUN: b: no disk\nit says NOT RUN: c\n");
        assert_eq!(output.not_run, ["a: no root", "b: no disk"]);
    }
}
