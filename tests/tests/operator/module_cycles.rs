//! The modules of a crate use each other in one direction across folders.
//!
//! *Invariant:* the modules of one folder of sources, each with all that is below it, are a cycle if each uses the
//! others, directly or through others. Such a cycle exists only if [`KNOWN`] lists it, with all of its modules. That list
//! only shrinks: a line that no longer holds fails the test too. Among the top-level modules of a crate, every cycle
//! counts; in the folders below them, only one with a module that is itself a folder, that is, has modules in files of
//! their own. So the files of one folder may use each other.
//! Absent: directions between crates (`dependency_directions`), what only tests use, and uses between a module and those
//! in its folder.

mod graph;

use super::code::tokens;
use super::dependency_directions::{metadata, sources};
use graph::{Cycle, Graph};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The existing cycles: the root of their crate, the module in whose folder they are, and their modules, sorted. To
/// remove one, move what the lower module uses down. Add none.
const KNOWN: &[(&str, &str, &[&str])] = &[
    ("batch/src/lib.rs", "", &["export", "result_reuse", "submission"]),
    // A leader's state has the queues of webhooks and of pulls, whose modules work on that state.
    (
        "coordinator/src/lib.rs",
        "leader",
        &[
            "batch_owners",
            "dispatch",
            "exchange_answer",
            "full_disk",
            "parked_pulls",
            "pre_v4_namespaces",
            "state",
            "webhooks",
            "worker_stream",
        ],
    ),
    ("ctl/src/lib.rs", "", &["bench", "dev", "rollout", "rolloutctl"]),
    // `completion` and `man` are verbs, and print the tree of all verbs.
    ("ctl/src/lib.rs", "rolloutctl", &["cli", "completion", "flags", "man"]),
    ("jepsen/src/lib.rs", "workload", &["item", "submitter", "trainers", "worker"]),
    ("jepsen/src/lib.rs", "workload", &["shard_trainer", "shards"]),
    // `machine` has the state that each operation changes, and calls each operation.
    ("ledger/src/lib.rs", "", &["batch", "fleet", "identity", "machine", "openai", "training"]),
    // A run has its records, and their operations change the run.
    (
        "ledger/src/lib.rs",
        "batch",
        &[
            "attempts",
            "avoided_rows",
            "bisection",
            "completion_webhook",
            "disjoint_attempts",
            "failed_sets",
            "failure_record",
            "flight_image",
            "grant",
            "incident",
            "outcome_image",
            "run",
            "run_gc",
            "runs",
            "segment",
        ],
    ),
    (
        "ledger/src/lib.rs",
        "machine",
        &["apply", "command", "event", "ledger", "operation", "seeded", "version_gate"],
    ),
    // A job has its records, and their operations change the job.
    (
        "ledger/src/lib.rs",
        "training",
        &[
            "barrier",
            "checkpoint",
            "dataset_epoch",
            "job",
            "job_table",
            "rendezvous",
            "round_access",
            "state",
            "store",
            "training_image",
        ],
    ),
    ("raft/src/lib.rs", "state", &["digest", "machine"]),
];

/// Kinds of targets that no program or library is built from.
const NOT_SHIPPED: [&str; 4] = ["bench", "custom-build", "example", "test"];

/// What answers of HTTP and gRPC servers are made with.
const SERVERS: [&str; 3] = ["axum", "tonic", "tower"];

/// The root files of libraries and programs, and their paths in the workspace.
pub(super) fn roots() -> Vec<(PathBuf, String)> {
    let metadata = metadata();
    let workspace = metadata["workspace_root"].as_str().expect("the workspace has a root");
    let shipped = |target: &&Value| {
        let mut kinds = target["kind"].as_array().into_iter().flatten();
        kinds.all(|kind| kind.as_str().is_some_and(|kind| !NOT_SHIPPED.contains(&kind)))
    };
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let targets = packages.flat_map(|package| package["targets"].as_array().into_iter().flatten());
    let root = |target: &Value| {
        let root = PathBuf::from(target["src_path"].as_str().expect("a target has a root file"));
        let name = root.strip_prefix(workspace).expect("it is in the workspace");
        let name = name.to_str().expect("its name is text").to_owned();
        (root, name)
    };
    targets.filter(shipped).map(root).collect()
}

fn allowed_cycles(root: &str) -> BTreeSet<Cycle> {
    let known = KNOWN.iter().filter(|known| known.0 == root);
    let cycle = |(_, within, modules): &(&str, &str, &[&str])| Cycle {
        within: (*within).to_owned(),
        modules: modules.iter().map(|name| (*name).to_owned()).collect(),
    };
    known.map(cycle).collect()
}

#[test]
fn modules_have_only_the_listed_cycles_across_folders() {
    let roots = roots();
    for (root, ..) in KNOWN {
        assert!(roots.iter().any(|found| found.1 == *root), "{root} is no root of a crate");
    }
    for (root, name) in roots {
        let graph = Graph::of(&root);
        let (found, known) = (graph.cycles(), allowed_cycles(&name));
        if let Some(gone) = known.difference(&found).next() {
            panic!("{name} no longer has the cycle {gone:?}: update KNOWN, found {found:?}");
        }
        if let Some(new) = found.difference(&known).next() {
            panic!("{name}: the modules {new:?} use each other:{}", graph.shown(new));
        }
    }
}

