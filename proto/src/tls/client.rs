//! The client end of TLS.
//!
//! *Invariant:* a connector made from [`Security::Mtls`] presents this host's certificate and accepts only a member of
//! the trusted authority under the dialed name.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls_pki_types::{CertificateDer, IpAddr, ServerName};
use tokio_rustls::TlsConnector;

use super::material::Material;
use super::reload::Reloading;
use super::verify::{MemberVerifier, TLS_VERSIONS};
use super::{ALPN_H2, Security, TlsError, pinned};
use crate::crypto::provider;
use crate::identity::Identity;
use crate::pki::{Validity, inspect_der};
use crate::revocations::{Revocations, UntilRefused};

/// The TLS side of a caller: what it presents and trusts. Cheap to clone; every clone follows the files.
#[derive(Clone)]
pub struct ClientTls {
    caller: Caller,
    revocations: Revocations,
}

#[derive(Clone)]
enum Caller {
    Plaintext,
    Certified(Arc<Reloading<ClientConfig>>),
    /// Without a certificate: it trusts an authority by the hash of its key.
    Unenrolled(Arc<ClientConfig>),
}

impl ClientTls {
    /// Reads the files, and follows them from then on.
    ///
    /// # Errors
    /// A file that is missing or not PEM, a certificate that has expired or has no identity, a key that does not
    /// match. Plaintext cannot fail.
    pub fn load(security: &Security) -> Result<Self, TlsError> {
        Self::refusing(security, Revocations::default())
    }

    /// Like [`ClientTls::load`], but refuses members whose certificates are revoked, and closes connections to members
    /// when their certificates are revoked.
    ///
    /// # Errors
    /// As [`ClientTls::load`].
    pub fn refusing(security: &Security, revocations: Revocations) -> Result<Self, TlsError> {
        let caller = match security {
            Security::Mtls(files) => {
                let refused = revocations.clone();
                let build = move |material| build(material, refused.clone());
                Caller::Certified(Arc::new(Reloading::load(files, Box::new(build))?))
            }
            Security::InsecurePlaintext => Caller::Plaintext,
        };
        Ok(ClientTls { caller, revocations })
    }

    /// A caller without a certificate that trusts members of the authorities whose public keys have these blake3
    /// hashes. Only for the enrollment address, where servers present the authority.
    ///
    /// # Errors
    /// The error of rustls.
    pub fn pinned(pins: &[[u8; 32]]) -> Result<Self, TlsError> {
        let config = pinned::config(pins).map_err(|cause| TlsError::Pinned(cause.to_string()))?;
        let caller = Caller::Unenrolled(Arc::new(config));
        Ok(ClientTls { caller, revocations: Revocations::default() })
    }

    fn files(&self) -> Option<&Reloading<ClientConfig>> {
        match &self.caller {
            Caller::Certified(files) => Some(files),
            Caller::Plaintext | Caller::Unenrolled(_) => None,
        }
    }

    /// The connector for a new connection; `None` in plaintext.
    pub fn connector(&self) -> Option<TlsConnector> {
        match &self.caller {
            Caller::Plaintext => None,
            Caller::Certified(files) => Some(TlsConnector::from(files.get().config.clone())),
            Caller::Unenrolled(config) => Some(TlsConnector::from(config.clone())),
        }
    }

    /// Becomes ready when the member's certificate is revoked; `None` if that certificate cannot be read.
    pub(crate) fn until_refused(&self, member: &CertificateDer<'_>) -> Option<UntilRefused> {
        let identity = Identity::from_certificate(member).ok()?;
        let not_before_unix = inspect_der(member)?.validity.not_before_unix;
        Some(self.revocations.until_refused(&identity, not_before_unix))
    }

    /// The identity in this host's certificate. Without a certificate, it is that of an unenrolled client; in
    /// plaintext, the plaintext identity.
    pub fn identity(&self) -> Identity {
        match &self.caller {
            Caller::Plaintext => Identity::insecure(),
            Caller::Certified(files) => files.get().identity.clone(),
            Caller::Unenrolled(_) => Identity::unenrolled(),
        }
    }

    /// The validity of the certificate in use; `None` without one.
    pub fn validity(&self) -> Option<Validity> {
        self.files().map(|tls| tls.get().validity)
    }

    /// Checks the files now instead of at the next connection. Returns whether new ones were loaded.
    pub fn refresh(&self) -> bool {
        self.files().is_some_and(Reloading::refresh)
    }
}

impl std::fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ClientTls").field(&self.identity()).finish()
    }
}

/// The name that a server must prove: the host of `host:port`, or a bare host. Addresses are allowed, with brackets
/// around an IPv6 one.
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

fn build(material: Material, revocations: Revocations) -> Result<ClientConfig, TlsError> {
    let Material { files, roots, chain, key, .. } = material;
    let refused = |cause: rustls::Error| Material::refused(&files, cause);
    let verifier = MemberVerifier::new(roots, revocations)
        .map_err(|cause| Material::refused(&files, cause))?;
    // rustls calls every custom verifier "dangerous". This one runs webpki first and only adds refusals.
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_VERSIONS)
        .map_err(refused)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_client_auth_cert(chain, key)
        .map_err(refused)?;
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}
