//! Which of the globally parsed flags a command accepts, and help that shows only these.
//!
//! Invariant: a command accepts every flag that its help shows. Absent: refusing the others; the code
//! that uses a flag does that, with the reason.

use std::collections::BTreeMap;

use clap::{Command, CommandFactory as _};

use super::cli::{self, Cli};
use super::verb::{Accepts, Branch as _};

/// Whether the help shows a flag; flags that are not managed here count as accepted.
fn shows(accepts: Accepts, flag: &str) -> bool {
    match flag {
        "watch" => accepts.watch,
        "request_id" => accepts.request_id,
        "dry_run" => accepts.dry_run,
        "yes" => accepts.yes,
        _ => true,
    }
}

/// What each verb accepts, by its path.
pub(super) fn verbs() -> BTreeMap<String, Accepts> {
    let mut verbs = BTreeMap::new();
    cli::Command::collect("", &mut verbs);
    verbs
}

/// The paths of the verbs that ask for confirmation. The hidden nouns are absent, because they repeat verbs of `job`.
pub(super) fn asking() -> Vec<String> {
    let verbs = verbs();
    let is_hidden = |path: &str| verbs.contains_key(&format!("job {path}"));
    let asks = verbs.iter().filter(|(path, accepts)| accepts.yes && !is_hidden(path));
    asks.map(|(path, _)| path.clone()).collect()
}

/// The command tree, in which each command's help shows only the flags that it accepts.
pub(super) fn command() -> Command {
    let mut root = Cli::command();
    // Before this, commands do not have the shared flags.
    root.build();
    hide(&mut root, "", &verbs());
    root
}

fn hide(command: &mut Command, above: &str, verbs: &BTreeMap<String, Accepts>) {
    for sub in command.get_subcommands_mut() {
        let path = match above {
            "" => sub.get_name().to_owned(),
            above => format!("{above} {}", sub.get_name()),
        };
        if sub.has_subcommands() {
            hide(sub, &path, verbs);
        } else {
            let accepts = verbs.get(&path).copied().unwrap_or_default();
            *sub = std::mem::take(sub).mut_args(|arg| {
                let hidden = arg.is_hide_set() || !shows(accepts, arg.get_id().as_str());
                arg.hide(hidden)
            });
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use clap::FromArgMatches as _;

    use super::*;

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

    /// Lines of verbs that need more than a few words.
    const LINES: [&str; 22] = [
        "job shard describe job --dataset data",
        "shard describe job --dataset data",
        "run retry eval --failed",
        "run set-deadline eval --none",
        "run set-weight eval --weight 3",
        "namespace set-quota team-a --runs-max 3",
        "dataset create data --uri s3://b/{shard} --samples 10",
        "job checkpoint prune job --keep-last 3",
        "checkpoint prune job --keep-last 3",
        "cluster bootstrap --member c1=127.0.0.1:1,127.0.0.1:2,a --store file:///s",
        "cluster set cordon-after 5",
        "member add c4 --peer-addr h:1 --client-addr h:2",
        "member replace c1 --peer-addr h:1 --client-addr h:2",
        "member update c1 --zone b",
        "snapshot restore /nowhere/cluster.snap --data-dir /nowhere/d --member c1 --token t",
        "cert init-ca --ca-dir /nowhere/ca",
        "cert init-issuer --ca-dir /nowhere/ca",
        "cert issue --ca-dir /nowhere/ca client ann",
        "cert enroll w1 --at 127.0.0.1:1",
        "cert revoke worker/gpu-7",
        "cert unrevoke worker/gpu-7",
        "token create rack --role worker",
    ];

    /// A command line of the verb at a path; `None` if the verb needs other arguments than those tried here.
    pub(in crate::rolloutctl) fn line_of(path: &str) -> Option<String> {
        let given = LINES.iter().find(|line| line.starts_with(path)).map(|line| (*line).to_owned());
        let tried = ["", " x", " x 7", " x 7 best"].map(|rest| format!("{path}{rest}"));
        given.into_iter().chain(tried).find(|line| parsed(line).is_some())
    }

    #[test]
    fn help_shows_a_flag_where_the_command_accepts_it_and_nowhere_else() {
        let root = command();
        for flag in ["watch", "request_id", "dry_run", "yes"] {
            let mut all = Vec::new();
            shown(&root, "", flag, &mut all);
            assert!(all.len() > 80, "{}", all.len());
            for (path, shown) in all {
                // A benchmark needs too many arguments to be parsed here, and accepts none of these flags.
                let Some(cli) = line_of(&path).and_then(|line| parsed(&line)) else {
                    assert!(!shown, "{path} {flag}");
                    continue;
                };
                assert_eq!(shown, shows(cli.command.accepts(), flag), "{path} {flag}");
            }
        }
    }

    #[test]
    fn the_page_names_the_verbs_that_ask_for_confirmation() {
        let page = include_str!("../../../docs/operating/rolloutctl.md");
        let (_, listed) = page.split_once("These commands ask: ").unwrap();
        let (listed, _) = listed.split_once(". ").unwrap();
        let mut listed: Vec<&str> = listed.split('`').skip(1).step_by(2).collect();
        listed.sort_unstable();
        assert_eq!(listed, asking());
    }

    /// The first lines of the table: what the kinds of a verb mean.
    const KINDS: &str = "\
        # read-only: changes nothing in a cluster; --watch repeats it.\n\
        # once: changes nothing in a cluster; --watch does not repeat it. Streams, checks, benchmarks, local files.\n\
        # change: changes a cluster, or creates files that a cluster depends on.\n";

    #[test]
    fn the_properties_of_each_verb_match_the_recorded_table() {
        let (mut all, verbs) = (Vec::new(), verbs());
        shown(&command(), "", "watch", &mut all);
        assert_eq!(all.len(), verbs.len());
        let row = |path: &str, kind: &str, cells: [&str; 3]| {
            let [numbered, dry_run, confirm] = cells;
            format!("{path:<25}{kind:<11}{numbered:<10}{dry_run:<9}{confirm}\n")
        };
        let mut table = KINDS.to_owned() + &row("verb", "kind", ["numbered", "dry-run", "confirm"]);
        for (path, _) in all {
            let Accepts { watch, request_id, dry_run, yes } = verbs[&path];
            let kind = match (watch, dry_run) {
                (true, _) => "read-only",
                (false, true) => "change",
                (false, false) => "once",
            };
            let cells = [request_id, dry_run, yes];
            table += &row(&path, kind, cells.map(|accepted| if accepted { "yes" } else { "no" }));
        }
        rollout_recorded::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/verbs.txt"), &table);
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
