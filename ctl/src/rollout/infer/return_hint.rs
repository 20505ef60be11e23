//! Owns: the text that says how to return to a run after the command has ended early.
//!
//! Invariant: the text names only a run that was created, and its command has every flag without which it would mean
//! another run.
//! Absent: when the text is printed.

use rollout_batch::hint::shell_path;

use crate::rollout::cli::BatchArgs;

/// The progress of the command, for the message after an interruption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The run does not exist yet, unless it is resumed.
    Reading,
    /// A new run does not exist yet: results of earlier revisions are copied first.
    ReusingResults,
    /// The run exists, or will in a moment.
    Submitting,
    Watching,
    Writing,
}

impl Stage {
    /// The message for a submission that was interrupted before it created its run; None once it may have created it.
    pub(super) fn without_a_run(self) -> Option<&'static str> {
        match self {
            Self::Reading => Some("interrupted: nothing was submitted\n"),
            Self::ReusingResults => Some(
                "interrupted while reused results of earlier revisions were copied: nothing was submitted; the same \
                 command begins again\n",
            ),
            Self::Submitting | Self::Watching | Self::Writing => None,
        }
    }
}

/// How to return to the run, and why. `namespace` is the flag that names its namespace, or empty.
pub(super) fn return_hint(stage: Stage, args: &BatchArgs, name: &str, namespace: &str) -> String {
    let config = shell_path(&args.batch_file());
    // Without this flag, the repeated command would close the input.
    let keep_open = if args.keep_open { " --keep-open" } else { "" };
    // Without it, the cluster would refuse the run because its spec differs.
    let canary = args.canary.map(|rows| format!(" --canary {rows}")).unwrap_or_default();
    // Until the run owns the directory, the flag is needed to write its output there.
    let submitting = matches!(stage, Stage::ReusingResults | Stage::Submitting);
    let overwrite = if args.overwrite && submitting { " --overwrite" } else { "" };
    let state = match stage {
        Stage::ReusingResults | Stage::Submitting => "may lack a part of its input; to complete it",
        Stage::Writing => "has its results; to write them",
        Stage::Reading | Stage::Watching => "continues without this command; to resume",
    };
    let cancel = match stage {
        // Every row has its outcome, so there is nothing left to cancel.
        Stage::Writing => String::new(),
        _ => format!("to cancel it:\n  rollout run cancel {name}{namespace}\n"),
    };
    format!(
        "run {name} {state}:\n  rollout infer batch --config {config} --resume \
         {name}{canary}{keep_open}{overwrite}{namespace}\n  rolloutctl run watch {name}{namespace}\n{cancel}"
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::rollout::cli::{Cli, Command, InferCommand};

    fn args(flags: &[&str]) -> BatchArgs {
        let words = ["rollout", "infer", "batch", "--config", "my batch.toml"];
        let cli = Cli::parse_from(words.iter().chain(flags));
        let Command::Infer { command: InferCommand::Batch(args) } = cli.command else {
            panic!("another command")
        };
        args
    }

    #[test]
    fn the_command_to_resume_has_every_flag_that_the_run_needs() {
        let back =
            |flags: &[&str]| return_hint(Stage::Watching, &args(flags), "r", " --namespace team");
        let command = "  rollout infer batch --config 'my batch.toml' --resume r";
        assert_eq!(
            back(&[]),
            format!(
                "run r continues without this command; to resume:\n{command} --namespace team\n  \
                 rolloutctl run watch r --namespace team\nto cancel it:\n  \
                 rollout run cancel r --namespace team\n"
            )
        );
        let flags = back(&["--canary", "50", "--keep-open"]);
        let whole = format!("{command} --canary 50 --keep-open --namespace team\n");
        assert!(flags.contains(&whole), "{flags}");
    }

    #[test]
    fn the_command_to_resume_claims_a_directory_that_the_run_may_not_own_yet() {
        let back = |stage| return_hint(stage, &args(&["--overwrite"]), "r", "");
        assert!(back(Stage::Submitting).contains(" --resume r --overwrite\n"));
        assert!(back(Stage::Watching).contains(" --resume r\n"));
    }

    #[test]
    fn a_run_that_was_not_created_is_not_offered_for_resuming() {
        for stage in [Stage::Reading, Stage::ReusingResults] {
            assert!(
                stage.without_a_run().is_some_and(|told| told.contains("nothing was submitted"))
            );
        }
        for stage in [Stage::Submitting, Stage::Watching, Stage::Writing] {
            assert_eq!(stage.without_a_run(), None);
        }
    }
}
