//! Members that refuse the caller's certificate, together with others that do not answer.

use tokio::net::TcpListener;

use super::*;
use crate::revocations::{RevocationList, Revocations};

/// A refusal ends a call in milliseconds. This leaves room for a loaded machine, and is far below the client's limit.
const AT_ONCE: Duration = Duration::from_secs(5);
/// The client's limit, so long that no call ends by it.
const LIMIT: Duration = Duration::from_secs(60);

/// The configuration of a client whose seeds are these members and this address.
fn asking(fakes: &[&Fake], silent: &TcpListener, security: Security) -> ClientConfig {
    let mut config = config(fakes);
    config.endpoints.push(silent.local_addr().unwrap().to_string());
    config.security = security;
    config.timeout = LIMIT;
    config
}

/// A listener whose connections are made, and never answered.
async fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").await.unwrap()
}

async fn counters(client: &Client) -> Vec<Result<v1::CountersResponse, ClientError>> {
    let asked = client.each_member(|_, channel| async move {
        services::cluster(channel).counters(v1::CountersRequest {}).await
    });
    asked.await.into_iter().map(|(_, answer)| answer).collect()
}

/// A member's certificate, that of alice, and a list that revokes hers.
fn alice_is_revoked(dir: &Path) -> (Security, Security, Revocations) {
    let (member, alice) = (issued(dir, Role::Member, "c1"), issued(dir, Role::Client, "alice"));
    let (mut list, revocations) = (RevocationList::default(), Revocations::default());
    list.revoke(Role::Client, "alice", None);
    revocations.set(list);
    (member, alice, revocations)
}

#[tokio::test]
async fn a_revoked_certificate_ends_every_call_at_once_though_another_member_is_silent() {
    let dir = tempfile::tempdir().unwrap();
    let (member, alice, revocations) = alice_is_revoked(dir.path());
    let refusing = |name: &str| Fake::start_refusing(name, &member, revocations.clone());
    let (c1, c2, c3) = (refusing("c1"), refusing("c2"), silent().await);
    let client = Client::new(asking(&[&c1, &c2], &c3, alice)).unwrap();
    let started = Instant::now();
    let error = create(&client, CallOptions::default()).await.unwrap_err();
    assert!(error.is_revoked(), "{error}");
    assert_eq!(error.exit_code(), 7);
    let answers = counters(&client).await;
    assert_eq!(answers.len(), 3);
    let revoked = answers.iter().filter(|a| matches!(a, Err(error) if error.is_revoked()));
    assert_eq!(revoked.count(), 2, "{answers:?}");
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_revoked_certificate_ends_a_call_though_a_member_out_of_contact_still_answers() {
    let dir = tempfile::tempdir().unwrap();
    let (member, alice, revocations) = alice_is_revoked(dir.path());
    let c1 = Fake::start_refusing("c1", &member, revocations);
    // It does not know of the revocation, and knows no leader.
    let lagging = Fake::start_with("c3", &member);
    introduce(&[&c1, &lagging]);
    let mut config = config(&[&lagging]);
    (config.security, config.timeout) = (alice, LIMIT);
    let client = Client::new(config).unwrap();
    let started = Instant::now();
    let error = create(&client, CallOptions::default()).await.unwrap_err();
    assert!(error.is_revoked(), "{error}");
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_member_that_refuses_the_request_for_a_revoked_certificate_ends_the_call_too() {
    let (c1, c2) = (Fake::start("c1"), silent().await);
    let revoked = RpcError::new(ErrorCode::CertificateRevoked, "alice's is revoked");
    c1.set(|says| says.status_refused = Some(revoked));
    let client = Client::new(asking(&[&c1], &c2, Security::InsecurePlaintext)).unwrap();
    let started = Instant::now();
    let error = create(&client, CallOptions::default()).await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::CertificateRevoked), 7));
    assert!(started.elapsed() < AT_ONCE, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_request_that_may_have_been_applied_before_the_revocation_has_an_unknown_outcome() {
    let c1 = Fake::start("c1");
    c1.leads(1);
    let unknown = RpcError::new(ErrorCode::OutcomeUnknown, "cut off");
    let revoked = RpcError::new(ErrorCode::CertificateRevoked, "alice's is revoked");
    c1.set(|says| says.refusals = vec![unknown, revoked]);
    let error = create(&client(&[&c1]), CallOptions::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }), "{error}");
}

#[tokio::test]
async fn a_command_with_a_certificate_of_another_authority_does_not_wait_for_a_silent_member() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let c1 = Fake::start_with("c1", &issued(ours.path(), Role::Member, "c1"));
    let c2 = silent().await;
    let mut config = asking(&[&c1], &c2, issued(theirs.path(), Role::Client, "alice"));
    config.end_where_refused = true;
    let started = Instant::now();
    let command = Client::new(config.clone()).unwrap();
    let error = create(&command, CallOptions::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::Connect(_)), "{error}");
    assert_eq!(error.exit_code(), 7);
    assert!(started.elapsed() < LIMIT / 2, "{:?}", started.elapsed());
    // Other programs wait, because the silent member may accept the certificate.
    config.end_where_refused = false;
    let waiting = Client::new(config).unwrap();
    let short = CallOptions::default().timeout(Duration::from_secs(2));
    let error = create(&waiting, short).await.unwrap_err();
    assert!(matches!(error, ClientError::NoLeader { .. }), "{error}");
}

#[tokio::test]
async fn one_member_of_another_authority_does_not_end_a_call_that_another_member_answers() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stranger = Fake::start_with("c1", &issued(ours.path(), Role::Member, "c1"));
    let trusted = Fake::start_with("c2", &issued(theirs.path(), Role::Member, "c2"));
    let mut config = config(&[&stranger, &trusted]);
    config.security = issued(theirs.path(), Role::Client, "alice");
    config.end_where_refused = true;
    let client = Client::new(config).unwrap();
    let short = CallOptions::default().timeout(Duration::from_secs(5));
    let error = create(&client, short).await.unwrap_err();
    assert!(matches!(error, ClientError::NoLeader { .. }), "{error}");
    trusted.leads(1);
    assert_eq!(create(&client, CallOptions::default()).await.unwrap(), 5);
}
