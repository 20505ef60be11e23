//! Unenrolled clients and a member over real sockets.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::StreamExt;
use rcgen::{CertificateParams, IsCa, KeyPair, PublicKeyData, SanType};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::*;
use crate::authz::AuthzLayer;
use crate::fakes;
use crate::identity::IdentityError;
use crate::pki::{
    IntermediateCa, IssueRequest, RequestedKey, authorities, authority_pins, init_ca, init_issuer,
    issue,
};
use crate::tls::{Security, ServerTls};

const PATIENCE: Duration = Duration::from_secs(30);

/// An authority with an intermediate CA below it, and a member's files.
struct Cluster {
    dir: tempfile::TempDir,
    member: TlsFiles,
    issuer: Arc<IntermediateCa>,
}

fn by_hand(dir: &Path, role: Role) -> TlsFiles {
    let request = IssueRequest {
        role,
        name: "x1".to_owned(),
        namespaces: Vec::new(),
        dns_names: Vec::new(),
        ip_addrs: vec![[127, 0, 0, 1].into()],
        days: 1,
    };
    issue(dir, &request, dir).unwrap()
}

impl Cluster {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        init_ca(dir.path(), "test").unwrap();
        let member = by_hand(dir.path(), Role::Member);
        let files = init_issuer(dir.path(), dir.path(), 30).unwrap();
        let issuer = Arc::new(IntermediateCa::load(&files).unwrap());
        Self { dir, member, issuer }
    }

    fn pins(&self) -> Vec<[u8; 32]> {
        authority_pins(&self.member.ca).unwrap()
    }

    /// Serves unenrolled clients. The first `refusals` get the error that another member leads.
    async fn serve(&self, refusals: usize) -> (String, Arc<AtomicUsize>) {
        let security = Security::Mtls(self.member.clone());
        let tls = ServerTls::for_unenrolled(&security).unwrap();
        let incoming = tls.incoming(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let addr = incoming.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicUsize::new(0));
        let service = FakeIssuer {
            issuer: self.issuer.clone(),
            authorities: authorities(&self.member.ca).unwrap(),
            asked: asked.clone(),
            refusals,
        };
        let service = fakes::enrolment_server::EnrolmentServer::new(service);
        let server = Server::builder().layer(AuthzLayer::new()).add_service(service);
        tokio::spawn(server.serve_with_incoming(incoming));
        (addr, asked)
    }

    /// The identity that a member's ordinary port sees for the holder of these files.
    async fn seen_as(&self, files: &TlsFiles) -> Option<(Identity, bool)> {
        let tls = ServerTls::load(&Security::Mtls(self.member.clone())).unwrap();
        let mut incoming = tls.incoming(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let addr = incoming.local_addr().unwrap();
        let connector = ClientTls::load(&Security::Mtls(files.clone())).ok()?.connector()?;
        let tcp = tokio::net::TcpStream::connect(addr).await.unwrap();
        let name = crate::tls::server_name(&addr.to_string()).unwrap();
        let (_stream, conn) = tokio::join!(connector.connect(name, tcp), incoming.next());
        let peer = conn.unwrap().unwrap().peer().clone();
        let by_issuer = self.issuer.has_issued(&peer.certificate.unwrap());
        Some((peer.identity, by_issuer))
    }
}

struct FakeIssuer {
    issuer: Arc<IntermediateCa>,
    authorities: Vec<CertificateDer<'static>>,
    asked: Arc<AtomicUsize>,
    refusals: usize,
}

#[tonic::async_trait]
impl fakes::enrolment_server::Enrolment for FakeIssuer {
    async fn enrol(
        &self,
        request: Request<v1::EnrolRequest>,
    ) -> Result<Response<v1::EnrolResponse>, Status> {
        if self.asked.fetch_add(1, Ordering::SeqCst) < self.refusals {
            return Err(RpcError::new(ErrorCode::NotLeader, "c9 leads").into());
        }
        let r = request.into_inner();
        let key = RequestedKey::read(&r.request).map_err(|e| Status::internal(e.to_string()))?;
        let identity = Identity::new(Role::Worker, r.name, vec!["a".to_owned()]).unwrap();
        let chain = self.issuer.issue(&identity, &key, 60, 0).unwrap();
        let issued = v1::IssuedCertificate {
            chain: chain.iter().map(|der| der.to_vec().into()).collect(),
            authorities: self.authorities.iter().map(|der| der.to_vec().into()).collect(),
            lifetime_ms: 60_000,
        };
        let labels = HashMap::from([("pool".to_owned(), "spot".to_owned())]);
        Ok(Response::new(v1::EnrolResponse { issued: Some(issued), labels }))
    }
}

#[tokio::test]
async fn an_unenrolled_client_gets_a_certificate_by_which_members_know_it() {
    let cluster = Cluster::new();
    let (leader, asked) = cluster.serve(2).await;
    let token = JoinToken::draw("rack").naming(cluster.pins());
    let files = files_in(&cluster.dir.path().join("w1"), "worker-w1");
    let endpoints = [leader];
    let enrolled = enroll(&token, "w1", &endpoints, &files, PATIENCE).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 3, "who does not lead is asked again");
    assert_eq!(enrolled.identity.to_string(), "worker/w1");
    assert_eq!(enrolled.labels["pool"], "spot");
    let key = std::fs::read(&files.key).unwrap();
    assert_eq!(cluster.seen_as(&files).await, Some((enrolled.identity.clone(), true)));
    // The intermediate CA has not issued a certificate that was made by hand.
    let client = by_hand(cluster.dir.path(), Role::Client);
    assert!(!cluster.seen_as(&client).await.unwrap().1);
    // A repeat with the same key.
    enroll(&token, "w1", &endpoints, &files, PATIENCE).await.unwrap();
    assert_eq!(std::fs::read(&files.key).unwrap(), key);
}

