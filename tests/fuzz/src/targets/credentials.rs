//! Fuzzes certificates, signing requests and join tokens, the errors that members send, and the texts that name an
//! identity, a trace, a cluster or an address. Each decoder gets all bytes.

use prost::Message as _;
use rollout_proto::enrollment::JoinToken;
use rollout_proto::pki::{
    IssueRequest, RequestedKey, init_ca, inspect_der, issue, signing_request,
};
use rollout_proto::trace::TraceContext;
use rollout_proto::{DialMap, ErrorCode, HostPort, Identity, MemberAddress, Role, v1};
use rollout_raft::ClusterId;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;

pub(crate) fn run(bytes: &[u8]) {
    let _ = inspect_der(&CertificateDer::from(bytes));
    let _ = Identity::from_certificate(bytes);
    let _ = RequestedKey::read(bytes);
    error(bytes);
    if let Ok(text) = std::str::from_utf8(bytes) {
        texts(text);
    }
}

/// The bytes as the details of an error. Their length selects the gRPC code: the codes are 0 to 16, and 17 is none.
/// Returns how many members the error lists.
fn error(bytes: &[u8]) -> usize {
    let code = (bytes.len() % 18) as i32;
    rollout_proto::fuzzing::error(code, &String::from_utf8_lossy(bytes), bytes)
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

/// Details of errors: of a member that does not lead, with all fields, and of a newer member, with an unknown code.
fn details() -> [Vec<u8>; 2] {
    let member = |id: u64| v1::MemberInfo {
        id,
        name: format!("c{id}"),
        client_addr: format!("c{id}:7420"),
        voter: true,
        ..Default::default()
    };
    let members = vec![member(1), member(2), member(3)];
    let not_leader = v1::ErrorDetail {
        code: ErrorCode::NotLeader.code().into(),
        retryable: true,
        outcome: v1::Outcome::NotApplied.into(),
        leader_name: "c2".into(),
        leader_addr: "c2:7420".into(),
        coord_epoch: 9,
        members: Some(v1::MemberList { version: 7, members, leader: "c2".into() }),
        oldest_index: 12,
    };
    let newer = v1::ErrorDetail { code: "RO-1999".into(), retryable: true, ..Default::default() };
    [not_leader.encode_to_vec(), newer.encode_to_vec()]
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
    let mut seeds = vec![
        certificate.to_vec(),
        signing_request(&dir.path().join("new.key")).expect("a request"),
        identity.to_uri().into_bytes(),
        token.reveal().into_bytes(),
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_vec(),
        b"0123456789abcdef0123456789abcdef".to_vec(),
        b"c1=[::1]:7420".to_vec(),
        b"c1=host:7420,host:7421".to_vec(),
    ];
    seeds.extend(details());
    seeds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_details_of_the_seeds_list_members() {
        assert_eq!(details().map(|details| error(&details)), [3, 0]);
    }
}
