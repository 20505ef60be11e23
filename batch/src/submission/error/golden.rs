//! The text of each failure of work on a batch, and the exit status of a command that ends for it.
//!
//! *Invariant:* scripts read exit statuses, and people search for these words, so a change shows in
//! `batch/testdata/errors.txt`. A new kind of failure does not compile here until it is listed, and fails the
//! test until it has an example.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use rollout_proto::RpcError;

use super::*;

macro_rules! kinds {
    ($($variant:ident)*) => {
        const KINDS: &[&str] = &[$(stringify!($variant)),*];

        fn kind(error: &BatchError) -> &'static str {
            match error {
                $(BatchError::$variant { .. } => stringify!($variant),)*
            }
        }
    };
}

kinds! {
    Config Name Files Json Scan Input InputChanged Empty Upload Store Client Conflict Revised Output FewWorkers OutputTaken
    Inconsistent Cancelled DeadlineExceeded NotEnded InputOpen OpenWithOthers
}

fn of_stores() -> Vec<BatchError> {
    let (key, reason) = (|| "runs/a/b".to_owned(), || "why".to_owned());
    let url = || "s3://bucket".to_owned();
    let all = || {
        [
            BlobError::Missing { key: key() },
            BlobError::PermissionDenied { key: key(), reason: reason() },
            BlobError::Unavailable { key: key(), reason: reason() },
            BlobError::Url { url: url(), reason: reason() },
        ]
    };
    let uploads = all().map(|source| BatchError::Upload { url: url(), source });
    uploads.into_iter().chain(all().map(BatchError::Store)).collect()
}

fn of_clusters() -> Vec<BatchError> {
    let refusal = |code| ClientError::Rpc(RpcError::new(code, "why"));
    let codes = [
        ErrorCode::RunNotFound,
        ErrorCode::NoLeader,
        ErrorCode::PermissionDenied,
        ErrorCode::OutcomeUnknown,
        // These have words of their own.
        ErrorCode::RunSpecConflict,
        ErrorCode::SegmentConflict,
        ErrorCode::InputMismatch,
        ErrorCode::InputClosed,
        ErrorCode::RunEnded,
        ErrorCode::DeadlineExceeded,
    ];
    let submitted = codes.map(|code| BatchError::of_submission("eval", refusal(code)));
    let mut all: Vec<BatchError> = submitted.into_iter().collect();
    all.push(BatchError::Client(ClientError::NoEndpoints));
    all
}

fn of_input() -> Vec<BatchError> {
    let message = "why".to_owned();
    vec![
        BatchError::Config(ConfigError::Value {
            path: "batch.toml".into(),
            key: "run.weight",
            message,
        }),
        BatchError::Name("why".into()),
        BatchError::Files(FilesError::NoMatch {
            pattern: "*.jsonl".into(),
            looked_in: "/d".into(),
        }),
        BatchError::Json(CanonicalError::TooDeep),
        BatchError::Scan(ScanError::Stopped),
        BatchError::Input { count: 1 },
        BatchError::Input { count: 3 },
        BatchError::InputChanged,
        BatchError::Empty,
        BatchError::FewWorkers { expected: 3, ready: 1 },
    ]
}

fn of_runs() -> Vec<BatchError> {
    let (name, namespace) = (|| "eval".to_owned(), || "team-a".to_owned());
    vec![
        BatchError::Conflict { name: name(), what: "is another", advice: "give a name".into() },
        BatchError::Revised { name: name(), done: 3, rows: 300 },
        BatchError::Inconsistent { name: name(), message: "why".into() },
        BatchError::Cancelled { name: name(), reason: "why".into() },
        BatchError::DeadlineExceeded { namespace: namespace(), name: name(), done: 3, rows: 300 },
        BatchError::NotEnded { name: name(), open: 300 },
        BatchError::InputOpen { namespace: namespace(), name: name() },
        BatchError::OpenWithOthers { namespace: namespace(), name: name() },
        BatchError::Output { path: "out".into(), source: io::Error::other("why") },
        BatchError::OutputTaken {
            dir: "out".into(),
            what: "it has the rows of another run".into(),
        },
    ]
}

#[test]
fn the_message_and_the_exit_status_of_each_failure_are_kept() {
    let (mut text, mut seen) = (String::new(), BTreeSet::new());
    let all = [of_input(), of_stores(), of_clusters(), of_runs()];
    for error in all.into_iter().flatten() {
        seen.insert(kind(&error));
        // invariant: writing to a string does not fail.
        let _ = writeln!(text, "{}: exit {}\n  {error}", kind(&error), error.exit_code());
    }
    let missing: Vec<_> = KINDS.iter().filter(|kind| !seen.contains(*kind)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
    let _ = writeln!(text, "rows that failed for good: exit {ROWS_FAILED}");
    rollout_recorded::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/errors.txt"), &text);
}
