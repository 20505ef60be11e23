//! The top-level modules of a crate use each other in one direction.
//!
//! *Invariant:* a module and one that it uses, directly or through others, are a cycle only if they are listed in
//! [`KNOWN`]. That list only shrinks: a line that no longer holds fails the test too.
//! Absent: directions between crates (`dependency_directions`), and what only tests use.

mod code;
mod graph;

use super::dependency_directions::{metadata, sources};
use code::tokens;
use graph::{Use, cycles, uses};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The existing cycles, by the root of their crate. To remove one, move what the lower module uses down. Add none.
const KNOWN: &[(&str, &[&[&str]])] = &[
    (
        "ctl/src/lib.rs",
        &[&["batch", "export", "result_reuse"], &["bench", "dev", "rollout", "rolloutctl"]],
    ),
    // `machine` has the state that each operation changes, and calls each operation.
    ("ledger/src/lib.rs", &[&["batch", "fleet", "identity", "machine", "training"]]),
];

/// Kinds of targets that no program or library is built from.
const NOT_SHIPPED: [&str; 4] = ["bench", "custom-build", "example", "test"];

/// What answers of HTTP and gRPC servers are made with.
const SERVERS: [&str; 3] = ["axum", "tonic", "tower"];

/// The root files of libraries and programs, and their paths in the workspace.
fn roots() -> Vec<(PathBuf, String)> {
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

fn allowed_cycles(root: &str) -> BTreeSet<Vec<String>> {
    let groups = KNOWN.iter().filter(|known| known.0 == root).flat_map(|known| known.1);
    groups.map(|group| group.iter().map(|name| (*name).to_owned()).collect()).collect()
}

/// Where the modules of a cycle use each other.
fn shown(group: &[String], uses: &[Use]) -> String {
    let within = uses.iter().filter(|one| group.contains(&one.from) && group.contains(&one.to));
    let lines: BTreeSet<String> =
        within.map(|one| format!("\n  {} uses {}: {}", one.from, one.to, one.at)).collect();
    lines.into_iter().collect()
}

#[test]
fn top_level_modules_have_only_the_listed_cycles() {
    let roots = roots();
    for (root, _) in KNOWN {
        assert!(roots.iter().any(|found| found.1 == *root), "{root} is no root of a crate");
    }
    for (root, name) in roots {
        let uses = uses(&root);
        let (found, known) = (cycles(&uses), allowed_cycles(&name));
        if let Some(gone) = known.difference(&found).next() {
            panic!("{name} no longer has the cycle {gone:?}: update KNOWN, found {found:?}");
        }
        if let Some(new) = found.difference(&known).next() {
            panic!("{name}: the modules {new:?} use each other:{}", shown(new, &uses));
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
fn uses_in(files: &[(&str, &str)]) -> Vec<Use> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    }
    uses(&folder.path().join("lib.rs"))
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
        let uses = uses_in(&[("lib.rs", ROOT), ("high.rs", HIGH), ("middle.rs", ""), (name, low)]);
        let group = vec!["high".to_owned(), "low".to_owned()];
        assert_eq!(cycles(&uses), BTreeSet::from([group.clone()]), "{low}");
        let shown = shown(&group, &uses);
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
    let group = ["high", "low", "middle"].map(str::to_owned).to_vec();
    assert_eq!(cycles(&uses_in(&files)), BTreeSet::from([group]));
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
        assert!(cycles(&uses_in(&files)).is_empty(), "{low}");
    }
}
