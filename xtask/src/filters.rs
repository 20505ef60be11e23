//! Owns: which tests of which programs the filters of `cargo xtask test` select.
//!
//! Invariant: a filter that selects nothing is refused, so a misspelled name never looks like a pass.
//! Absent: asking the programs for their tests.

use anyhow::{Result, ensure};

/// A test program and the names of its tests.
pub(crate) struct Listed {
    pub(crate) label: String,
    pub(crate) package: String,
    pub(crate) tests: Vec<String>,
}

/// What of a program is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selected {
    Nothing,
    All,
    /// The tests whose names contain one of these.
    Named(Vec<String>),
}

impl Selected {
    /// The filters that the program itself gets; none if it is not run.
    pub(crate) fn filters(&self) -> Option<&[String]> {
        match self {
            Self::Nothing => None,
            Self::All => Some(&[]),
            Self::Named(names) => Some(names),
        }
    }
}

/// What each program runs. A filter is PROGRAM, PROGRAM::NAME, or NAME, where PROGRAM is a label or a package.
///
/// # Errors
/// When a filter selects no test.
pub(crate) fn select(programs: &[Listed], filters: &[String]) -> Result<Vec<Selected>> {
    if filters.is_empty() {
        return Ok(vec![Selected::All; programs.len()]);
    }
    let mut selected = vec![Selected::Nothing; programs.len()];
    for filter in filters {
        let names_program = programs.iter().any(|program| within(program, filter).is_some());
        let mut found = false;
        for (program, selected) in programs.iter().zip(&mut selected) {
            let name = match names_program {
                true => within(program, filter),
                false => Some(filter.as_str()),
            };
            let Some(name) = name else { continue };
            if program.tests.iter().any(|test| test.contains(name)) {
                found = true;
                add(selected, name);
            }
        }
        ensure!(found, "no test matches {filter}; `cargo xtask test --list` lists all tests");
    }
    Ok(selected)
}

/// The part of the filter behind the program, if the filter names this program; empty for all of its tests.
fn within<'a>(program: &Listed, filter: &'a str) -> Option<&'a str> {
    [&program.label, &program.package].into_iter().find_map(|name| {
        let rest = filter.strip_prefix(name.as_str())?;
        if rest.is_empty() { Some(rest) } else { rest.strip_prefix("::") }
    })
}

fn add(selected: &mut Selected, name: &str) {
    match selected {
        Selected::All => {}
        _ if name.is_empty() => *selected = Selected::All,
        Selected::Nothing => *selected = Selected::Named(vec![name.to_owned()]),
        Selected::Named(names) => names.push(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(label: &str, package: &str, tests: &[&str]) -> Listed {
        let tests = tests.iter().map(|test| (*test).to_owned()).collect();
        Listed { label: label.into(), package: package.into(), tests }
    }

    fn chosen(filters: &[&str]) -> Result<Vec<Selected>> {
        let programs = [
            of("cluster", "rollout-tests", &["restarts::all", "upgrade::one"]),
            of("rollout-ctl", "rollout-ctl", &["restarts::of_ctl"]),
            of("rollout-ctl/batch", "rollout-ctl", &["rows::one"]),
        ];
        let filters: Vec<String> = filters.iter().map(|filter| (*filter).to_owned()).collect();
        select(&programs, &filters)
    }

    fn named(names: &[&str]) -> Selected {
        Selected::Named(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn without_a_filter_everything_is_run() {
        assert_eq!(chosen(&[]).unwrap(), vec![Selected::All; 3]);
    }

    #[test]
    fn a_filter_with_a_program_selects_within_it_alone() {
        use Selected::{All, Nothing};
        assert_eq!(chosen(&["cluster"]).unwrap(), [All, Nothing, Nothing]);
        let restarts = named(&["restarts"]);
        assert_eq!(chosen(&["cluster::restarts"]).unwrap(), [restarts, Nothing, Nothing]);
        assert_eq!(
            chosen(&["rollout-ctl/batch::rows"]).unwrap(),
            [Nothing, Nothing, named(&["rows"])]
        );
    }

    #[test]
    fn a_package_selects_all_of_its_programs_and_a_name_searches_all_programs() {
        use Selected::{All, Nothing};
        assert_eq!(chosen(&["rollout-ctl"]).unwrap(), [Nothing, All, All]);
        let both = named(&["restarts"]);
        assert_eq!(chosen(&["restarts"]).unwrap(), [both.clone(), both, Nothing]);
        assert_eq!(chosen(&["upgrade", "cluster"]).unwrap(), [All, Nothing, Nothing]);
    }

    #[test]
    fn a_filter_that_selects_nothing_is_refused() {
        for filters in [&["clusters"][..], &["cluster::no_such_test"], &["cluster", "no_such_test"]]
        {
            assert!(chosen(filters).is_err(), "{filters:?}");
        }
    }
}
