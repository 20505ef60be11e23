//! `rolloutctl completion SHELL`: made from the command tree itself, for both programs.
//!
//! Invariant: it describes a command as its `--help` does. Absent: the answers to a shell;
//! [`shell_completion`](crate::shell_completion) has those.

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;

use super::cli::Cli;
use crate::output::write_stdout;
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::shell_completion;

/// Which program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Program {
    /// For operators
    #[default]
    Rolloutctl,
    /// For users
    Rollout,
}

impl Program {
    pub(super) fn command(self) -> Command {
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
    /// Program to complete
    #[arg(long, value_enum, default_value_t)]
    program: Program,
}

impl Verb for CompletionArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, _globals: &Globals) -> anyhow::Result<()> {
        write_stdout(&script(self.shell, self.program)?)
    }
}

fn script(shell: Shell, program: Program) -> anyhow::Result<String> {
    let command = program.command();
    shell_completion::registration(&shell.to_string(), command.get_name())
        .with_context(|| format!("{shell} cannot be completed"))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;
    use clap_complete::engine::{self, ArgValueCompleter};

    use super::*;

    #[test]
    fn every_shell_gets_a_script_that_asks_the_program() {
        for shell in Shell::value_variants() {
            for program in Program::value_variants() {
                let text = script(*shell, *program).unwrap();
                let name = program.command().get_name().to_owned();
                assert!(text.contains(&name) && text.contains("_ROLLOUT_COMPLETE"), "{text}");
            }
        }
    }

    /// The completions of a line when the cluster is not asked for names.
    fn completed(words: &[&str]) -> Vec<String> {
        let words: Vec<_> = words.iter().map(Into::into).collect();
        let last = words.len() - 1;
        let found = engine::complete(&mut Cli::command(), words, last, None).unwrap();
        found.iter().map(|each| each.get_value().to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn verbs_and_flags_are_completed() {
        assert_eq!(completed(&["rolloutctl", "clus"]), ["cluster"]);
        assert_eq!(completed(&["rolloutctl", "workers", "unc"]), ["uncordon"]);
        assert_eq!(completed(&["rolloutctl", "run", "pause", "--dry"]), ["--dry-run"]);
    }

    /// Every argument of these commands by its command's words.
    fn names(command: &Command, path: &str, found: &mut Vec<(String, bool)>) {
        for arg in command.get_positionals() {
            let completed = arg.get::<ArgValueCompleter>().is_some();
            found.push((format!("{path} {}", arg.get_id()), completed));
        }
        for inner in command.get_subcommands() {
            names(inner, &format!("{path} {}", inner.get_name()), found);
        }
    }

    #[test]
    fn every_argument_that_names_an_existing_thing_is_completed() {
        // Arguments that are a new name, a row's number or a file.
        let new = ["context add name", "member add name", "member replace new_name"];
        let others = ["item describe rows", "item retry rows", "run append files"];
        for program in Program::value_variants() {
            let command = program.command();
            for noun in ["run", "item", "worker", "member", "namespace", "context", "leader"] {
                let Some(noun) = command.find_subcommand(noun) else { continue };
                let mut found = Vec::new();
                names(noun, noun.get_name(), &mut found);
                for (name, completed) in found {
                    let none = new.contains(&name.as_str()) || others.contains(&name.as_str());
                    assert_eq!(completed, !none, "{name}");
                }
            }
        }
    }
}
