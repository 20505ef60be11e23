//! The server end of TLS.
//!
//! *Invariant:* under [`Security::Mtls`] no peer without a certificate of the authority completes the handshake. The
//! exceptions are the listeners for enrollment and for HTTPS: there every peer counts as an unenrolled client, whatever
//! certificate it presents.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::NoServerSessionStorage;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::conn::ServerConn;
use super::incoming::Incoming;
use super::material::Material;
use super::reload::Reloading;
use super::verify::{ClientIdentityVerifier, TLS_VERSIONS};
use super::{ALPN_H2, ALPN_HTTP1, Security, TlsError};
use crate::crypto::provider;
use crate::identity::{Identity, PeerInfo, Role};
use crate::pki::{AUTHORITIES_MAX, Validity, inspect_der};
use crate::revocations::Revocations;

/// A callback with the identity and the address of a caller whose certificate was refused as revoked. The caller has
/// not proved that it has the key of that certificate.
pub type OnRevoked = Arc<dyn Fn(&Identity, SocketAddr) + Send + Sync>;

/// The TLS side of a server: what it presents and which callers it accepts. Cheap to clone; every clone follows the
/// files.
#[derive(Clone)]
pub struct ServerTls {
    /// `None` in plaintext.
    files: Option<Arc<Reloading<ServerConfig>>>,
    /// Requests no certificate from callers.
    unenrolled: bool,
    /// Refuses callers of other roles in the handshake.
    only: Option<Role>,
    revocations: Revocations,
    on_revoked: Option<OnRevoked>,
}

impl ServerTls {
    /// Reads the files, and follows them from then on. Logs a warning for plaintext.
    ///
    /// # Errors
    /// A file that is missing or not PEM, a certificate that has expired or is not a member's, a key that does not
    /// match. Plaintext cannot fail.
    pub fn load(security: &Security) -> Result<Self, TlsError> {
        Self::refusing(security, Revocations::default())
    }

    /// Like [`ServerTls::load`], but refuses revoked certificates in the handshake, and closes connections when their
    /// certificates are revoked.
    ///
    /// # Errors
    /// As [`ServerTls::load`].
    pub fn refusing(security: &Security, revocations: Revocations) -> Result<Self, TlsError> {
        match security {
            Security::Mtls(files) => {
                let refused = revocations.clone();
                let build = move |material| build(material, refused.clone());
                let files = Some(Arc::new(Reloading::load(files, Box::new(build))?));
                Ok(ServerTls {
                    files,
                    unenrolled: false,
                    only: None,
                    revocations,
                    on_revoked: None,
                })
            }
            Security::InsecurePlaintext => {
                tracing::warn!(
                    "INSECURE: this server uses plaintext: every caller that reaches its port may do \
                     everything; use certificates anywhere but on a test machine"
                );
                Ok(ServerTls {
                    files: None,
                    unenrolled: false,
                    only: None,
                    revocations,
                    on_revoked: None,
                })
            }
        }
    }

    /// A server for callers without a certificate: it requests none, and every caller is [`Identity::unenrolled`]. It
    /// presents the authorities, so that a caller that knows only their hashes can find them.
    ///
    /// # Errors
    /// As [`ServerTls::load`], and in plaintext.
    pub fn for_unenrolled(security: &Security) -> Result<Self, TlsError> {
        let Security::Mtls(files) = security else { return Err(TlsError::EnrollmentInPlaintext) };
        let files = Some(Arc::new(Reloading::load(files, Box::new(build_for_unenrolled))?));
        let revocations = Revocations::default();
        Ok(ServerTls { files, unenrolled: true, only: None, revocations, on_revoked: None })
    }

    /// A server of HTTPS, over HTTP/1.1 or HTTP/2, for callers that prove who they are in their requests: it requests no
    /// certificate, and every caller is [`Identity::unenrolled`]. In plaintext it serves HTTP.
    ///
    /// # Errors
    /// As [`ServerTls::load`].
    pub fn for_https(security: &Security) -> Result<Self, TlsError> {
        let files = match security {
            Security::Mtls(files) => {
                Some(Arc::new(Reloading::load(files, Box::new(build_for_https))?))
            }
            Security::InsecurePlaintext => None,
        };
        let revocations = Revocations::default();
        Ok(ServerTls { files, unenrolled: true, only: None, revocations, on_revoked: None })
    }

    /// Accepts only callers of one role, and closes other connections. Does nothing in plaintext.
    #[must_use]
    pub fn only(self, role: Role) -> Self {
        ServerTls { only: Some(role), ..self }
    }

    /// Calls `on_revoked` for each handshake that fails because the certificate is revoked. It must return at once,
    /// because callers wait meanwhile.
    #[must_use]
    pub fn with_on_revoked(self, on_revoked: OnRevoked) -> Self {
        ServerTls { on_revoked: Some(on_revoked), ..self }
    }

