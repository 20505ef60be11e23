//! The authority's guarantees about its files and the certificates that it issues.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn request(role: Role, name: &str) -> IssueRequest {
    IssueRequest {
        role,
        name: name.to_owned(),
        namespaces: Vec::new(),
        dns_names: vec!["localhost".to_owned()],
        ip_addrs: vec![IpAddr::from([127, 0, 0, 1])],
        days: 30,
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn keys_are_their_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, out) = (dir.path().join("ca"), dir.path().join("out"));
    init_ca(&ca, "dev").unwrap();
    let files = issue(&ca, &request(Role::Member, "c1"), &out).unwrap();
    assert_eq!(mode(&ca.join("ca.key")), 0o600);
    assert_eq!(mode(&files.key), 0o600);
    assert_eq!(mode(&ca), 0o700);
    assert_eq!(files.cert, out.join("member-c1.pem"));
    assert_eq!(files.key, out.join("member-c1.key"));
    // A renewal keeps the mode, and leaves no temporary file.
    issue(&ca, &request(Role::Member, "c1"), &out).unwrap();
    assert_eq!(mode(&files.key), 0o600);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 3);
    assert_eq!(std::fs::read_dir(&ca).unwrap().count(), 2);
}

#[test]
fn creating_the_authority_twice_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let cert = init_ca(dir.path(), "dev").unwrap();
    let state =
        || (std::fs::read(&cert).unwrap(), std::fs::read(dir.path().join("ca.key")).unwrap());
    let before = state();
    assert_eq!(init_ca(dir.path(), "dev").unwrap(), cert);
    assert_eq!(state(), before);
}

#[test]
fn processes_that_create_the_authority_at_once_end_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..8)
            .map(|n| {
                scope.spawn(move || {
                    init_ca(path, "dev").unwrap();
                    issue(path, &request(Role::Worker, &format!("w{n}")), path).unwrap()
                })
            })
            .collect();
        for issued in all {
            let files = issued.join().unwrap();
            crate::ClientTls::load(&crate::Security::Mtls(files)).unwrap();
        }
    });
}

#[test]
fn an_interrupted_creation_is_completed_with_the_same_key() {
    let dir = tempfile::tempdir().unwrap();
    let cert = init_ca(dir.path(), "dev").unwrap();
    let key = std::fs::read(dir.path().join("ca.key")).unwrap();
    std::fs::remove_file(&cert).unwrap();
    init_ca(dir.path(), "dev").unwrap();
    assert_eq!(std::fs::read(dir.path().join("ca.key")).unwrap(), key);
    issue(dir.path(), &request(Role::Member, "c1"), dir.path()).unwrap();
}

#[test]
fn an_authority_is_never_replaced_by_another() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    init_ca(&one, "one").unwrap();
    init_ca(&two, "two").unwrap();
    assert!(matches!(init_ca(&one, "two"), Err(PkiError::OtherCa { .. })));
    // A directory that trusts one authority does not accept another.
    let out = dir.path().join("out");
    issue(&one, &request(Role::Member, "c1"), &out).unwrap();
    let refused = issue(&two, &request(Role::Member, "c1"), &out);
    assert!(matches!(refused, Err(PkiError::OtherCa { .. })), "{refused:?}");
    // A certificate without its key counts as another site's authority.
    std::fs::remove_file(one.join("ca.key")).unwrap();
    assert!(matches!(init_ca(&one, "one"), Err(PkiError::CaKeyMissing(_))));
    let refused = issue(&one, &request(Role::Member, "c1"), &out);
    assert!(matches!(refused, Err(PkiError::CaKeyMissing(_))));
    let refused = issue(&dir.path().join("none"), &request(Role::Member, "c1"), &out);
    assert!(matches!(refused, Err(PkiError::NoCa(_))));
}

