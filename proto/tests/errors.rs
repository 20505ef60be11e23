//! What each error code means to programs: on the wire, and as an exit status.
//!
//! *Invariant:* a client of one version reads the errors of members of another, and scripts read exit statuses, so no line
//! changes; a new code adds one. `ROLLOUT_REWRITE=1` writes the file anew.
//! Absent: which refusal of the ledger has which code; `coordinator/testdata/rejections.txt` has that.

use std::fmt::Write as _;

use rollout_proto::{ErrorCode, Outcome, RpcError, v1};
use rollout_recorded::check;
use tonic::Status;

fn outcome(of: Outcome) -> &'static str {
    match of {
        Outcome::NotApplied => "not_applied",
        Outcome::Applied => "applied",
        Outcome::Unknown => "unknown",
    }
}

/// The details of the status that an error travels as. It is read back as it was.
fn details(error: RpcError) -> String {
    let status = Status::from(error.clone());
    assert_eq!(status.code(), error.code.grpc());
    assert_eq!(status.message(), error.message);
    assert_eq!(RpcError::from_status(&status), error);
    status.details().iter().fold(String::new(), |mut text, byte| {
        // invariant: writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// One error with everything that an error may say.
fn whole() -> RpcError {
    let member = v1::MemberInfo {
        id: 300,
        name: "c1".into(),
        peer_addr: "h1:6".into(),
        client_addr: "h1:7".into(),
        zone: "a".into(),
        version_min: 1,
        version_max: 3,
        voter: true,
    };
    let members = v1::MemberList { version: 129, members: vec![member], leader: "c1".into() };
    RpcError::new(ErrorCode::Compacted, "why")
        .with_leader("c1", "h1:7")
        .with_outcome(Outcome::Applied)
        .with_epoch(300)
        .with_oldest(70_000)
        .with_members(members)
}

#[test]
fn the_meaning_of_each_error_for_programs_is_locked() {
    let line = |code: &ErrorCode| {
        format!(
            "{}: grpc {}, retryable {}, outcome {}, exit {}, {:?}, details {}",
            code.code(),
            i32::from(code.grpc()),
            code.retryable(),
            outcome(code.default_outcome()),
            code.exit_code(),
            code.summary(),
            details(RpcError::new(*code, "why"))
        )
    };
    let mut lines: Vec<String> = ErrorCode::ALL.iter().map(line).collect();
    lines.push(format!("with everything: details {}", details(whole())));
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/errors.txt"), &(lines.join("\n") + "\n"));
}
