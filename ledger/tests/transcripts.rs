//! Stories of the ledger in `tests/testdata/*.txt`: a command, `----`, and its answer.
//!
//! After every command the invariants hold, and a second ledger that applies the same bytes (and is now and then
//! replaced by one loaded from the image) gives the same replies, chain and state.
//!
//! Regenerate the answers with `ROLLOUT_REWRITE=1 cargo test -p rollout-ledger --test transcripts` and review the
//! difference: it is the change of behavior.

#[path = "transcript/args.rs"]
mod args;
#[path = "transcript/identity_ops.rs"]
mod identity_ops;
#[path = "transcript/job_ops.rs"]
mod job_ops;
#[path = "transcript/member_ops.rs"]
mod member_ops;
#[path = "transcript/ops.rs"]
mod ops;
#[path = "transcript/rejections.rs"]
mod rejections;
#[path = "transcript/run_ops.rs"]
mod run_ops;
#[path = "transcript/script.rs"]
mod script;
#[path = "transcript/show.rs"]
mod show;
#[path = "transcript/training.rs"]
mod training;
#[path = "transcript/world.rs"]
mod world;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn stories() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata");
    let files = std::fs::read_dir(folder).expect("the stories are there");
    let mut files: Vec<PathBuf> = files.map(|f| f.expect("readable").path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "txt"));
    files.sort();
    files
}

#[test]
#[expect(clippy::disallowed_methods, reason = "this is a test's file, not the ledger's")]
fn every_story_ends_as_it_is_told() {
    let rewrite = rollout_recorded::rewrites();
    let stories = stories();
    assert!(!stories.is_empty());
    let mut failures = Vec::new();
    for path in stories {
        let told = std::fs::read_to_string(&path).expect("readable");
        let (happened, _) = script::play(&told, &path.display().to_string());
        if rewrite && told != happened {
            std::fs::write(&path, &happened).expect("writable");
        } else if told != happened {
            failures.push(script::difference(&path, &told, &happened));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn every_refusal_is_in_a_story() {
    let mut told: BTreeSet<&str> = BTreeSet::new();
    for path in stories() {
        let story = std::fs::read_to_string(&path).expect("readable");
        told.extend(script::play(&story, &path.display().to_string()).1);
    }
    let untold: Vec<&str> = rejections::ALL.iter().copied().filter(|r| !told.contains(r)).collect();
    assert!(untold.is_empty(), "no story tells of {untold:?}");
}
