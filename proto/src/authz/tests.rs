//! The table compared with the contract, and the layer tested with real calls.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::either::Either as Io;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Code, Request};

use super::*;
use crate::identity::{Identity, peer_identity};
use crate::methods::METHODS;
use crate::pki::{IssueRequest, init_ca, issue};
use crate::tls::{ClientTls, Security, ServerTls, server_name};
use crate::v1;

fn contract() -> BTreeSet<String> {
    let set = prost_types::FileDescriptorSet::decode(v1::DESCRIPTORS).unwrap();
    let mut methods = BTreeSet::new();
    for file in &set.file {
        for service in &file.service {
            for method in &service.method {
                methods.insert(format!("/{}.{}/{}", file.package(), service.name(), method.name()));
            }
        }
    }
    methods
}

#[test]
fn every_method_of_the_contract_is_in_the_table_and_nothing_else() {
    let contract = contract();
    assert!(contract.len() >= 20, "the descriptors are not read right: {contract:?}");
    let table: BTreeSet<String> = TABLE.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(table.len(), TABLE.len(), "a method is in the table twice");
    assert_eq!(table, contract);
    assert!(TABLE.iter().all(|(_, roles)| !roles.is_empty()));
}

#[test]
fn the_options_of_the_methods_say_what_the_table_says() {
    let table: BTreeMap<&str, &[Role]> = TABLE.iter().copied().collect();
    let options: BTreeMap<&str, &[Role]> =
        METHODS.iter().map(|method| (method.path, method.roles)).collect();
    assert_eq!(options, table);
}

#[test]
fn every_role_reaches_its_own_methods_only() {
    for path in contract() {
        let roles = allowed(&path).unwrap();
        let reaches = |role| roles.contains(&role);
        let (service, method) = path.strip_prefix("/rollout.v1.").unwrap().split_once('/').unwrap();
        let expected = match (service, method) {
            ("Peer", _) => [true, false, false, false, false],
            ("Worker", _) => [false, true, false, false, false],
            // A worker's host has a gateway to its jobs' stores.
            ("Runs", "OpenSession") | ("Store", "Apply" | "Read" | "Wait") => {
                [false, true, false, true, true]
            }
            // A viewer sees states, counts and results, but no values of a store.
            ("Runs", "ListRuns" | "DescribeRun" | "WatchRun" | "ReadResults")
            | ("Items", "ListItems" | "DescribeItem")
            | ("Rendezvous" | "Barrier", "Describe" | "List")
            | ("Datasets", "DescribeDataset" | "ListDatasets")
            | ("Shards", "DescribeShards" | "ListJobs")
            | ("Checkpoints", "LatestCheckpoint" | "ListCheckpoints" | "DescribeCheckpoint") => {
                [false, false, true, true, true]
            }
            (
                "Runs" | "Items" | "Store" | "Rendezvous" | "Barrier" | "Datasets" | "Shards"
                | "Checkpoints",
                _,
            ) => [false, false, false, true, true],
            ("Events", _) => [true, false, true, true, true],
            ("Cluster", "Status") => [true; 5],
            ("Cluster", "ListWorkers" | "ListSettings") => [true, false, true, true, true],
            (
                "Cluster",
                "Bootstrap" | "CordonWorker" | "DrainWorker" | "UpgradeCluster" | "SetSetting",
            ) => [false, false, false, false, true],
            ("Members", "ListMembers") => [true, false, true, false, true],
            ("Namespaces", "SetQuota") => [false, false, false, false, true],
            ("Namespaces", _) => [false, false, true, true, true],
            // A caller without a certificate has no role that a certificate can have.
            ("Enrolment", "Enrol") => [false; 5],
            ("Enrolment", "Renew") => [false, true, false, true, false],
            ("Members" | "Maintenance" | "Tokens" | "Certificates", _) => {
                [false, false, false, false, true]
            }
            ("Cluster", _) => [true, false, false, false, true],
            _ => panic!("{path} is of a service that this test does not know"),
        };
        assert_eq!(Role::ALL.map(reaches), expected, "{path}");
    }
    assert_eq!(allowed("/rollout.v1.Runs/Unknown"), None);
    assert_eq!(allowed("/rollout.v1.Runs/CreateRun/"), None);
    assert_eq!(allowed("rollout.v1.Runs/CreateRun"), None);
}

