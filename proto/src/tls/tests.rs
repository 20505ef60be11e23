//! Which peers complete a handshake and which do not, over real sockets.

mod refusals;
mod reload;
mod revoked;
mod shares;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::crypto::provider;
use crate::identity::{Identity, Role};
use crate::pki::{IssueRequest, init_ca, issue};

const LIMIT: Duration = Duration::from_secs(30);

/// A new authority and its directory, which issues certificates on request.
struct Authority(tempfile::TempDir);

impl Authority {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        init_ca(dir.path(), "test").unwrap();
        Authority(dir)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn issue(&self, role: Role, name: &str) -> TlsFiles {
        let request = IssueRequest {
            role,
            name: name.to_owned(),
            namespaces: Vec::new(),
            dns_names: vec!["localhost".to_owned()],
            ip_addrs: vec![IpAddr::from([127, 0, 0, 1])],
            days: 1,
        };
        issue(self.path(), &request, self.path()).unwrap()
    }
}

fn load_client(files: &TlsFiles) -> ClientTls {
    ClientTls::load(&Security::Mtls(files.clone())).unwrap()
}

fn load_server(files: &TlsFiles) -> ServerTls {
    ServerTls::load(&Security::Mtls(files.clone())).unwrap()
}

async fn listen(tls: ServerTls) -> (Incoming, SocketAddr) {
    let incoming = tls.incoming(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let addr = incoming.local_addr().unwrap();
    (incoming, addr)
}

async fn next(incoming: &mut Incoming) -> ServerConn {
    timeout(LIMIT, incoming.next()).await.expect("no connection came").unwrap().unwrap()
}

async fn connect(
    connector: TlsConnector,
    addr: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(addr).await?;
    connector.connect(server_name(&addr.to_string()).unwrap(), tcp).await
}

/// Whether the server accepted the caller. Under TLS 1.3 a caller learns only by reading that its own certificate was
/// refused.
async fn is_let_in(connector: TlsConnector, addr: SocketAddr) -> bool {
    let Ok(mut stream) = connect(connector, addr).await else { return false };
    let mut byte = [0];
    // The servers of these tests send a byte to every accepted caller.
    matches!(timeout(LIMIT, stream.read(&mut byte)).await.expect("no answer"), Ok(1))
}

/// Sends a byte to every accepted caller, and reports its identity.
fn greet(mut incoming: Incoming) -> tokio::sync::mpsc::UnboundedReceiver<Identity> {
    let (let_in, seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(mut conn)) = incoming.next().await {
            // The caller may be gone by now, and the receiver of the identities too.
            let _ = let_in.send(conn.peer().identity.clone());
            if conn.write_all(b"!").await.is_ok() {
                let _ = conn.shutdown().await;
            }
        }
    });
    seen
}

/// A caller without the checks that [`ClientTls`] makes of its own files.
fn lax_connector(ca: &Path, own: Option<(&Path, &Path)>) -> TlsConnector {
    lax_connector_of(ca, own, rustls::DEFAULT_VERSIONS)
}

fn lax_connector_of(
    ca: &Path,
    own: Option<(&Path, &Path)>,
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => builder
            .with_client_auth_cert(
                CertificateDer::pem_file_iter(cert).unwrap().map(Result::unwrap).collect(),
                PrivateKeyDer::from_pem_file(key).unwrap(),
            )
            .unwrap(),
    };
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    TlsConnector::from(Arc::new(config))
}

#[tokio::test]
async fn both_ends_know_each_other_after_the_handshake() {
    let authority = Authority::new();
    let (mut incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    for role in Role::ALL {
        let tls = load_client(&authority.issue(role, "caller"));
        let (mut stream, mut conn) = tokio::join!(
            async { connect(tls.connector().unwrap(), addr).await.unwrap() },
            next(&mut incoming)
        );
        assert_eq!(conn.peer().identity, Identity::new(role, "caller", vec![]).unwrap());
        assert_eq!(conn.peer().addr, stream.get_ref().0.local_addr().unwrap());
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(ALPN_H2));
        let version = stream.get_ref().1.protocol_version();
        assert_eq!(version, Some(rustls::ProtocolVersion::TLSv1_3));
        assert!(stream.get_ref().0.local_addr().is_ok());

        stream.write_all(b"ping").await.unwrap();
        let mut read = [0; 4];
        conn.read_exact(&mut read).await.unwrap();
        assert_eq!(&read, b"ping");
    }
}

