//! Every verb that changes something has a plan, and no other.

use clap::Parser as _;

use super::*;
use crate::rolloutctl::cli::Cli;
use crate::rolloutctl::verb::Branch as _;
use crate::rolloutctl::{exit, flags};

async fn dry_run(line: &str) -> anyhow::Result<()> {
    // No member answers there: a plan that asks the cluster fails.
    let nobody = ["-e", "127.0.0.1:1", "--insecure-plaintext", "--timeout", "100ms", "--dry-run"];
    let words = std::iter::once("rolloutctl").chain(line.split(' ')).chain(nobody);
    let (command, globals) = Cli::try_parse_from(words).expect(line).split();
    command.dry_run(&globals).await
}

#[tokio::test]
async fn a_dry_run_is_refused_exactly_for_verbs_that_change_nothing() {
    for (path, accepts) in flags::verbs() {
        let Some(line) = flags::tests::line_of(&path) else {
            assert!(!accepts.dry_run, "{path}: LINES needs a line of it");
            continue;
        };
        let refused = dry_run(&line)
            .await
            .is_err_and(|error| exit::explain(&error) == exit::explain(&none()));
        assert_eq!(refused, !accepts.dry_run, "{line}");
    }
}

#[tokio::test]
async fn a_dry_run_of_a_prune_only_asks_what_would_be_removed() {
    let error = dry_run("checkpoint prune job --keep-last 3").await.unwrap_err();
    let said = exit::explain(&error);
    assert!(said.contains("prune checkpoints: "), "{said}");
}

#[test]
fn a_plan_says_that_nothing_was_changed() {
    let plan = Plan::new("cancel run eval", "running");
    let text = plan.table();
    assert_eq!(text, "would cancel run eval\n  now: running\nnothing was changed\n");
    crate::golden::report("plan.txt", &Plan { checked: true, ..plan });
}
