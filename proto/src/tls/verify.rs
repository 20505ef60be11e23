//! Which peers are accepted: those with a certificate of the authority that carries an identity.
//!
//! *Invariant:* everything that webpki demands (chain, validity, usage, and of a server its name) holds before the
//! identity is read; only webpki checks signatures. A refusal happens within the handshake, so that the peer gets an
//! alert and not only a closed connection.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    SignatureScheme,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::revoked::note_revoked;
use crate::crypto::provider;
use crate::identity::{Identity, Role};
use crate::pki::inspect_der;
use crate::revocations::Revocations;

/// Both ends are of this project, so nothing needs an older version.
pub(super) const TLS_VERSIONS: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// Why a certificate is refused here. rustls prints the debug form, so that is also the text.
#[derive(thiserror::Error)]
#[error("{0}")]
struct RefusedCertificate(String);

impl fmt::Debug for RefusedCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(super) fn refused(cause: impl fmt::Display) -> Error {
    let cause = Arc::new(RefusedCertificate(cause.to_string()));
    Error::InvalidCertificate(CertificateError::Other(OtherError(cause)))
}

/// The signature checks of a verifier that wraps one of webpki's: both traits require the same three.
macro_rules! signatures_of_webpki {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.0.verify_tls12_signature(message, cert, dss)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            cert: &CertificateDer<'_>,
            dss: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            self.0.verify_tls13_signature(message, cert, dss)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.0.supported_verify_schemes()
        }
    };
}

/// A server's check of a caller. Members and administrators need a certificate of the authority itself; all others may
/// have one of an intermediate authority.
#[derive(Debug)]
pub(super) struct ClientIdentityVerifier(Arc<dyn ClientCertVerifier>, Revocations);

impl ClientIdentityVerifier {
    pub(super) fn new(roots: RootCertStore, revocations: Revocations) -> Result<Self, String> {
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map(|verifier| ClientIdentityVerifier(verifier, revocations))
            .map_err(|cause| cause.to_string())
    }
}

impl ClientCertVerifier for ClientIdentityVerifier {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.0.verify_client_cert(end_entity, intermediates, now)?;
        let identity = Identity::from_certificate(end_entity).map_err(refused)?;
        if !matches!(identity.role, Role::Worker | Role::Client | Role::Viewer) {
            // Every member has the intermediate CA's key on its disk, so a certificate that this CA signed cannot make
            // a member or an administrator.
            self.0.verify_client_cert(end_entity, &[], now).map_err(|_| {
                let role = identity.role.with_article();
                refused(format!(
                    "the certificate of {role} has to be signed by an authority of the CA file itself"
                ))
            })?;
        }
        check_revocation(&self.1, &identity, end_entity)?;
        Ok(verified)
    }

    signatures_of_webpki!();
}

/// Refuses a certificate that is revoked.
fn check_revocation(
    revocations: &Revocations,
    identity: &Identity,
    certificate: &CertificateDer<'_>,
) -> Result<(), Error> {
    let info = inspect_der(certificate).ok_or_else(|| refused("it cannot be read"))?;
    match revocations.refuses(identity, info.validity.not_before_unix) {
        true => {
            note_revoked(identity);
            Err(Error::InvalidCertificate(CertificateError::Revoked))
        }
        false => Ok(()),
    }
}

/// A caller's check of the server: it has the right name, and is a member. Without the second check, a worker's
/// certificate for a host that was once a member's could impersonate a member.
#[derive(Debug)]
pub(super) struct MemberVerifier(Arc<WebPkiServerVerifier>, Revocations);

impl MemberVerifier {
    pub(super) fn new(roots: RootCertStore, revocations: Revocations) -> Result<Self, String> {
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map(|verifier| MemberVerifier(verifier, revocations))
            .map_err(|cause| cause.to_string())
    }
}

impl ServerCertVerifier for MemberVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self.0.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let identity = Identity::from_certificate(end_entity).map_err(refused)?;
        if identity.role != Role::Member {
            let role = identity.role.with_article();
            return Err(refused(format!(
                "the server's certificate is one of {role}, not of a member"
            )));
        }
        check_revocation(&self.1, &identity, end_entity)?;
        Ok(verified)
    }

    signatures_of_webpki!();
}
