//! What a command says on stderr and how it ends, for each failure that it can have, whatever `--output` asks for.
//!
//! *Invariant:* scripts read exit statuses, and people search for these words, so a change shows in
//! `ctl/testdata/errors.txt`. A kind of failure that the client gains does not compile here until it is listed, and fails the
//! test until it has an example.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use rollout_proto::{
    Client, ClientConfig, ClientError, ConnectError as Unconnected, EndpointError, ErrorCode,
    Phase, RpcError, Security, TlsError,
};

use super::{Failure, code, explain};
use crate::connect::ConnectError;
use crate::rolloutctl::request::Numbered;

macro_rules! kinds {
    ($($variant:ident)*) => {
        const KINDS: &[&str] = &[$(stringify!($variant)),*];

        fn kind(error: &ClientError) -> &'static str {
            match error {
                $(ClientError::$variant { .. } => stringify!($variant),)*
            }
        }
    };
}

kinds! { Connect NoLeader Timeout OutcomeUnknown Rpc Tls Endpoint NoEndpoints MembersFile }

fn unconnected(phase: Phase, cause: &str) -> ClientError {
    let (endpoint, cause) = ("c1:7420".to_owned(), cause.to_owned());
    ClientError::Connect(Unconnected { endpoint, phase, cause, permanent: true })
}

fn unknown(forgotten: bool) -> ClientError {
    let tried = vec![("c1".to_owned(), "is down".to_owned())];
    ClientError::OutcomeUnknown { what: "cancel", waited_ms: 7, tried, forgotten }
}

/// What the client itself says.
fn of_client() -> Vec<ClientError> {
    let tried = || vec![("c1".to_owned(), "is down".to_owned())];
    vec![
        unconnected(Phase::Dns, "no such host"),
        unconnected(Phase::Tcp, "connection refused"),
        unconnected(Phase::Tls, "invalid peer certificate: UnknownIssuer"),
        unconnected(Phase::Tls, "received fatal alert: CertificateRevoked"),
        unconnected(Phase::Http2, "no settings came"),
        ClientError::NoLeader { what: "cancel", waited_ms: 7, tried: tried() },
        ClientError::NoLeader { what: "cancel", waited_ms: 7, tried: Vec::new() },
        ClientError::Timeout { what: "cancel", waited_ms: 7, tried: tried() },
        unknown(false),
        unknown(true),
        ClientError::Rpc(RpcError::new(ErrorCode::RunNotFound, "no run eval")),
        ClientError::Tls(TlsError::TooLarge { path: "ca.pem".into(), bytes_max: 300 }),
        ClientError::Endpoint(EndpointError::NotHostPort("c1".into())),
        ClientError::NoEndpoints,
        ClientError::MembersFile { path: "members.json".into(), cause: "it is torn".into() },
    ]
}

/// What commands themselves say.
fn of_commands() -> Vec<anyhow::Error> {
    let failures = [
        Failure::failed("why"),
        Failure::usage("why"),
        Failure::unavailable("why"),
        Failure::not_found("why"),
        Failure::conflict("why"),
        Failure::refused("why"),
        Failure::distrusted("why"),
        Failure::compacted("why"),
        Failure::reported(6),
    ];
    let mut all: Vec<anyhow::Error> = failures.into_iter().map(Into::into).collect();
    all.push(anyhow::anyhow!("why"));
    all.push(anyhow::Error::from(Failure::not_found("why")).context("cannot explain"));
    all.push(ConnectError::TlsIncomplete { missing: "--key".into() }.into());
    all.push(ConnectError::Client(ClientError::NoEndpoints).into());
    all
}

#[tokio::test]
async fn the_message_and_the_exit_status_of_each_failure_are_kept() {
    let mut text = String::new();
    let mut add = |name: &str, error: &anyhow::Error| {
        // invariant: writing to a string does not fail.
        let _ = writeln!(text, "{name}: exit {}\n{}", code(error), explain(error));
    };
    for error in of_commands() {
        add("command", &error);
    }
    let mut seen = BTreeSet::new();
    for error in of_client() {
        seen.insert(kind(&error));
        add(kind(&error), &error.into());
    }
    let missing: Vec<_> = KINDS.iter().filter(|kind| !seen.contains(*kind)).collect();
    assert!(missing.is_empty(), "no example of {missing:?}");
    for code in ErrorCode::ALL {
        add("refusal", &ClientError::Rpc(RpcError::new(*code, "why")).into());
    }
    let config = ClientConfig::new(vec!["127.0.0.1:9".into()], Security::InsecurePlaintext);
    let client = Client::new(config).unwrap();
    let numbered = Numbered::new(&client, Some("8842.1".parse().unwrap())).await.unwrap();
    for forgotten in [false, true] {
        add("numbered request", &numbered.failed(unknown(forgotten)).into());
    }
    rollout_recorded::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/errors.txt"), &text);
}