#[tokio::test]
async fn plaintext_on_both_ends_gives_every_caller_the_insecure_identity() {
    let (mut incoming, addr) = listen(ServerTls::load(&Security::InsecurePlaintext).unwrap()).await;
    let tls = ClientTls::load(&Security::InsecurePlaintext).unwrap();
    assert!(tls.connector().is_none() && tls.validity().is_none());
    let (_stream, conn) = tokio::join!(TcpStream::connect(addr), next(&mut incoming));
    assert!(conn.peer().identity.is_insecure());
}

#[tokio::test]
async fn a_port_of_one_role_lets_in_no_other() {
    let authority = Authority::new();
    let server = load_server(&authority.issue(Role::Member, "c1")).only(Role::Member);
    let (incoming, addr) = listen(server).await;
    let mut seen = greet(incoming);
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Member) {
        let tls = load_client(&authority.issue(role, "caller"));
        assert!(!is_let_in(tls.connector().unwrap(), addr).await, "{role:?}");
    }
    let tls = load_client(&authority.issue(Role::Member, "c2"));
    assert!(is_let_in(tls.connector().unwrap(), addr).await);
    assert_eq!(seen.recv().await.unwrap().name, "c2");
}

#[tokio::test]
async fn unfinished_handshakes_do_not_delay_other_callers() {
    let authority = Authority::new();
    let (incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let mut seen = greet(incoming);
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(addr).await.unwrap());
    }
    let tls = load_client(&authority.issue(Role::Client, "ann"));
    assert!(is_let_in(tls.connector().unwrap(), addr).await);
    assert_eq!(seen.recv().await.unwrap().name, "ann");
    // The silent connections are closed in the end.
    for mut stream in silent {
        let ended = timeout(LIMIT, stream.read(&mut [0])).await.expect("still open");
        assert!(!matches!(ended, Ok(n) if n > 0));
    }
}

#[tokio::test]
async fn dropping_the_incoming_side_closes_the_port_and_what_is_unfinished() {
    let authority = Authority::new();
    let (mut incoming, addr) = listen(load_server(&authority.issue(Role::Member, "c1"))).await;
    let mut silent = TcpStream::connect(addr).await.unwrap();
    let tls = load_client(&authority.issue(Role::Client, "ann"));
    let (_stream, _conn) =
        tokio::join!(connect(tls.connector().unwrap(), addr), next(&mut incoming));
    drop(incoming);
    let ended = timeout(LIMIT, silent.read(&mut [0])).await.expect("still open");
    assert!(!matches!(ended, Ok(n) if n > 0));
    assert!(TcpStream::connect(addr).await.is_err());
}

#[test]
fn the_proven_name_is_the_host_of_the_endpoint() {
    for (endpoint, host) in [
        ("c1.example:7000", "c1.example"),
        ("c1.example", "c1.example"),
        ("10.0.0.1:7000", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("[::1]:7000", "::1"),
        ("::1", "::1"),
    ] {
        assert_eq!(server_name(endpoint).unwrap().to_str(), host);
    }
    for endpoint in ["", ":7000", "a b:1", "[::1:7000", "http://c1:7000"] {
        assert!(server_name(endpoint).is_err(), "{endpoint} was accepted");
    }
}

#[test]
fn the_expiry_of_a_certificate_is_printed_as_a_date() {
    let expired = TlsError::Expired { path: "c.pem".into(), not_after_unix: 1_769_904_000 };
    let told = "c.pem expired at 2026-02-01T00:00:00Z: issue a new certificate";
    assert_eq!(expired.to_string(), told);
    assert_eq!(utc(i64::MAX), format!("{} s since 1970", i64::MAX));
}

#[tokio::test]
async fn an_https_listener_offers_both_versions_of_http_and_asks_for_no_certificate() {
    let authority = Authority::new();
    let files = authority.issue(Role::Member, "c1");
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(&files.ca).unwrap() {
        roots.add(root.unwrap()).unwrap();
    }
    let tls = ServerTls::for_https(&Security::Mtls(files)).unwrap();
    let (mut incoming, addr) = listen(tls).await;
    for protocol in ["h2", "http/1.1"] {
        let mut config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.into()];
        let connector = TlsConnector::from(Arc::new(config));
        let (stream, conn) = tokio::join!(connect(connector, addr), next(&mut incoming));
        assert_eq!(stream.unwrap().get_ref().1.alpn_protocol(), Some(protocol.as_bytes()));
        assert_eq!(conn.peer().identity, Identity::unenrolled());
    }
}
