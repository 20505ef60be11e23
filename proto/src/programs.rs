//! Owns: how a program starts itself, or another program of this project.
//!
//! Invariant: in the executable that contains all programs, what is started is that executable. Elsewhere it is the
//! program's own file, beside this one if it is there.
//! Absent: starting it, and the list of the programs; the executable that contains them (`programs/`) has that.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The program that this process runs as, if its executable contains all of them.
static RUNS_AS: OnceLock<&'static str> = OnceLock::new();

/// How to start a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The executable.
    pub path: PathBuf,
    /// The argument before all others, which names the program, if the executable contains several.
    pub name: Option<&'static str>,
}

impl Program {
    /// A command that starts the program, without arguments of its own.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.args(self.name);
        command
    }
}

/// Why it is not known how to start a program.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The system does not tell where this executable is.
    #[error("cannot tell where this executable is")]
    Unknown(#[source] io::Error),
    /// The program is neither beside this one nor on PATH.
    #[error("found no `{name}` beside {} nor on PATH", own.display())]
    Missing {
        /// The program.
        name: &'static str,
        /// This executable.
        own: PathBuf,
    },
}

/// Announces that this executable contains all programs, and that the process runs as this one of them. The first call
/// counts.
pub fn runs_as(name: &'static str) {
    let _ = RUNS_AS.set(name);
}

/// The program that this process runs.
///
/// # Errors
/// The system does not tell where this executable is.
pub fn own() -> Result<Program, ProgramError> {
    let path = std::env::current_exe().map_err(ProgramError::Unknown)?;
    Ok(Program { path, name: RUNS_AS.get().copied() })
}

/// Finds a program: in this executable if that contains all of them, else beside it, beside a test's executable, or on
/// PATH.
///
/// # Errors
/// It is in none of these places, which the error lists.
pub fn find(name: &'static str) -> Result<Program, ProgramError> {
    find_from(own()?, name, &std::env::var_os("PATH").unwrap_or_default())
}

fn find_from(own: Program, name: &'static str, path: &OsStr) -> Result<Program, ProgramError> {
    if own.name.is_some() {
        return Ok(Program { path: own.path, name: Some(name) });
    }
    let beside = own.path.parent().into_iter().flat_map(|dir| {
        let above = dir.parent().filter(|_| dir.ends_with("deps"));
        [Some(dir), above].into_iter().flatten().map(Path::to_path_buf)
    });
    let mut files = beside.chain(std::env::split_paths(path)).map(|dir| dir.join(name));
    match files.find(|file| file.is_file()) {
        Some(path) => Ok(Program { path, name: None }),
        None => Err(ProgramError::Missing { name, own: own.path.clone() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &Path) -> Program {
        Program { path: path.to_owned(), name: None }
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = find("rollout-no-such-program").unwrap_err();
        assert!(error.to_string().contains("found no `rollout-no-such-program` beside"), "{error}");
    }

    #[test]
    fn the_program_beside_this_one_comes_before_the_one_on_path() {
        let dir = tempfile::tempdir().unwrap();
        let (beside, deps, other) =
            (dir.path().to_owned(), dir.path().join("deps"), dir.path().join("other"));
        for folder in [&deps, &other] {
            std::fs::create_dir(folder).unwrap();
        }
        let find = |own: &Path| find_from(at(own), "rollout-worker", other.as_os_str());
        let own = beside.join("rollout");
        assert!(find(&own).is_err());
        std::fs::write(other.join("rollout-worker"), "").unwrap();
        assert_eq!(find(&own).unwrap(), at(&other.join("rollout-worker")));
        std::fs::write(beside.join("rollout-worker"), "").unwrap();
        assert_eq!(find(&own).unwrap(), at(&beside.join("rollout-worker")));
        assert_eq!(find(&deps.join("a-test")).unwrap(), at(&beside.join("rollout-worker")));
    }

    #[test]
    fn an_executable_that_contains_all_programs_is_each_of_them() {
        let own = Program { path: "/nowhere/all".into(), name: Some("rollout") };
        let found = find_from(own, "rollout-worker", OsStr::new("")).unwrap();
        let command = found.command();
        assert_eq!(command.get_program(), "/nowhere/all");
        assert_eq!(command.get_args().collect::<Vec<_>>(), ["rollout-worker"]);
    }
}
