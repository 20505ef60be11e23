//! Every way in which a peer is refused.

use rcgen::{
    CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::client::danger::ServerCertVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::UnixTime;

use super::*;
use crate::revocations::Revocations;
use crate::tls::verify::{ClientIdentityVerifier, MemberVerifier};

/// A certificate of the authority with the changes of `change`, otherwise valid for everything.
fn custom(
    authority: &Authority,
    name: &str,
    uris: &[&str],
    change: impl FnOnce(&mut CertificateParams),
) -> TlsFiles {
    let read = |file: &str| std::fs::read_to_string(authority.path().join(file)).unwrap();
    let ca_key = KeyPair::from_pem(&read("ca.key")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).unwrap();
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
    let uris = uris.iter().map(|uri| SanType::URI((*uri).try_into().unwrap()));
    params.subject_alt_names.extend(uris);
    params.extended_key_usages =
        vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
    change(&mut params);
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let at = |suffix: &str| authority.path().join(format!("{name}.{suffix}"));
    let files = TlsFiles { ca: authority.path().join("ca.pem"), cert: at("pem"), key: at("key") };
    std::fs::write(&files.cert, params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

/// A certificate that an intermediate authority signed, followed by that one's.
fn issued_below(authority: &Authority, name: &str, uri: &str) -> TlsFiles {
    let out = authority.path().join("issuer");
    if !out.exists() {
        crate::pki::init_issuer(authority.path(), &out, 30).unwrap();
    }
    let read = |file: &str| std::fs::read_to_string(out.join(file)).unwrap();
    let issuer_key = KeyPair::from_pem(&read("issuer.key")).unwrap();
    let issuer = Issuer::from_ca_cert_pem(&read("issuer.pem"), issuer_key).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.subject_alt_names.push(SanType::URI(uri.try_into().unwrap()));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let at = |suffix: &str| authority.path().join(format!("{name}.{suffix}"));
    let files = TlsFiles { ca: authority.path().join("ca.pem"), cert: at("pem"), key: at("key") };
    let chain = params.signed_by(&key, &issuer).unwrap().pem() + &read("issuer.pem");
    std::fs::write(&files.cert, chain).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    files
}

fn expired(params: &mut CertificateParams) {
    params.not_before = rcgen::date_time_ymd(2020, 1, 1);
    params.not_after = rcgen::date_time_ymd(2021, 1, 1);
}

fn roots(files: &TlsFiles) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    roots
}

/// The server accepts a good caller and none of `bad`: it sees only the good one.
async fn only_the_good_caller_gets_in(authority: &Authority, bad: Vec<TlsConnector>) {
    let server = authority.issue(Role::Member, "server");
    let (incoming, addr) = listen(load_server(&server)).await;
    let mut seen = greet(incoming);
    for connector in bad {
        assert!(!is_let_in(connector, addr).await);
    }
    let good = load_client(&authority.issue(Role::Client, "good"));
    assert!(is_let_in(good.connector().unwrap(), addr).await);
    assert_eq!(seen.recv().await.unwrap().name, "good");
    assert!(seen.try_recv().is_err());
}

fn lax(files: &TlsFiles) -> TlsConnector {
    lax_connector(&files.ca, Some((&files.cert, &files.key)))
}

#[tokio::test]
async fn a_connection_ends_with_the_certificate_that_it_was_opened_with() {
    let authority = Authority::new();
    let (mut incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    // Certificates have times in whole seconds, so it expires two to three seconds from now.
    let brief = custom(&authority, "brief", &["rollout://client/brief"], |params| {
        params.not_after = (std::time::SystemTime::now() + Duration::from_secs(3)).into();
    });
    let lasting = authority.issue(Role::Client, "lasting");
    let mut open = Vec::new();
    for files in [&brief, &lasting] {
        let (stream, conn) = tokio::join!(connect(lax(files), addr), next(&mut incoming));
        open.push((stream.unwrap(), conn));
    }
    let [(_brief_stream, mut brief), (mut lasting_stream, mut lasting)] =
        <[_; 2]>::try_from(open).unwrap();
    let ended = timeout(LIMIT, brief.read(&mut [0])).await.expect("still open");
    assert_eq!(ended.unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    // The connection stays closed.
    assert!(brief.read(&mut [0]).await.is_err());
    lasting_stream.write_all(b"!").await.unwrap();
    assert_eq!(timeout(LIMIT, lasting.read(&mut [0])).await.expect("an answer").unwrap(), 1);
}

#[tokio::test]
async fn a_caller_without_a_certificate_is_refused() {
    let authority = Authority::new();
    let connector = lax_connector(&authority.path().join("ca.pem"), None);
    only_the_good_caller_gets_in(&authority, vec![connector]).await;
}

#[tokio::test]
async fn an_intermediate_ca_cannot_make_a_member_or_an_administrator() {
    let authority = Authority::new();
    let admin = issued_below(&authority, "forged", "rollout://admin/forged");
    let member = issued_below(&authority, "c9", "rollout://member/c9");
    only_the_good_caller_gets_in(&authority, vec![lax(&admin), lax(&member)]).await;
    let worker = issued_below(&authority, "w1", "rollout://worker/w1");
    let (incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let mut seen = greet(incoming);
    assert!(is_let_in(lax(&worker), addr).await);
    assert_eq!(seen.recv().await.unwrap().name, "w1");
}

#[tokio::test]
async fn a_caller_of_an_older_version_of_tls_is_refused() {
    let authority = Authority::new();
    let files = authority.issue(Role::Client, "old");
    let older =
        lax_connector_of(&files.ca, Some((&files.cert, &files.key)), &[&rustls::version::TLS12]);
    only_the_good_caller_gets_in(&authority, vec![older]).await;
}

#[tokio::test]
async fn a_caller_of_another_authority_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let stranger = other.issue(Role::Admin, "stranger");
    let connector =
        lax_connector(&authority.path().join("ca.pem"), Some((&stranger.cert, &stranger.key)));
    only_the_good_caller_gets_in(&authority, vec![connector]).await;
}

#[tokio::test]
async fn a_server_of_another_authority_is_refused() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (incoming, addr) = listen(load_server(&other.issue(Role::Member, "c1"))).await;
    let mut seen = greet(incoming);
    let tls = load_client(&authority.issue(Role::Worker, "w1"));
    let error = connect(tls.connector().unwrap(), addr).await.unwrap_err();
    assert!(error.to_string().contains("UnknownIssuer"), "{error}");
    assert!(seen.try_recv().is_err());
}

#[tokio::test]
async fn an_expired_caller_is_refused_by_the_server_and_does_not_even_start() {
    let authority = Authority::new();
    let files = custom(&authority, "late", &["rollout://client/late"], expired);
    let refused = ClientTls::load(&Security::Mtls(files.clone()));
    assert!(matches!(refused, Err(TlsError::Expired { .. })), "{refused:?}");
    only_the_good_caller_gets_in(&authority, vec![lax(&files)]).await;
}

#[test]
fn a_server_that_expired_since_it_was_loaded_is_refused() {
    let authority = Authority::new();
    let files = authority.issue(Role::Member, "c1");
    let leaf = CertificateDer::from_pem_file(&files.cert).unwrap();
    let name = server_name("127.0.0.1:7000").unwrap();
    let verifier = MemberVerifier::new(roots(&files), Revocations::default()).unwrap();
    let verify = |now| verifier.verify_server_cert(&leaf, &[], &name, &[], now);
    assert!(verify(UnixTime::now()).is_ok());
    let two_days = Duration::from_secs(UnixTime::now().as_secs() + 2 * 86_400);
    let error = verify(UnixTime::since_unix_epoch(two_days)).unwrap_err();
    assert!(error.to_string().contains("expired"), "{error}");
}

#[tokio::test]
async fn a_certificate_with_no_identity_or_several_is_refused() {
    let authority = Authority::new();
    let cases: [(&str, &[&str]); 6] = [
        ("none", &[]),
        ("foreign", &["spiffe://cluster/admin"]),
        ("two", &["rollout://client/ann", "rollout://admin/ann"]),
        ("twice", &["rollout://client/ann", "rollout://client/ann"]),
        ("capitals", &["rollout://client/ann", "ROLLOUT://admin/ann"]),
        ("insecure", &["rollout://admin/insecure"]),
    ];
    let mut bad = Vec::new();
    for (name, uris) in cases {
        let files = custom(&authority, name, uris, |_| {});
        let refused = ClientTls::load(&Security::Mtls(files.clone()));
        assert!(matches!(refused, Err(TlsError::Identity { .. })), "{name}: {refused:?}");
        bad.push(lax(&files));
    }
    only_the_good_caller_gets_in(&authority, bad).await;
}

#[tokio::test]
async fn an_identity_beside_the_uris_of_other_systems_is_accepted() {
    let authority = Authority::new();
    let uris = ["spiffe://cluster/ann", "rollout://client/ann"];
    let files = custom(&authority, "mesh", &uris, |_| {});
    let (incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let mut seen = greet(incoming);
    assert!(is_let_in(load_client(&files).connector().unwrap(), addr).await);
    assert_eq!(seen.recv().await.unwrap().to_string(), "client/ann");
}

#[tokio::test]
async fn a_certificate_that_may_only_serve_cannot_call() {
    let authority = Authority::new();
    let files = custom(&authority, "serve", &["rollout://admin/x"], |params| {
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    });
    only_the_good_caller_gets_in(&authority, vec![lax(&files)]).await;
}

#[test]
fn only_a_member_can_serve() {
    let authority = Authority::new();
    for role in [Role::Worker, Role::Client, Role::Admin] {
        // Even with a certificate that webpki would accept for a server.
        let uri = format!("rollout://{role}/x");
        let files = custom(&authority, role.as_str(), &[&uri], |_| {});
        let refused = ServerTls::load(&Security::Mtls(files.clone()));
        assert!(matches!(refused, Err(TlsError::NotMember { .. })), "{refused:?}");

        let leaf = CertificateDer::from_pem_file(&files.cert).unwrap();
        let name = server_name("127.0.0.1:7000").unwrap();
        let verifier = MemberVerifier::new(roots(&files), Revocations::default()).unwrap();
        let refused = verifier.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now());
        assert!(refused.unwrap_err().to_string().contains("not of a member"));
        let verifier = ClientIdentityVerifier::new(roots(&files), Revocations::default()).unwrap();
        assert!(verifier.verify_client_cert(&leaf, &[], UnixTime::now()).is_ok());
    }
}

#[tokio::test]
async fn a_member_under_another_name_than_the_dialed_one_is_refused() {
    let authority = Authority::new();
    let (incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let _seen = greet(incoming);
    let tls = load_client(&authority.issue(Role::Client, "ann"));
    for (endpoint, good) in [
        ("localhost:1", true),
        ("127.0.0.1:1", true),
        ("c2.example:1", false),
        ("127.0.0.2:1", false),
    ] {
        let tcp = TcpStream::connect(addr).await.unwrap();
        let name = server_name(endpoint).unwrap();
        let connected = tls.connector().unwrap().connect(name, tcp).await;
        assert_eq!(connected.is_ok(), good, "{endpoint}");
    }
}

#[tokio::test]
async fn a_plaintext_caller_is_refused_by_a_tls_server() {
    let authority = Authority::new();
    let (incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let mut seen = greet(incoming);
    let mut tcp = TcpStream::connect(addr).await.unwrap();
    tcp.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    // At most an alert, and then the end, well before the time limit of a handshake.
    let _ = timeout(LIMIT, tcp.read_to_end(&mut answer)).await.expect("still open");
    assert!(answer.len() < 16 && !answer.contains(&b'!'), "{answer:?}");
    assert!(seen.try_recv().is_err());
}

#[test]
fn files_that_do_not_belong_together_are_refused_by_name() {
    let authority = Authority::new();
    let (one, two) = (authority.issue(Role::Member, "c1"), authority.issue(Role::Member, "c2"));
    let load = |files: TlsFiles| {
        let server = ServerTls::load(&Security::Mtls(files.clone())).unwrap_err();
        let client = ClientTls::load(&Security::Mtls(files)).unwrap_err();
        assert_eq!(server.to_string(), client.to_string());
        server
    };
    let mixed = TlsFiles { key: two.key.clone(), ..one.clone() };
    assert!(matches!(load(mixed), TlsError::Config { .. }));
    let missing = TlsFiles { ca: authority.path().join("absent.pem"), ..one.clone() };
    assert!(load(missing).to_string().contains("absent.pem"));
    let swapped = TlsFiles { cert: one.key.clone(), key: one.cert.clone(), ..one.clone() };
    assert!(matches!(load(swapped), TlsError::Pem { what: "certificate", .. }));
    let no_key = TlsFiles { key: one.cert.clone(), ..one };
    assert!(matches!(load(no_key), TlsError::Pem { what: "private key", .. }));
}