#[test]
fn the_leader_and_garbage_collection_use_no_request_handlers() {
    let of = Path::new(env!("CARGO_MANIFEST_DIR")).join("../coordinator/src");
    for path in ["leader", "gc"].iter().flat_map(|name| sources(&of, name)) {
        let source = std::fs::read_to_string(&path).expect("a module can be read");
        for token in tokens(&source) {
            let (path, line) = (path.display(), token.line);
            assert!(!SERVERS.contains(&token.text.as_str()), "{path}:{line}: {}", token.text);
        }
    }
}

/// A crate with these files.
fn graph_of(files: &[(&str, &str)]) -> Graph {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    Graph::of(&folder.path().join("lib.rs"))
}

fn cycle(within: &str, modules: &[&str]) -> Cycle {
    let modules = modules.iter().map(|name| (*name).to_owned()).collect();
    Cycle { within: within.to_owned(), modules }
}

const ROOT: &str = "mod high;\nmod low;\nmod middle;\npub use low::{Thing, kept as named};\n";
const HIGH: &str = "use crate::{low, middle::{self, Part}};\n";

#[test]
fn a_cycle_is_found_however_it_is_written() {
    let up = [
        ("low.rs", "use std::fmt;\nuse crate::high::Top;\n"),
        ("low.rs", "\nfn f() { super::high::top() }\n"),
        ("low.rs", "\nmod inner { use super::super::high::Top; }\n"),
        ("low.rs", "\nuse crate::{fmt::{Debug, Write}, high};\n"),
        ("low.rs", "const A: [char; 2] = ['\"', '\\''];\nfn f<'a>(_: &'a crate::high::Top) {}\n"),
        ("low/mod.rs", "/* not /* yet */ */\nuse crate::high;\n"),
    ];
    for (name, low) in up {
        let graph =
            graph_of(&[("lib.rs", ROOT), ("high.rs", HIGH), ("middle.rs", ""), (name, low)]);
        let found = cycle("", &["high", "low"]);
        assert_eq!(graph.cycles(), BTreeSet::from([found.clone()]), "{low}");
        let shown = graph.shown(&found);
        assert!(
            shown.contains("low uses high: ") && shown.contains(&format!("{name}:2")),
            "{shown}"
        );
        assert!(shown.contains("high uses low: ") && shown.contains("high.rs:1"), "{shown}");
    }
}

#[test]
fn a_cycle_through_a_folder_a_third_module_and_an_exported_name_is_found() {
    let files = [
        ("lib.rs", ROOT),
        ("high.rs", "use crate::middle;\n"),
        ("middle.rs", "mod deep;\n"),
        ("middle/deep.rs", "use crate::named;\n"),
        ("low.rs", "use crate::high;\n"),
    ];
    let found = cycle("", &["high", "low", "middle"]);
    assert_eq!(graph_of(&files).cycles(), BTreeSet::from([found]));
}

#[test]
fn below_the_top_level_a_cycle_counts_only_if_one_of_its_modules_is_a_folder() {
    let files = |low| {
        let middle = "mod a;\nmod b;\npub(crate) use b::Part;\n";
        let a = [
            ("middle/a.rs", "mod deep;\n"),
            ("middle/a/deep.rs", "fn f() { super::super::b::f() }\n"),
        ];
        let root = [("lib.rs", ROOT), ("high.rs", ""), ("middle.rs", middle), ("low.rs", "")];
        [root.as_slice(), &a, &[("middle/b.rs", low)]].concat()
    };
    let found = BTreeSet::from([cycle("middle", &["a", "b"])]);
    let up = [
        "use super::a;\n",
        "use crate::middle::a::deep::Part;\n",
        "use crate::middle;\nfn f() { middle::a::f() }\n",
        "use crate::{fmt, middle::{self as here}};\nfn f() { here::a::f() }\n",
    ];
    for low in up {
        let graph = graph_of(&files(low));
        assert_eq!(graph.cycles(), found, "{low}");
        let shown = graph.shown(&cycle("middle", &["a", "b"]));
        assert!(shown.contains("a uses b: ") && shown.contains("deep.rs:1"), "{shown}");
    }
    // Through a name that the folder's module re-exports.
    let mut through = files("use super::a;\n");
    through[5].1 = "use crate::middle::Part;\n";
    assert_eq!(graph_of(&through).cycles(), found);
    for low in ["", "use super::Other;\n", "use crate::low;\n", "fn f() { a::f() }\n"] {
        assert!(graph_of(&files(low)).cycles().is_empty(), "{low}");
    }
    // The files of one folder may use each other.
    let mut flat = files("use super::a;\n");
    (flat[4].1, flat[5].1) = ("use super::b;\n", "");
    assert!(graph_of(&flat).cycles().is_empty());
}

#[test]
fn comments_literals_and_tests_make_no_cycle() {
    let low = [
        "//! `crate::high`\n/* crate::high */ const A: &str = \"\\\"crate::high\";\n",
        "const A: &str = r#\"\" crate::high\"#; fn r#match() {}\n",
        "#[cfg(test)]\nuse crate::high;\n#[cfg(test)]\nmod tests { use crate::high::Top; }\n",
        "#[cfg(test)]\n#[allow(unused)]\nfn f(_: [u8; 3]) -> Vec<(u8, u8)> { crate::high::top() }\n",
        "struct S { #[cfg(test)] a: crate::high::Top, b: u8 }\n",
        "#[cfg(test)]\nmod only;\n",
        "mod inner { use super::high; }\nmod high {}\n",
    ];
    for low in low {
        let files = [("lib.rs", ROOT), ("high.rs", HIGH), ("middle.rs", ""), ("low.rs", low)];
        assert!(graph_of(&files).cycles().is_empty(), "{low}");
    }
}
