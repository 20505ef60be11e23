//! The TLS client of a caller that has no certificate and no authority yet, only the hashes of the authorities' public
//! keys.
//!
//! *Invariant:* it trusts only a member under the dialed name, certified by an authority whose key has one of the
//! hashes. The server presents the authority's certificate in the handshake, which counts only after its key was found
//! among the hashes. Then the rules are those of every other caller.

use std::fmt;
use std::sync::Arc;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::{ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::ALPN_H2;
use super::verify::{MemberVerifier, TLS_VERSIONS, refused};
use crate::crypto::provider;
use crate::pki::pin_of;
use crate::revocations::Revocations;

struct PinnedVerifier {
    pins: Vec<[u8; 32]>,
    provider: Arc<CryptoProvider>,
}

impl fmt::Debug for PinnedVerifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedVerifier").field("pins", &self.pins.len()).finish()
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let mut roots = RootCertStore::empty();
        for shown in intermediates {
            if pin_of(shown).is_some_and(|pin| self.pins.contains(&pin)) {
                roots.add(shown.clone().into_owned())?;
            }
        }
        if roots.is_empty() {
            return Err(refused("the server shows no authority that the join token names"));
        }
        let member = MemberVerifier::new(roots, Revocations::default()).map_err(refused)?;
        member.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The configuration of such a caller.
pub(super) fn config(pins: &[[u8; 32]]) -> Result<ClientConfig, Error> {
    let verifier = PinnedVerifier { pins: pins.to_vec(), provider: provider() };
    // rustls calls every custom verifier "dangerous". This one runs webpki once it knows which authority to trust.
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(TLS_VERSIONS)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ALPN_H2.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}
