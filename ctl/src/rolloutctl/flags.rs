//! Which of the globally parsed flags a command accepts, and help that shows only these.
//!
//! Invariant: a command accepts every flag that its help shows. Deliberately absent: refusing the others; the code
//! that uses a flag does that, with the reason.

use clap::{Command, CommandFactory as _};

use super::cli::Cli;

/// Read-only commands, which `--watch` repeats. The same as `watch::only_looks`.
const WATCH: [&str; 30] = [
    "status",
    "storage stats",
    "alarm list",
    "run list",
    "run describe",
    "item list",
    "item describe",
    "worker list",
    "worker describe",
    "namespace list",
    "namespace describe",
    "rendezvous list",
    "rendezvous describe",
    "barrier list",
    "barrier describe",
    "dataset list",
    "dataset describe",
    "job list",
    "shard list",
    "shard describe",
    "checkpoint list",
    "checkpoint describe",
    "token list",
    "cluster status",
    "cluster settings",
    "member list",
    "member describe",
    "leader show",
    "cert inspect",
    "cert revocations",
];

/// Commands whose request has a number. The same as `request::has_number`.
const REQUEST_ID: [&str; 22] = [
    "run cancel",
    "run pause",
    "run resume",
    "run retry",
    "run delete",
    "item retry",
    "worker cordon",
    "worker uncordon",
    "worker drain",
    "rendezvous close",
    "barrier abort",
    "checkpoint abort",
    "checkpoint label",
    "checkpoint prune",
    "dataset create",
    "dataset delete",
    "job delete",
    "namespace set-quota",
    "token revoke",
    "cluster set",
    "cert revoke",
    "cert unrevoke",
];

/// Other commands that have a plan.
const ALSO_DRY_RUN: [&str; 16] = [
    "cluster bootstrap",
    "cluster upgrade",
    "member add",
    "member promote",
    "member remove",
    "member replace",
    "member update",
    "leader transfer",
    "snapshot save",
    "snapshot restore",
    "cert init-ca",
    "cert issue",
    "cert init-issuer",
    "cert enrol",
    "cert renew",
    "token create",
];

/// Commands that ask for consent.
const YES: [&str; 5] =
    ["run delete", "job delete", "dataset delete", "member remove", "cluster upgrade"];

/// Whether the command at a path accepts a flag; flags that are not managed here count as accepted.
pub(super) fn takes(path: &str, flag: &str) -> bool {
    match flag {
        "watch" => WATCH.contains(&path) || path == "cert status",
        "request_id" => REQUEST_ID.contains(&path),
        "dry_run" => REQUEST_ID.contains(&path) || ALSO_DRY_RUN.contains(&path),
        "yes" => YES.contains(&path),
        _ => true,
    }
}

/// The command tree, in which each command's help shows only the flags that it accepts.
pub(super) fn command() -> Command {
    let mut root = Cli::command();
    // Before this, commands do not have the shared flags.
    root.build();
    hide(&mut root, "");
    root
}