    pub(super) fn on_revoked(&self) -> impl FnOnce(&Identity, SocketAddr) + Send + use<> {
        let on_revoked = self.on_revoked.clone();
        move |identity, addr| {
            if let Some(on_revoked) = on_revoked {
                on_revoked(identity, addr);
            }
        }
    }

    /// The connections of `listener`, each with its caller's identity, for tonic's
    /// `serve_with_incoming`. Dropping it closes the listener and every unfinished handshake.
    pub fn incoming(self, listener: TcpListener) -> Incoming {
        Incoming::new(self, listener)
    }

    /// The server's identity in the certificate in use; the plaintext identity without one.
    pub fn identity(&self) -> Identity {
        self.files.as_ref().map_or_else(Identity::insecure, |tls| tls.get().identity.clone())
    }

    /// The validity of the certificate in use; `None` without one.
    pub fn validity(&self) -> Option<Validity> {
        self.files.as_ref().map(|tls| tls.get().validity)
    }

    /// Why changed files were not loaded, so that the certificate in use differs from the files; `None` if it does
    /// not.
    pub fn refused(&self) -> Option<String> {
        self.files.as_ref().and_then(|tls| tls.refused())
    }

    /// Checks the files now instead of at the next connection. Returns whether new ones were loaded.
    pub fn refresh(&self) -> bool {
        self.files.as_ref().is_some_and(|tls| tls.refresh())
    }

    /// One handshake, without a time limit: the caller sets that.
    pub(super) async fn handshake(self, tcp: TcpStream) -> std::io::Result<ServerConn> {
        let addr = tcp.peer_addr()?;
        // Small messages decide latency here, and batching is done above TCP.
        tcp.set_nodelay(true)?;
        let Some(tls) = self.files else {
            let identity =
                if self.unenrolled { Identity::unenrolled() } else { Identity::insecure() };
            return Ok(ServerConn::plain(tcp, PeerInfo::uncertified(identity, addr)));
        };
        let stream = TlsAcceptor::from(tls.get().config.clone()).accept(tcp).await?;
        if self.unenrolled {
            let peer = PeerInfo::uncertified(Identity::unenrolled(), addr);
            return Ok(ServerConn::tls(stream, peer));
        }
        let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let leaf = leaf.ok_or_else(|| std::io::Error::other("the caller sent no certificate"))?;
        let identity = Identity::from_certificate(leaf).map_err(std::io::Error::other)?;
        if self.only.is_some_and(|only| only != identity.role) {
            let refused = format!("{identity} has nothing to do at this port");
            return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, refused));
        }
        let certificate = Some(Arc::new(leaf.clone().into_owned()));
        let unread = || std::io::Error::other("the caller's certificate cannot be read");
        let Validity { not_before_unix, not_after_unix } =
            inspect_der(leaf).ok_or_else(unread)?.validity;
        // Only at the peer port: at other ports an operator may test a certificate that the member does not use yet.
        if self.only == Some(Role::Member) {
            self.revocations.connected(&identity, not_before_unix);
        }
        let refused = self.revocations.until_refused(&identity, not_before_unix);
        let peer = PeerInfo { identity, addr, certificate, not_before_unix };
        Ok(ServerConn::tls(stream, peer).until(not_after_unix).or_until(refused))
    }
}

impl std::fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerTls")
            .field("identity", &self.files.as_ref().map(|_| self.identity()))
            .field("unenrolled", &self.unenrolled)
            .finish()
    }
}

fn build(material: Material, revocations: Revocations) -> Result<ServerConfig, TlsError> {
    let Material { files, roots, chain, key, identity, .. } = material;
    if identity.role != Role::Member {
        return Err(TlsError::NotMember { path: files.cert, found: identity.role });
    }
    let refused = |cause: rustls::Error| Material::refused(&files, cause);
    let verifier = ClientIdentityVerifier::new(roots, revocations)
        .map_err(|cause| Material::refused(&files, cause))?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_VERSIONS)
        .map_err(refused)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key)
        .map_err(refused)?;
    with_our_protocol(&mut config);
    Ok(config)
}

fn build_for_unenrolled(mut material: Material) -> Result<ServerConfig, TlsError> {
    let authorities = std::mem::take(&mut material.authorities);
    material.chain.extend(authorities.into_iter().take(AUTHORITIES_MAX));
    build_without_client_auth(material)
}

fn build_for_https(material: Material) -> Result<ServerConfig, TlsError> {
    let mut config = build_without_client_auth(material)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec(), ALPN_HTTP1.to_vec()];
    Ok(config)
}

fn build_without_client_auth(material: Material) -> Result<ServerConfig, TlsError> {
    let Material { files, chain, key, identity, .. } = material;
    if identity.role != Role::Member {
        return Err(TlsError::NotMember { path: files.cert, found: identity.role });
    }
    let refused = |cause: rustls::Error| Material::refused(&files, cause);
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_VERSIONS)
        .map_err(refused)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(refused)?;
    with_our_protocol(&mut config);
    Ok(config)
}

fn with_our_protocol(config: &mut ServerConfig) {
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
}