#[tokio::test]
async fn nothing_is_sent_to_a_server_that_the_token_does_not_name() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let (addr, asked) = other.serve(0).await;
    let token = JoinToken::draw("rack").naming(cluster.pins());
    let files = files_in(&cluster.dir.path().join("w1"), "worker-w1");
    let refused = enroll(&token, "w1", &[addr], &files, Duration::from_secs(1)).await;
    let error = refused.expect_err("another cluster's member");
    assert!(error.to_string().contains("no authority that the join token names"), "{error}");
    assert_eq!(asked.load(Ordering::SeqCst), 0);
    assert!(!files.cert.exists() && !files.ca.exists());
}

#[tokio::test]
async fn a_directory_that_trusts_another_cluster_keeps_what_it_has() {
    let (cluster, other) = (Cluster::new(), Cluster::new());
    let dir = cluster.dir.path().join("w1");
    let files = files_in(&dir, "worker-w1");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(&other.member.ca, &files.ca).unwrap();
    let (addr, _) = cluster.serve(0).await;
    let token = JoinToken::draw("rack").naming(cluster.pins());
    let refused = enroll(&token, "w1", &[addr], &files, PATIENCE).await;
    assert!(matches!(refused, Err(EnrollError::Pki(PkiError::OtherCa { .. }))), "{refused:?}");
    assert!(!files.cert.exists());
}

#[test]
fn only_the_key_of_a_signing_request_counts() {
    let cluster = Cluster::new();
    let key = KeyPair::generate().unwrap();
    let mut wish = CertificateParams::new(vec!["c1.example".to_owned()]).unwrap();
    wish.subject_alt_names.push(SanType::URI("rollout://admin/root".try_into().unwrap()));
    wish.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let request = wish.serialize_request(&key).unwrap();
    let read = RequestedKey::read(request.der()).unwrap();
    assert_eq!(read.hash(), *blake3::hash(&key.subject_public_key_info()).as_bytes());
    let identity = Identity::new(Role::Client, "ann", vec!["a".to_owned()]).unwrap();
    let chain = cluster.issuer.issue(&identity, &read, 60, 0).unwrap();
    let info = pki::inspect_der(&chain[0]).unwrap();
    assert_eq!((info.identity, info.sans.len()), (Some(identity), 1));
    let (_, leaf) = <x509_parser::prelude::X509Certificate<'_> as x509_parser::prelude::FromDer<
        '_,
        _,
    >>::from_der(&chain[0])
    .unwrap();
    let usage = leaf.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && !usage.any && !leaf.is_ca());

    for role in [Role::Admin, Role::Member] {
        let identity = Identity::new(role, "x", Vec::new()).unwrap();
        let refused = cluster.issuer.issue(&identity, &read, 60, 0);
        assert!(matches!(refused, Err(PkiError::RoleByHand(_))), "{role}");
    }
    // A request with another key's signature is refused, and so is a malformed one.
    let mut forged = request.der().to_vec();
    let last = forged.len() - 1;
    forged[last] ^= 1;
    for bad in [&forged[..], b"", &[0; 64], &[0; pki::SIGNING_REQUEST_BYTES_MAX + 1]] {
        assert!(matches!(RequestedKey::read(bad), Err(PkiError::Request(_))));
    }
    assert_eq!("newcomer".parse::<Role>(), Err(IdentityError::UnknownRole("newcomer".into())));
}

#[test]
fn an_intermediate_ca_is_good_for_callers_alone_and_needs_room_below_its_authority() {
    let cluster = Cluster::new();
    let der = CertificateDer::from_pem_file(cluster.dir.path().join("issuer.pem")).unwrap();
    let (_, parsed) =
        <x509_parser::prelude::X509Certificate<'_> as x509_parser::prelude::FromDer<'_, _>>::from_der(&der)
            .unwrap();
    let usage = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(usage.client_auth && !usage.server_auth && parsed.is_ca());
    let constraints = parsed.basic_constraints().unwrap().unwrap().value;
    assert_eq!(constraints.path_len_constraint, Some(0));

    // An authority that was made by an earlier version allows no intermediate CA.
    let old = tempfile::tempdir().unwrap();
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Constrained(0));
    std::fs::write(old.path().join("ca.key"), key.serialize_pem()).unwrap();
    std::fs::write(old.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
    let refused = init_issuer(old.path(), old.path(), 30);
    assert!(matches!(refused, Err(PkiError::NoRoomBelow(_))), "{refused:?}");
    assert!(!old.path().join("issuer.key").exists());
    // The key of a leaf certificate cannot issue certificates.
    let files = pki::IssuerFiles { cert: cluster.member.cert.clone(), key: cluster.member.key };
    assert!(IntermediateCa::load(&files).is_err());
}
