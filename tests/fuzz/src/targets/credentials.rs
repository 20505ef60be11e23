//! Fuzzes certificates, signing requests and join tokens, and the texts that name an identity, a trace, a cluster or
//! an address.

use rollout_proto::enrollment::JoinToken;
use rollout_proto::pki::{
    IssueRequest, RequestedKey, init_ca, inspect_der, issue, signing_request,
};
use rollout_proto::trace::TraceContext;
use rollout_proto::{DialMap, ErrorCode, HostPort, Identity, MemberAddress, Role};
use rollout_raft::ClusterId;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

pub(crate) fn run(bytes: &[u8]) {
    let _ = inspect_der(&CertificateDer::from(bytes));
    let _ = Identity::from_certificate(bytes);
    let _ = RequestedKey::read(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        texts(text);
    }
}

fn texts(text: &str) {
    if let Ok(identity) = Identity::from_uri(text) {
        assert_eq!(identity.to_uri(), text);
    }
    if let Ok(token) = text.parse::<JoinToken>() {
        assert_eq!(token.reveal(), text.trim());
    }
    if let Ok(cluster) = text.parse::<ClusterId>() {
        assert_eq!(cluster.to_string(), text);
    }
    let _ = TraceContext::parse(text);
    let _ = text.parse::<HostPort>();
    let _ = text.parse::<DialMap>();
    let _ = text.parse::<MemberAddress>();
    let _ = text.parse::<ErrorCode>();
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().expect("a directory");
    init_ca(dir.path(), "fuzz").expect("an authority");
    let request = IssueRequest {
        role: Role::Client,
        name: "ann".into(),
        namespaces: vec!["a".into(), "b".into()],
        dns_names: vec!["localhost".into()],
        ip_addrs: Vec::new(),
        days: 1,
    };
    let files = issue(dir.path(), &request, dir.path()).expect("a certificate");
    let certificate = CertificateDer::from_pem_file(&files.cert).expect("PEM");
    let identity = Identity::new(Role::Worker, "gpu-7", vec!["a".into()]).expect("an identity");
    let token = JoinToken::draw("rack-7.a").naming(vec![[1; 32], [254; 32]]);
    vec![
        certificate.to_vec(),
        signing_request(&dir.path().join("new.key")).expect("a request"),
        identity.to_uri().into_bytes(),
        token.reveal().into_bytes(),
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_vec(),
        b"0123456789abcdef0123456789abcdef".to_vec(),
        b"c1=[::1]:7420".to_vec(),
        b"c1=host:7420,host:7421".to_vec(),
    ]
}