fn hide(command: &mut Command, above: &str) {
    for sub in command.get_subcommands_mut() {
        let path = match above {
            "" => sub.get_name().to_owned(),
            above => format!("{above} {}", sub.get_name()),
        };
        if sub.has_subcommands() {
            hide(sub, &path);
        } else {
            *sub = std::mem::take(sub).mut_args(|arg| {
                let hidden = arg.is_hide_set() || !takes(&path, arg.get_id().as_str());
                arg.hide(hidden)
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;
    use crate::rolloutctl::{request, watch};

    /// The commands that perform something, with whether their help shows a flag.
    fn shown(command: &Command, above: &str, flag: &str, into: &mut Vec<(String, bool)>) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            let path = format!("{above} {}", sub.get_name()).trim_start().to_owned();
            if sub.has_subcommands() {
                shown(sub, &path, flag, into);
                continue;
            }
            let arg = sub.get_arguments().find(|arg| arg.get_id() == flag);
            into.push((path, !arg.unwrap().is_hide_set()));
        }
    }

    fn parsed(line: &str) -> Option<Cli> {
        let words = std::iter::once("rolloutctl").chain(line.split(' '));
        let matches = command().try_get_matches_from(words).ok()?;
        Cli::from_arg_matches(&matches).ok()
    }

    /// Commands with arguments that they parse.
    const LINES: [&str; 18] = [
        "shard describe job --dataset data",
        "run retry eval --failed",
        "namespace set-quota team-a --runs-max 3",
        "dataset create data --uri s3://b/{shard} --samples 10",
        "checkpoint prune job --keep-last 3",
        "cluster bootstrap --member c1=127.0.0.1:1,127.0.0.1:2,a --store file:///s",
        "cluster set cordon-after 5",
        "member add c4 --peer-addr h:1 --client-addr h:2",
        "member replace c1 --peer-addr h:1 --client-addr h:2",
        "member update c1 --zone b",
        "snapshot restore f --data-dir d --member c1 --token t",
        "cert init-ca --ca-dir d",
        "cert init-issuer --ca-dir d",
        "cert issue --ca-dir d client ann",
        "cert enrol w1 --at 127.0.0.1:1",
        "cert revoke worker/gpu-7",
        "cert unrevoke worker/gpu-7",
        "token create rack --role worker",
    ];

    fn line_of(path: &str) -> Option<Cli> {
        let given = LINES.iter().find(|line| line.starts_with(path)).map(|line| (*line).to_owned());
        let tried = ["", " x", " x 7", " x 7 best"].map(|rest| format!("{path}{rest}"));
        given.into_iter().chain(tried).find_map(|line| parsed(&line))
    }

    #[test]
    fn help_shows_a_flag_where_the_command_accepts_it_and_nowhere_else() {
        let root = command();
        for flag in ["watch", "request_id"] {
            let mut all = Vec::new();
            shown(&root, "", flag, &mut all);
            assert!(all.len() > 80, "{}", all.len());
            for (path, shown) in all {
                // A benchmark needs too many arguments to be parsed here, and accepts neither flag.
                let Some(cli) = line_of(&path) else {
                    assert!(!shown, "{path} {flag}");
                    continue;
                };
                let accepted = match flag {
                    "watch" => watch::only_looks(&cli.command),
                    _ => request::has_number(&cli.command),
                };
                assert_eq!(shown, accepted, "{path} {flag}");
            }
        }
    }

    #[test]
    fn the_properties_of_each_verb_match_the_recorded_table() {
        let mut all = Vec::new();
        shown(&command(), "", "watch", &mut all);
        let row = |path: &str, cells: [&str; 4]| {
            let [read_only, numbered, dry_run, confirm] = cells;
            format!("{path:<22}{read_only:<11}{numbered:<10}{dry_run:<9}{confirm}\n")
        };
        let mut table = row("verb", ["read-only", "numbered", "dry-run", "confirm"]);
        for (path, _) in all {
            let cells = ["watch", "request_id", "dry_run", "yes"];
            table += &row(&path, cells.map(|flag| if takes(&path, flag) { "yes" } else { "no" }));
        }
        crate::golden::check("verbs.txt", &table);
    }

    #[test]
    fn the_help_of_a_read_only_command_has_no_flag_of_one_that_changes() {
        let mut root = command();
        let list = root.find_subcommand_mut("run").and_then(|run| run.find_subcommand_mut("list"));
        let help = list.unwrap().render_long_help().to_string();
        assert!(help.contains("--watch") && help.contains("--sort-by"), "{help}");
        for flag in ["--dry-run", "--request-id", "--yes"] {
            assert!(!help.contains(flag), "{flag}: {help}");
        }
        // Flags before the verb still parse.
        assert!(parsed("-w status").unwrap().watch.is_some());
        assert!(parsed("--dry-run run cancel a b").unwrap().dry_run);
    }
}
