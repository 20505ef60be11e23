//! The decision for every method, and the layer tested with real calls.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::either::Either as Io;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint, Server, Uri};
use tonic::{Code, Request};

use super::*;
use crate::identity::{Identity, peer_identity};
use crate::methods::METHODS;
use crate::pki::{IssueRequest, init_ca, issue};
use crate::tls::{ClientTls, Security, ServerTls, server_name};
use crate::v1;

fn peer(identity: Identity) -> PeerInfo {
    PeerInfo::uncertified(identity, SocketAddr::from(([127, 0, 0, 1], 1)))
}

#[test]
fn a_request_without_an_identity_is_refused_and_plaintext_may_do_everything() {
    for Method { path, .. } in METHODS {
        assert_eq!(authorize(path, None).unwrap_err().code(), Code::Unauthenticated);
        assert!(authorize(path, Some(&peer(Identity::insecure()))).is_ok(), "{path}");
    }
    let unknown = authorize("/rollout.v1.Runs/Unknown", Some(&peer(Identity::insecure())));
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
struct WhoCalls;

impl Service<http::Request<Body>> for WhoCalls {
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
    // Every path has the same service, so a new one needs no line here.
    let server = Server::builder()
        .layer(AuthzLayer::new())
        .layer(tower::layer::layer_fn(|_: Routes| WhoCalls))
        .add_routes(Routes::default());
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
async fn call_all(channel: Channel) -> Vec<(&'static str, Status)> {
    let mut answers = Vec::new();
    for Method { path, .. } in METHODS {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.unwrap();
        let codec = tonic_prost::ProstCodec::<v1::StatusRequest, v1::StatusResponse>::default();
        let request = Request::new(v1::StatusRequest::default());
        let answer = grpc.unary(request, path.parse().unwrap(), codec).await;
        answers.push((*path, answer.unwrap_err()));
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
            if allowed(path).unwrap().contains(&role) {
                assert_eq!(status.code(), Code::Aborted, "{role} {path}: {status}");
                assert_eq!(status.message(), format!("{role}/x1"));
            } else {
                assert_eq!(status.code(), Code::PermissionDenied, "{role} {path}: {status}");
                let error = RpcError::from_status(&status);
                assert_eq!(error.code, ErrorCode::PermissionDenied);
                assert!(!error.retryable && error.message.contains(path), "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_port_without_client_certificates_serves_only_enrollment() {
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
    let addr = serve(ServerTls::for_unenrolled(&security(Role::Member)).unwrap()).await;
    let pins = crate::pki::authority_pins(&ca).unwrap();
    // An admin's certificate does not help there, because none is requested.
    for tls in [ClientTls::pinned(&pins).unwrap(), ClientTls::load(&security(Role::Admin)).unwrap()]
    {
        for (path, status) in call_all(dial(tls, addr)).await {
            match path {
                "/rollout.v1.Enrolment/Enrol" => assert_eq!(status.message(), "newcomer/?"),
                _ => assert_eq!(status.code(), Code::PermissionDenied, "{path}: {status}"),
            }
        }
    }
    assert!(ServerTls::for_unenrolled(&Security::InsecurePlaintext).is_err());
}

#[tokio::test]
async fn a_plaintext_cluster_works_without_certificates() {
    let addr = serve(ServerTls::load(&Security::InsecurePlaintext).unwrap()).await;
    let tls = ClientTls::load(&Security::InsecurePlaintext).unwrap();
    for (path, status) in call_all(dial(tls, addr)).await {
        assert_eq!(status.message(), "admin/insecure", "{path}: {status}");
    }
}
