//! Every command of the tree either has a plan or is listed as having none.

use std::collections::BTreeSet;

use clap::{CommandFactory as _, Parser as _};

use super::*;
use crate::rolloutctl::{exit, flags};

/// Commands that change something, with arguments.
const CHANGES: &[&str] = &[
    "run cancel eval",
    "run pause eval",
    "run resume eval",
    "run retry eval --failed",
    "run delete eval",
    "item retry eval 7",
    "worker cordon w1",
    "worker uncordon w1",
    "worker drain w1",
    "namespace set-quota team-a --runs-max 3",
    "rendezvous close job",
    "barrier abort job epoch",
    "dataset create data --uri s3://b/{shard} --samples 10",
    "dataset delete data",
    "job delete job",
    "checkpoint abort job 7",
    "checkpoint label job 7 best",
    "checkpoint prune job --keep-last 3",
    "cluster bootstrap --member c1=127.0.0.1:1,127.0.0.1:2,a --store file:///s",
    "cluster upgrade",
    "cluster set cordon-after 5",
    "member add c4 --peer-addr h:1 --client-addr h:2",
    "member promote c4",
    "member remove c1",
    "member replace c1 --peer-addr h:1 --client-addr h:2",
    "member update c1 --zone b",
    "leader transfer c2",
    "snapshot save /nowhere/cluster.snap",
    "snapshot restore /nowhere/cluster.snap --data-dir /nowhere/d --member c1 --token t",
    "cert init-ca --ca-dir /nowhere/ca",
    "cert issue --ca-dir /nowhere/ca client ann",
    "cert init-issuer --ca-dir /nowhere/ca",
    "cert enrol w1 --at 127.0.0.1:1",
    "cert renew",
    "cert revoke worker/gpu-7",
    "cert unrevoke worker/gpu-7",
    "token create rack --role worker",
    "token revoke rack",
];

/// Commands that change nothing visible to others: they read, measure, or write local files on request.
const HAVE_NONE: &[&str] = &[
    "status",
    "top",
    "doctor",
    "events",
    "completion",
    "man",
    "version",
    "run list",
    "run describe",
    "run watch",
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
    "checkpoint verify",
    "cluster status",
    "cluster settings",
    "cluster verify",
    "member list",
    "member describe",
    "leader show",
    "snapshot verify",
    "storage stats",
    "alarm list",
    "audit verify",
    "token list",
    "cert inspect",
    "cert status",
    "cert revocations",
    "bench fsync",
    "bench apply",
    "bench ledger",
    "bench failover",
    "bench handover",
    "bench submit",
    "bench rendezvous",
    "bench store",
    "bench fleet",
    "bench fleet-part",
    "config view",
    "config default",
    "config validate",
    "config schema",
    "context list",
    "context show",
    "context use",
    "context add",
    "context remove",
    "errors list",
    "errors explain",
];

/// Every command that performs something itself, by its words.
fn leaves(command: &clap::Command, words: &str, all: &mut BTreeSet<String>) {
    let verbs: Vec<_> = command.get_subcommands().filter(|c| c.get_name() != "help").collect();
    if verbs.is_empty() {
        all.insert(words.to_owned());
    }
    for verb in verbs {
        leaves(verb, format!("{words} {}", verb.get_name()).trim_start(), all);
    }
}

#[tokio::test]
async fn every_command_that_changes_something_has_a_plan() {
    let mut commands = BTreeSet::new();
    leaves(&Cli::command(), "", &mut commands);
    let changes = |words: &str| {
        let is = |rest: &str| rest.is_empty() || rest.starts_with(' ');
        CHANGES.iter().any(|line| line.strip_prefix(words).is_some_and(is))
    };
    for words in &commands {
        let known = HAVE_NONE.contains(&words.as_str());
        assert!(known != changes(words), "{words}: is it in CHANGES, or else in HAVE_NONE?");
        assert_eq!(flags::takes(words, "dry_run"), !known, "{words}: its help");
    }
    for line in CHANGES {
        // No member answers there: a plan that asks the cluster fails, and a command without a plan is refused before
        // that.
        let nobody = ["-e", "127.0.0.1:1", "--insecure-plaintext", "--timeout", "100ms"];
        let words = std::iter::once("rolloutctl").chain(line.split(' ')).chain(nobody);
        let cli = Cli::try_parse_from(words.chain(["--dry-run"])).expect(line);
        if let Err(error) = Box::pin(show(cli)).await {
            let none = exit::explain(&changes_nothing());
            assert_ne!(exit::explain(&error), none, "{line}");
        }
    }
}

#[tokio::test]
async fn a_dry_run_of_a_prune_only_asks_what_would_be_removed() {
    let line = "rolloutctl checkpoint prune job --keep-last 3 -e 127.0.0.1:1 \
                --insecure-plaintext --timeout 100ms --dry-run";
    let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
    // No member answers there, and the first request fails.
    let said = exit::explain(&Box::pin(show(cli)).await.unwrap_err());
    assert!(said.contains("prune checkpoints: "), "{said}");
}

#[test]
fn a_plan_says_that_nothing_was_changed() {
    let plan = Plan::new("cancel run eval", "running");
    crate::golden::report("plan.txt", &plan);
    let text = plan.table();
    assert_eq!(text, "would cancel run eval\n  now: running\nnothing was changed\n");
}
