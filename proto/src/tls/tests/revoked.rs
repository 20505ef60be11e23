//! A revoked certificate: the handshake fails, and an open connection ends.

use super::*;
use crate::revocations::{RevocationList, Revocations};

fn revoking(role: Role, name: &str, before_s: Option<u64>) -> RevocationList {
    let mut list = RevocationList::default();
    list.revoke(role, name, before_s);
    list
}

fn refusing_server(authority: &Authority, revocations: &Revocations) -> ServerTls {
    let security = Security::Mtls(authority.issue(Role::Member, "c1"));
    ServerTls::refusing(&security, revocations.clone()).unwrap()
}

#[tokio::test]
async fn a_revoked_caller_is_refused_in_the_handshake_with_the_reason() {
    let authority = Authority::new();
    let revocations = Revocations::default();
    let (incoming, addr) = listen(refusing_server(&authority, &revocations)).await;
    let mut seen = greet(incoming);
    let ann = load_client(&authority.issue(Role::Client, "ann"));
    assert!(is_let_in(ann.connector().unwrap(), addr).await);
    assert_eq!(seen.recv().await.unwrap().name, "ann");

    revocations.set(revoking(Role::Client, "ann", None));
    let mut refused = connect(ann.connector().unwrap(), addr).await.unwrap();
    let error = refused.read_exact(&mut [0]).await.unwrap_err();
    assert!(error.to_string().contains("CertificateRevoked"), "{error}");
    let bob = load_client(&authority.issue(Role::Client, "bob"));
    assert!(is_let_in(bob.connector().unwrap(), addr).await, "another caller's is not revoked");

    revocations.set(RevocationList::default());
    assert!(is_let_in(ann.connector().unwrap(), addr).await, "it was withdrawn");
}

#[tokio::test]
async fn a_refusal_of_a_revoked_certificate_names_identity_and_address() {
    let authority = Authority::new();
    let revocations = Revocations::default();
    let (refused, mut refusals) = tokio::sync::mpsc::unbounded_channel();
    let server =
        refusing_server(&authority, &revocations).with_on_revoked(Arc::new(move |who, addr| {
            let _ = refused.send((who.to_string(), addr));
        }));
    let (incoming, addr) = listen(server).await;
    let _seen = greet(incoming);
    revocations.set(revoking(Role::Client, "ann", None));
    let ann = load_client(&authority.issue(Role::Client, "ann"));
    let mut stream = connect(ann.connector().unwrap(), addr).await.unwrap();
    let caller = stream.get_ref().0.local_addr().unwrap();
    assert!(stream.read_exact(&mut [0]).await.is_err());
    let told = timeout(LIMIT, refusals.recv()).await.expect("no refusal was reported");
    assert_eq!(told, Some(("client/ann".to_owned(), caller)));
    let bob = load_client(&authority.issue(Role::Client, "bob"));
    assert!(is_let_in(bob.connector().unwrap(), addr).await);
    assert!(refusals.try_recv().is_err(), "another caller's is not refused");
}

#[tokio::test]
async fn an_open_connection_ends_when_its_certificate_is_revoked_and_no_other_does() {
    let authority = Authority::new();
    let revocations = Revocations::default();
    let (mut incoming, addr) = listen(refusing_server(&authority, &revocations)).await;
    let mut open = Vec::new();
    for name in ["ann", "bob"] {
        let tls = load_client(&authority.issue(Role::Client, name));
        let (stream, conn) = tokio::join!(
            async { connect(tls.connector().unwrap(), addr).await.unwrap() },
            next(&mut incoming)
        );
        // Like a server that waits for a request.
        let reading = tokio::spawn(async move {
            let mut conn = conn;
            conn.read_exact(&mut [0]).await
        });
        open.push((stream, reading));
    }
    revocations.set(revoking(Role::Client, "ann", None));
    let (mut bobs, bob) = open.pop().unwrap();
    let (_anns, ann) = open.pop().unwrap();
    let error = timeout(LIMIT, ann).await.expect("still open").unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the certificate is revoked");
    bobs.write_all(b"x").await.unwrap();
    timeout(LIMIT, bob).await.expect("no answer").unwrap().unwrap();
}

#[tokio::test]
async fn one_issued_after_the_time_of_the_revocation_is_accepted() {
    let authority = Authority::new();
    let files = authority.issue(Role::Client, "ann");
    let tls = load_client(&files);
    let since = u64::try_from(tls.validity().unwrap().not_before_unix).unwrap();
    let revocations = Revocations::default();
    let (incoming, addr) = listen(refusing_server(&authority, &revocations)).await;
    let _seen = greet(incoming);
    revocations.set(revoking(Role::Client, "ann", Some(since + 1)));
    assert!(!is_let_in(tls.connector().unwrap(), addr).await);
    revocations.set(revoking(Role::Client, "ann", Some(since)));
    assert!(is_let_in(tls.connector().unwrap(), addr).await);
}

#[tokio::test]
async fn a_member_refuses_to_call_one_whose_certificate_is_revoked() {
    let authority = Authority::new();
    let (incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let _seen = greet(incoming);
    let revocations = Revocations::default();
    let security = Security::Mtls(authority.issue(Role::Member, "c2"));
    let tls = ClientTls::refusing(&security, revocations.clone()).unwrap();
    let open = connect(tls.connector().unwrap(), addr).await.unwrap();
    let leaf = open.get_ref().1.peer_certificates().unwrap()[0].clone();
    let until = tls.until_refused(&leaf).unwrap();
    revocations.set(revoking(Role::Member, "c1", None));
    timeout(LIMIT, until).await.expect("the open connection hears of it");
    let error = connect(tls.connector().unwrap(), addr).await.unwrap_err();
    assert!(error.to_string().contains("Revoked"), "{error}");
}

#[tokio::test]
async fn the_members_that_connected_are_known_with_the_time_of_their_certificates() {
    let authority = Authority::new();
    let revocations = Revocations::default();
    let (incoming, addr) =
        listen(refusing_server(&authority, &revocations).only(Role::Member)).await;
    let mut seen = greet(incoming);
    for (role, name) in [(Role::Client, "ann"), (Role::Member, "c2")] {
        let tls = load_client(&authority.issue(role, name));
        if is_let_in(tls.connector().unwrap(), addr).await {
            seen.recv().await.unwrap();
        }
    }
    let members = revocations.members_seen();
    assert_eq!(members.len(), 1);
    assert_eq!(members[0].0, "c2");
    assert!(members[0].1 > 0);
}
