//! Stories of the ledger in `tests/testdata/*.txt`: a command, `----`, and its answer.
//!
//! After every command the invariants hold, and a second ledger that applies the same bytes (and is now and then
//! replaced by one loaded from the image) gives the same replies, chain and state.
//!
//! Regenerate the answers with `ROLLOUT_REWRITE=1 cargo test -p rollout-ledger --test behavior transcripts::` and
//! review the difference: it is the change of behavior.

mod args;
mod batch_ops;
mod file_ops;
mod identity_ops;
mod job_ops;
mod member_ops;
mod ops;
mod rejections;
mod run_ops;
mod script;
mod show;
mod training;
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
fn every_transcript_matches_its_file() {
    let rewrite = rollout_recorded::rewrites();
    let stories = stories();
    assert!(!stories.is_empty());
    let mut failures = Vec::new();
    for path in stories {
        let text = std::fs::read_to_string(&path).expect("readable");
        let (happened, _) = script::play(&text, &path.display().to_string());
        if rewrite && text != happened {
            std::fs::write(&path, &happened).expect("writable");
        } else if text != happened {
            failures.push(script::difference(&path, &text, &happened));
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
