//! The calling end of TLS.
//!
//! *Invariant:* a connector made from [`Security::Mtls`] presents this host's certificate and
//! accepts none but a member of the trusted authority under the dialed name.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls_pki_types::{IpAddr, ServerName};
use tokio_rustls::TlsConnector;

use super::material::Material;
use super::reload::Reloading;
use super::verify::{MemberVerifier, provider};
use super::{ALPN_H2, Security, TlsError};
use crate::identity::Identity;

/// What a caller presents and trusts; cheap to clone, and every clone follows the files.
#[derive(Clone)]
pub struct ClientTls(Option<Arc<Reloading<ClientConfig>>>);

impl ClientTls {
    /// Reads the files, and follows them from then on.
    ///
    /// # Errors
    /// A file that is missing or no PEM, a certificate without identity or expired, a key that is
    /// not its own. Plaintext cannot fail.
    pub fn load(security: &Security) -> Result<Self, TlsError> {
        match security {
            Security::Mtls(files) => Ok(ClientTls(Some(Arc::new(Reloading::load(files, build)?)))),
            Security::InsecurePlaintext => Ok(ClientTls(None)),
        }
    }

    /// The connector for a new connection, or none where connections are plaintext.
    pub fn connector(&self) -> Option<TlsConnector> {
        self.0.as_ref().map(|tls| TlsConnector::from(tls.get().config.clone()))
    }

    /// Who the certificate in use says this host is; the plaintext identity without one.
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
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClientTls").field(&self.0.as_ref().map(|_| self.identity())).finish()
    }
}

/// The name that a server must prove: the host part of `host:port`, or a bare host; addresses are
/// allowed, with brackets around an IPv6 one.
///
/// # Errors
/// A host that is neither a DNS name nor an address.
pub fn server_name(endpoint: &str) -> Result<ServerName<'static>, TlsError> {
    let refused = || TlsError::ServerName(endpoint.chars().take(256).collect());
    if let Ok(addr) = endpoint.parse::<std::net::IpAddr>() {
        return Ok(ServerName::IpAddress(IpAddr::from(addr)));
    }
    let host = match endpoint.strip_prefix('[') {
        Some(bracketed) => bracketed.split_once(']').ok_or_else(refused)?.0,
        None => endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host),
    };
    ServerName::try_from(host.to_owned()).map_err(|_| refused())
}

fn build(material: Material) -> Result<ClientConfig, TlsError> {
    let Material { files, roots, chain, key, .. } = material;
    let refused = |cause: rustls::Error| Material::refused(&files, cause);
    let verifier = MemberVerifier::new(roots).map_err(|cause| Material::refused(&files, cause))?;
    // "dangerous" is rustls's word for any verifier of one's own: ours asks webpki first and
    // only ever adds a refusal.
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .map_err(refused)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}
