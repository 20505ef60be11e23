//! The error that a client receives for each refusal of the ledger whose bytes are recorded.
//!
//! *Invariant:* a client acts by the code and the outcome, so no line changes. The ledger's test has an example of each
//! kind, so each is here. Absent: what a code means; `proto/testdata/errors.txt` has that.

use super::bytes_of;
use crate::leader::reject::rejected;
use rollout_ledger::Reply;
use rollout_proto::Outcome;
use rollout_recorded::check;
use std::fmt::Write as _;
use std::path::Path;

#[test]
fn the_error_for_each_refusal_is_kept() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/tests/testdata/golden/replies.txt");
    let replies = std::fs::read_to_string(&path).unwrap_or_else(|e| {
        panic!("{}: {e}: test golden of rollout-ledger writes it first", path.display())
    });
    let mut text = String::new();
    for line in replies.lines() {
        let (name, hex) = line.split_once(' ').expect("a name and bytes");
        let Reply::Rejected(why) = Reply::decode(&bytes_of(hex)).expect("a reply") else {
            continue;
        };
        let error = rejected(&why);
        let outcome = match error.outcome {
            Outcome::NotApplied => "not applied",
            Outcome::Applied => "applied",
            Outcome::Unknown => "unknown",
        };
        // invariant: writing to a string does not fail.
        let _ = writeln!(text, "{name}: {}, {outcome}: {}", error.code.code(), error.message);
    }
    assert!(text.lines().count() > 50, "{text}");
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/rejections.txt"), &text);
}