fn peer(identity: Identity) -> PeerInfo {
    PeerInfo::uncertified(identity, SocketAddr::from(([127, 0, 0, 1], 1)))
}

#[test]
fn a_request_without_an_identity_is_refused_and_plaintext_may_do_everything() {
    for path in contract() {
        assert_eq!(decide(&path, None).unwrap_err().code(), Code::Unauthenticated);
        assert!(decide(&path, Some(&peer(Identity::insecure()))).is_ok(), "{path}");
    }
    let unknown = decide("/rollout.v1.Runs/Unknown", Some(&peer(Identity::insecure())));
    assert_eq!(unknown.unwrap_err().code(), ErrorCode::UnsupportedVersion.grpc());
}

#[test]
fn a_request_with_a_revoked_certificate_is_refused() {
    let ann = Identity::new(Role::Client, "ann", Vec::new()).unwrap();
    let mut list = crate::revocations::RevocationList::default();
    list.revoke(Role::Client, "ann", Some(100));
    let revocations = Revocations::default();
    revocations.set(list);
    let since = |not_before_unix| PeerInfo { not_before_unix, ..peer(ann.clone()) };
    let refused = check_revocation(&revocations, Some(&since(99))).unwrap_err();
    assert_eq!(RpcError::from_status(&refused).code, ErrorCode::CertificateRevoked);
    assert!(check_revocation(&revocations, Some(&since(100))).is_ok());
    assert!(check_revocation(&revocations, Some(&peer(Identity::insecure()))).is_ok());
}

/// Answers every call with the caller's identity, as an error: `ABORTED: member/c1`.
#[derive(Clone)]
struct WhoCalls<const SERVICE: usize>;

const SERVICES: [&str; 18] = [
    "rollout.v1.Runs",
    "rollout.v1.Worker",
    "rollout.v1.Cluster",
    "rollout.v1.Peer",
    "rollout.v1.Items",
    "rollout.v1.Events",
    "rollout.v1.Store",
    "rollout.v1.Members",
    "rollout.v1.Datasets",
    "rollout.v1.Shards",
    "rollout.v1.Checkpoints",
    "rollout.v1.Rendezvous",
    "rollout.v1.Barrier",
    "rollout.v1.Maintenance",
    "rollout.v1.Namespaces",
    "rollout.v1.Tokens",
    "rollout.v1.Enrolment",
    "rollout.v1.Certificates",
];

impl<const SERVICE: usize> NamedService for WhoCalls<SERVICE> {
    const NAME: &'static str = SERVICES[SERVICE];
}

impl<const SERVICE: usize> Service<http::Request<Body>> for WhoCalls<SERVICE> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let request = Request::from_http(request);
        let status = match peer_identity(&request) {
            Ok(identity) => Status::aborted(identity.to_string()),
            Err(status) => status,
        };
        Box::pin(ready(Ok(status.into_http())))
    }
}

