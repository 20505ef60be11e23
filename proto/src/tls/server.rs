//! The listening end of TLS.
//!
//! *Invariant:* under [`Security::Mtls`] nobody without a certificate of the authority gets past
//! the handshake.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::conn::ServerConn;
use super::incoming::Incoming;
use super::material::Material;
use super::reload::Reloading;
use super::verify::{ClientIdentityVerifier, provider};
use super::{ALPN_H2, Security, TlsError};
use crate::identity::{Identity, PeerInfo, Role};

/// What a server presents and whom it lets in; cheap to clone, and every clone follows the files.
#[derive(Clone)]
pub struct ServerTls(Option<Arc<Reloading<ServerConfig>>>);

impl ServerTls {
    /// Reads the files, and follows them from then on. Plaintext is warned about, loudly.
    ///
    /// # Errors
    /// A file that is missing or no PEM, a certificate that is expired or not a member's, a key
    /// that is not its own. Plaintext cannot fail.
    pub fn load(security: &Security) -> Result<Self, TlsError> {
        match security {
            Security::Mtls(files) => Ok(ServerTls(Some(Arc::new(Reloading::load(files, build)?)))),
            Security::InsecurePlaintext => {
                tracing::warn!(
                    "INSECURE: this server speaks plaintext, so whoever reaches its port may do \
                     everything; use certificates anywhere but on a test machine"
                );
                Ok(ServerTls(None))
            }
        }
    }

    /// The connections of `listener`, each with its caller's identity, for tonic's
    /// `serve_with_incoming`. Dropping it closes the listener and every unfinished handshake.
    pub fn incoming(self, listener: TcpListener) -> Incoming {
        Incoming::new(self, listener)
    }

    /// Who the certificate in use says this server is; the plaintext identity without one.
    pub fn identity(&self) -> Identity {
        self.0.as_ref().map_or_else(Identity::insecure, |tls| tls.get().identity.clone())
    }

    /// When the certificate in use expires, in seconds since 1970; none without one.
    pub fn not_after_unix(&self) -> Option<i64> {
        self.0.as_ref().map(|tls| tls.get().not_after_unix)
    }

    /// Looks at the files now instead of at the next connection; whether new ones were taken.
    pub fn refresh(&self) -> bool {
        self.0.as_ref().is_some_and(|tls| tls.refresh())
    }

    /// One handshake, without a time limit: the caller sets that.
    pub(super) async fn handshake(self, tcp: TcpStream) -> std::io::Result<ServerConn> {
        let addr = tcp.peer_addr()?;
        // Small messages decide latency here, and batching is done above TCP.
        tcp.set_nodelay(true)?;
        let Some(tls) = self.0 else {
            return Ok(ServerConn::plain(tcp, PeerInfo { identity: Identity::insecure(), addr }));
        };
        let stream = TlsAcceptor::from(tls.get().config.clone()).accept(tcp).await?;
        let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let leaf = leaf.ok_or_else(|| std::io::Error::other("the caller sent no certificate"))?;
        let identity = Identity::from_certificate(leaf).map_err(std::io::Error::other)?;
        Ok(ServerConn::tls(stream, PeerInfo { identity, addr }))
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ServerTls").field(&self.0.as_ref().map(|_| self.identity())).finish()
    }
}

fn build(material: Material) -> Result<ServerConfig, TlsError> {
    let Material { files, roots, chain, key, identity, .. } = material;
    if identity.role != Role::Member {
        return Err(TlsError::NotMember { path: files.cert, found: identity.role });
    }
    let refused = |cause: rustls::Error| Material::refused(&files, cause);
    let verifier =
        ClientIdentityVerifier::new(roots).map_err(|cause| Material::refused(&files, cause))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key)
        .map_err(refused)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}
