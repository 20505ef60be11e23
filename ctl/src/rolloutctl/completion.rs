//! `rolloutctl completion SHELL` and `rolloutctl man`: made from the command tree itself, for both programs.
//!
//! Invariant: what they say of a command is what its `--help` says. Deliberately absent: completion of names, which would
//! ask a cluster at each key.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::cli::Cli;
use crate::output::write_stdout;

/// Which program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Program {
    /// For operators
    #[default]
    Rolloutctl,
    /// For users
    Rollout,
}

impl Program {
    fn command(self) -> Command {
        match self {
            Program::Rolloutctl => Cli::command(),
            Program::Rollout => crate::rollout::command(),
        }
    }
}

/// For which shell.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: Shell,
    /// Of which program
    #[arg(long, value_enum, default_value_t)]
    program: Program,
}

/// Where the pages go.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// Write a page for each command here, such as /usr/local/share/man/man1; without, the first goes to stdout
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Of which program
    #[arg(long, value_enum, default_value_t)]
    program: Program,
}

/// Prints the script.
pub(crate) fn completion(args: &CompletionArgs) -> anyhow::Result<()> {
    write_stdout(&script(args.shell, args.program))
}

fn script(shell: Shell, program: Program) -> String {
    let mut command = program.command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// Prints the program's page, or writes all pages.
pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    let mut command = args.program.command();
    match &args.dir {
        Some(dir) => std::fs::create_dir_all(dir)
            .and_then(|()| clap_mangen::generate_to(command, dir))
            .with_context(|| format!("cannot write pages to {}", dir.display())),
        None => {
            command.build();
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page)?;
            write_stdout(&String::from_utf8_lossy(&page))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_knows_the_verbs() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let text = script(shell, Program::Rolloutctl);
            for word in ["bootstrap", "uncordon", "dry-run"] {
                assert!(text.contains(word), "{shell}: no {word}");
            }
            assert!(script(shell, Program::Rollout).contains("infer"), "{shell}");
        }
    }

    #[test]
    fn every_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        let path = Some(dir.path().to_owned());
        man(&ManArgs { dir: path, program: Program::Rolloutctl }).unwrap();
        for page in ["rolloutctl.1", "rolloutctl-run-pause.1", "rolloutctl-cluster-verify.1"] {
            let text = std::fs::read_to_string(dir.path().join(page)).expect(page);
            assert!(text.contains(".SH NAME"), "{page}");
        }
    }
}