#[test]
fn a_bundle_of_trusted_authorities_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new, out) = (dir.path().join("old"), dir.path().join("new"), dir.path().join("out"));
    init_ca(&old, "dev").unwrap();
    init_ca(&new, "dev").unwrap();
    let files = issue(&old, &request(Role::Member, "c1"), &out).unwrap();
    let mut bundle = std::fs::read(&files.ca).unwrap();
    bundle.extend(std::fs::read(new.join("ca.pem")).unwrap());
    std::fs::write(&files.ca, &bundle).unwrap();
    issue(&new, &request(Role::Member, "c1"), &out).unwrap();
    assert_eq!(std::fs::read(&files.ca).unwrap(), bundle);
}

#[test]
fn a_certificate_has_the_requested_content() {
    let dir = tempfile::tempdir().unwrap();
    let ca = init_ca(dir.path(), "dev").unwrap();
    let mut wanted = request(Role::Client, "ann");
    wanted.namespaces = vec!["a".to_owned(), "b".to_owned()];
    wanted.ip_addrs.push("::1".parse().unwrap());
    let files = issue(dir.path(), &wanted, dir.path()).unwrap();
    let info = inspect(&files.cert).unwrap();
    let identity = info.identity.unwrap();
    assert_eq!((identity.role, identity.name.as_str()), (Role::Client, "ann"));
    assert_eq!(identity.namespaces, ["a", "b"]);
    assert_eq!(
        info.sans,
        ["uri:rollout://client/ann?ns=a,b", "dns:localhost", "ip:127.0.0.1", "ip:::1"]
    );
    let left_s = info.validity.not_after_unix - i64::try_from(unix_now_s()).unwrap();
    assert!((29 * 86_400..=30 * 86_400).contains(&left_s), "{left_s}");
    // The authority has no identity, but its expiry can be watched too.
    let authority = inspect(&ca).unwrap();
    assert_eq!(authority.identity, None);
    assert!(authority.validity.not_after_unix > info.validity.not_after_unix);
}

#[test]
fn only_a_members_certificate_can_serve_and_none_can_issue() {
    let dir = tempfile::tempdir().unwrap();
    init_ca(dir.path(), "dev").unwrap();
    for role in Role::ALL {
        let files = issue(dir.path(), &request(role, "x"), dir.path()).unwrap();
        let der = CertificateDer::from_pem_file(&files.cert).unwrap();
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();
        let usage = parsed.extended_key_usage().unwrap().unwrap().value;
        assert!(usage.client_auth && !usage.any);
        assert_eq!(usage.server_auth, role == Role::Member);
        assert!(!parsed.is_ca());
        assert!(!parsed.key_usage().unwrap().unwrap().value.key_cert_sign());
    }
}

#[test]
fn a_certificate_does_not_outlive_its_authority() {
    let dir = tempfile::tempdir().unwrap();
    let ca = init_ca(dir.path(), "dev").unwrap();
    let mut wanted = request(Role::Member, "c1");
    wanted.days = CERT_DAYS_MAX;
    let now_s = unix_now_s();
    let files =
        issue_between(dir.path(), &wanted, dir.path(), now_s, now_s + 100 * 365 * DAY_S).unwrap();
    assert_eq!(
        inspect(&files.cert).unwrap().validity.not_after_unix,
        inspect(&ca).unwrap().validity.not_after_unix
    );
}

#[test]
fn bad_requests_are_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, out) = (dir.path().join("ca"), dir.path().join("out"));
    init_ca(&ca, "dev").unwrap();
    type Change = fn(&mut IssueRequest);
    let changes: [Change; 7] = [
        |r| r.name = "../escape".to_owned(),
        |r| r.name = String::new(),
        |r| r.name = "insecure".to_owned(),
        |r| r.namespaces = vec!["a,b".to_owned()],
        |r| r.dns_names = vec!["not a host".to_owned()],
        |r| r.days = 0,
        |r| r.days = CERT_DAYS_MAX + 1,
    ];
    for change in changes {
        let mut bad = request(Role::Member, "c1");
        change(&mut bad);
        assert!(issue(&ca, &bad, &out).is_err(), "{bad:?}");
    }
    assert!(!out.exists());
    assert!(init_ca(&out, "no spaces").is_err() && !out.exists());
}
