//! Each phase of a connection fails under its own name.

use std::net::IpAddr;
use std::path::Path;

use futures::StreamExt;
use tokio::net::TcpListener;

use super::*;
use crate::identity::Role;
use crate::pki::{IssueRequest, TlsFiles, init_ca, issue};
use crate::tls::{Security, ServerTls};
use crate::v1;

fn authority(dir: &Path) -> (TlsFiles, TlsFiles) {
    init_ca(dir, "test").unwrap();
    let certificate = |role, name: &str| {
        let request = IssueRequest {
            role,
            name: name.to_owned(),
            namespaces: Vec::new(),
            dns_names: Vec::new(),
            ip_addrs: vec![IpAddr::from([127, 0, 0, 1])],
            days: 1,
        };
        issue(dir, &request, dir).unwrap()
    };
    (certificate(Role::Member, "c1"), certificate(Role::Client, "alice"))
}

async fn failure(endpoint: &Endpoint, security: &Security, map: &DialMap) -> ConnectError {
    let tls = ClientTls::load(security).unwrap();
    let limit = Duration::from_secs(1);
    let options = ChannelOptions {
        connect_timeout: limit,
        handshake_timeout: limit,
        ..ChannelOptions::default()
    };
    let channel = channel(endpoint, &tls, map, &options).unwrap();
    let mut cluster = v1::cluster_client::ClusterClient::new(channel);
    let status = cluster.status(v1::StatusRequest::default()).await.unwrap_err();
    ConnectError::find(&status).unwrap_or_else(|| panic!("{status:?}")).clone()
}

async fn plain(endpoint: &str) -> ConnectError {
    let seed = Endpoint::seed(endpoint).unwrap();
    failure(&seed, &Security::InsecurePlaintext, &DialMap::default()).await
}

/// Serves handshakes, and keeps the connections open.
async fn serve(files: &TlsFiles) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap().to_string();
    let mut incoming = ServerTls::load(&Security::Mtls(files.clone())).unwrap().incoming(listener);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Some(conn) = incoming.next().await {
            kept.push(conn);
        }
    });
    addr
}

#[tokio::test]
async fn an_unknown_name_fails_at_dns() {
    let error = plain("c1.invalid:7000").await;
    assert_eq!((error.phase, error.endpoint.as_str()), (Phase::Dns, "c1.invalid:7000"));
}

#[tokio::test]
async fn a_closed_port_fails_at_tcp_and_names_where_it_was_dialed() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = plain(&free.to_string()).await;
    assert_eq!((error.phase, error.cause.as_str()), (Phase::Tcp, "connection refused"));
    assert!(!error.permanent);
    let named = Endpoint::with_name("c2", "c2.example:7000").unwrap();
    let map = format!("c2={free}").parse().unwrap();
    let error = failure(&named, &Security::InsecurePlaintext, &map).await;
    assert_eq!(error.endpoint, format!("c2 (c2.example:7000) by way of {free}"));
}

#[tokio::test]
async fn a_server_of_another_authority_fails_at_tls_for_good() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_, client) = authority(ours.path());
    let (server, _) = authority(theirs.path());
    let seed = Endpoint::seed(&serve(&server).await).unwrap();
    let error = failure(&seed, &Security::Mtls(client), &DialMap::default()).await;
    assert_eq!((error.phase, error.permanent), (Phase::Tls, true), "{error}");
}

#[tokio::test]
async fn a_client_that_the_server_refuses_fails_at_tls_for_good() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server, _) = authority(ours.path());
    let (_, mut client) = authority(theirs.path());
    // The client trusts the server, but the server does not trust the client.
    client.ca = server.ca.clone();
    let seed = Endpoint::seed(&serve(&server).await).unwrap();
    let error = failure(&seed, &Security::Mtls(client), &DialMap::default()).await;
    assert_eq!((error.phase, error.permanent), (Phase::Tls, true), "{error}");
}

#[tokio::test]
async fn a_client_without_tls_at_a_port_with_tls_fails_at_tls_for_good_and_says_what_to_drop() {
    let dir = tempfile::tempdir().unwrap();
    let (server, _) = authority(dir.path());
    let addr = serve(&server).await;
    let error = plain(&addr).await;
    assert_eq!((error.phase, error.permanent, error.wants_tls()), (Phase::Tls, true, true));
    let told = "it answers with TLS; drop --insecure-plaintext";
    assert!(error.to_string().starts_with(&format!("cannot connect to {addr}: {told}")), "{error}");
    let seed = Endpoint::seed(&addr).unwrap();
    let tls = ClientTls::load(&Security::InsecurePlaintext).unwrap();
    let options = ChannelOptions::default();
    let asked = presented(&seed, &tls, &DialMap::default(), &options).await;
    assert!(asked.unwrap_err().wants_tls());
}

#[tokio::test]
async fn a_server_without_tls_gets_the_preface_once_and_its_first_bytes_are_read() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let tcp = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    tcp.set_nodelay(true).unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    // An empty settings frame.
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    server.write_all(&settings).await.unwrap();
    let mut conn = Conn::plain(tcp).await.unwrap().expect("no TLS");
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    // HTTP/2 writes the preface, in any pieces, and continues.
    for piece in [&preface[..5], &preface[5..], b"request"] {
        conn.write_all(piece).await.unwrap();
    }
    conn.shutdown().await.unwrap();
    let mut got = Vec::new();
    server.read_to_end(&mut got).await.unwrap();
    assert_eq!(got, [&preface[..], b"request"].concat());
    let mut first = [0; 9];
    conn.read_exact(&mut first).await.unwrap();
    assert_eq!(first, settings);
}

#[tokio::test]
async fn a_server_that_never_shakes_hands_fails_at_tls_in_time() {
    let dir = tempfile::tempdir().unwrap();
    let (_, client) = authority(dir.path());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let seed = Endpoint::seed(&listener.local_addr().unwrap().to_string()).unwrap();
    let error = failure(&seed, &Security::Mtls(client), &DialMap::default()).await;
    assert_eq!(
        (error.phase, error.cause.as_str(), error.permanent),
        (Phase::Tls, "no answer within 1000 ms", false)
    );
}

#[test]
fn a_certificate_that_is_refused_after_the_handshake_is_a_connect_error_too() {
    let ended = |text: &str| tonic::Status::from_error(Box::new(io::Error::other(text.to_owned())));
    let behind = |status: &tonic::Status| ConnectError::behind(status, &"c1:7000");
    let late =
        behind(&ended("connection error: received fatal alert: CertificateRevoked")).unwrap();
    assert!(late.is_revoked() && late.permanent, "{late}");
    let told = "cannot connect to c1:7000: received fatal alert: CertificateRevoked (at tls)";
    assert_eq!(late.to_string(), told);
    let unknown = behind(&ended("received fatal alert: UnknownCA (again)")).unwrap();
    assert_eq!(
        (unknown.cause.as_str(), unknown.is_revoked()),
        ("received fatal alert: UnknownCA", false)
    );
    // The connection may have carried earlier requests.
    for text in ["received fatal alert: InternalError", "connection reset by peer"] {
        assert_eq!(behind(&ended(text)), None, "{text}");
    }
    // A member's own text is not an alert.
    let said = tonic::Status::internal("received fatal alert: CertificateRevoked");
    assert_eq!(behind(&said), None);
}