async fn serve(tls: ServerTls) -> SocketAddr {
    let incoming = tls.incoming(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let addr = incoming.local_addr().unwrap();
    let server = Server::builder()
        .layer(AuthzLayer::new())
        .add_service(WhoCalls::<0>)
        .add_service(WhoCalls::<1>)
        .add_service(WhoCalls::<2>)
        .add_service(WhoCalls::<3>)
        .add_service(WhoCalls::<4>)
        .add_service(WhoCalls::<5>)
        .add_service(WhoCalls::<6>)
        .add_service(WhoCalls::<7>)
        .add_service(WhoCalls::<8>)
        .add_service(WhoCalls::<9>)
        .add_service(WhoCalls::<10>)
        .add_service(WhoCalls::<11>)
        .add_service(WhoCalls::<12>)
        .add_service(WhoCalls::<13>)
        .add_service(WhoCalls::<14>)
        .add_service(WhoCalls::<15>)
        .add_service(WhoCalls::<16>)
        .add_service(WhoCalls::<17>);
    tokio::spawn(server.serve_with_incoming(incoming));
    addr
}

fn dial(tls: ClientTls, addr: SocketAddr) -> Channel {
    let connector = tower::service_fn(move |_: Uri| {
        let tls = tls.connector();
        async move {
            let tcp = TcpStream::connect(addr).await?;
            let name = server_name(&addr.to_string()).map_err(std::io::Error::other)?;
            match tls {
                Some(tls) => Ok(TokioIo::new(Io::Left(tls.connect(name, tcp).await?))),
                None => Ok::<_, std::io::Error>(TokioIo::new(Io::Right(tcp))),
            }
        }
    });
    Endpoint::from_static("http://rollout").connect_with_connector_lazy(connector)
}

/// The gRPC status of an empty call to every method of the contract.
async fn call_all(channel: Channel) -> Vec<(String, Status)> {
    let mut answers = Vec::new();
    for path in contract() {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::StatusRequest, v1::StatusResponse>::default();
        let request = Request::new(v1::StatusRequest::default());
        let answer = grpc.unary(request, path.parse().unwrap(), codec).await;
        answers.push((path, answer.unwrap_err()));
    }
    answers
}

#[tokio::test]
async fn a_certificate_of_the_wrong_role_reaches_no_service() {
    let dir = tempfile::tempdir().unwrap();
    init_ca(dir.path(), "test").unwrap();
    let security = |role: Role| {
        let request = IssueRequest {
            role,
            name: "x1".to_owned(),
            namespaces: Vec::new(),
            dns_names: Vec::new(),
            ip_addrs: vec![[127, 0, 0, 1].into()],
            days: 1,
        };
        Security::Mtls(issue(dir.path(), &request, dir.path()).unwrap())
    };
    let addr = serve(ServerTls::load(&security(Role::Member)).unwrap()).await;
    for role in Role::ALL {
        let tls = ClientTls::load(&security(role)).unwrap();
        for (path, status) in call_all(dial(tls, addr)).await {
            if allowed(&path).unwrap().contains(&role) {
                assert_eq!(status.code(), Code::Aborted, "{role} {path}: {status}");
                assert_eq!(status.message(), format!("{role}/x1"));
            } else {
                assert_eq!(status.code(), Code::PermissionDenied, "{role} {path}: {status}");
                let error = RpcError::from_status(&status);
                assert_eq!(error.code, ErrorCode::PermissionDenied);
                assert!(!error.retryable && error.message.contains(&path), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_port_without_client_certificates_serves_only_enrolment() {
    let dir = tempfile::tempdir().unwrap();
    let ca = init_ca(dir.path(), "test").unwrap();
    let request = |role: Role| IssueRequest {
        role,
        name: "x1".to_owned(),
        namespaces: Vec::new(),
        dns_names: Vec::new(),
        ip_addrs: vec![[127, 0, 0, 1].into()],
        days: 1,
    };
    let security =
        |role: Role| Security::Mtls(issue(dir.path(), &request(role), dir.path()).unwrap());
    let addr = serve(ServerTls::for_newcomers(&security(Role::Member)).unwrap()).await;
    let pins = crate::pki::authority_pins(&ca).unwrap();
    // An admin's certificate does not help there, because none is requested.
    for tls in [ClientTls::pinned(&pins).unwrap(), ClientTls::load(&security(Role::Admin)).unwrap()]
    {
        for (path, status) in call_all(dial(tls, addr)).await {
            match path.as_str() {
                "/rollout.v1.Enrolment/Enrol" => assert_eq!(status.message(), "newcomer/?"),
                _ => assert_eq!(status.code(), Code::PermissionDenied, "{path}: {status}"),
            }
        }
    }
    assert!(ServerTls::for_newcomers(&Security::InsecurePlaintext).is_err());
}

#[tokio::test]
async fn a_plaintext_cluster_works_without_certificates() {
    let addr = serve(ServerTls::load(&Security::InsecurePlaintext).unwrap()).await;
    let tls = ClientTls::load(&Security::InsecurePlaintext).unwrap();
    for (path, status) in call_all(dial(tls, addr)).await {
        assert_eq!(status.message(), "admin/insecure", "{path}: {status}");
    }
}
