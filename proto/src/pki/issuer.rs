//! The intermediate CA of a cluster, with which members issue certificates to workers and
//! clients.
//!
//! *Invariant:* a certificate that it issues has the identity that the caller of this module gives. It is valid for
//! clients and not for servers, and cannot issue others. Of a signing request only the public key counts: the requester
//! chooses no name, no role and no usage.
//!
//! Absent: who may request a certificate (the coordinator and the ledger decide), and members' and admins'
//! certificates, which the authority itself issues.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PublicKeyData, SerialNumber,
};
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, UnixTime};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{
    BACKDATE_S, CA_CERT, CA_KEY, DAY_S, IssueRequest, PkiError, Validity, files, leaf_params,
    read_ca, read_key, set_validity, unix_now_s,
};
use crate::crypto::provider;
use crate::identity::{Identity, Role};

const ISSUER_CERT: &str = "issuer.pem";
const ISSUER_KEY: &str = "issuer.key";
/// The largest signing request, in bytes. A name and the largest kind of key take a tenth of it.
pub const SIGNING_REQUEST_BYTES_MAX: usize = 8192;
// These certificates are renewed within hours, by a host whose clock may be a little behind the issuer's.
const ISSUED_BACKDATE_S: u64 = 300;

/// The files of an intermediate CA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IssuerFiles {
    /// Its certificate.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// Creates an intermediate CA below the authority in `dir_of_ca`: `issuer.pem` and `issuer.key` (mode 0600) in
/// `out_dir`, for the members. Replaces an existing one.
///
/// # Errors
/// No authority, one that allows no intermediate CA, a lifetime of no days, or the disk.
pub fn init_issuer(dir_of_ca: &Path, out_dir: &Path, days: u32) -> Result<IssuerFiles, PkiError> {
    if !(1..=super::CERT_DAYS_MAX).contains(&days) {
        return Err(PkiError::Days(days));
    }
    let ca_path = dir_of_ca.join(CA_CERT);
    if !files::exists(&ca_path)? {
        return Err(PkiError::NoCa(dir_of_ca.to_owned()));
    }
    let ca_key = read_key(&dir_of_ca.join(CA_KEY))?;
    let ca = read_ca(&ca_path, &ca_key)?;
    if !has_room_below(&ca.der) {
        return Err(PkiError::NoRoomBelow(ca_path));
    }
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let digest = blake3::hash(key.public_key_raw()).to_hex();
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, format!("{} issuer {}", ca.common_name, &digest[..8]));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    // A certificate of this key must not pass for a member's, so it is not valid for servers.
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    let now_s = unix_now_s();
    let not_after_s = (now_s + u64::from(days) * DAY_S).min(ca.not_after_s);
    set_validity(&mut params, now_s.saturating_sub(BACKDATE_S), not_after_s);
    let issuer = Issuer::from_ca_cert_der(&ca.der, ca_key)?;
    let certificate = params.signed_by(&key, &issuer)?;

    files::create_private_dir(out_dir)?;
    let written = IssuerFiles { cert: out_dir.join(ISSUER_CERT), key: out_dir.join(ISSUER_KEY) };
    files::replace(&written.key, key.serialize_pem().as_bytes(), 0o600)?;
    files::replace(&written.cert, certificate.pem().as_bytes(), 0o644)?;
    Ok(written)
}

fn has_room_below(ca: &CertificateDer<'_>) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(ca) else { return false };
    let constraints = parsed.basic_constraints().ok().flatten();
    constraints.is_some_and(|c| c.value.ca && c.value.path_len_constraint != Some(0))
}

/// The public key of a signing request that has proved possession of the private key.
pub struct RequestedKey(rcgen::PublicKey);

impl RequestedKey {
    /// Reads a PKCS #10 request and checks its signature.
    ///
    /// # Errors
    /// [`PkiError::Request`] if it is too large, malformed, or signed by another key.
    pub fn read(request: &[u8]) -> Result<Self, PkiError> {
        if request.len() > SIGNING_REQUEST_BYTES_MAX {
            let why =
                format!("it has {} bytes, {SIGNING_REQUEST_BYTES_MAX} at most", request.len());
            return Err(PkiError::Request(why));
        }
        let request = CertificateSigningRequestDer::from(request);
        let read = CertificateSigningRequestParams::from_der(&request);
        Ok(Self(read.map_err(|why| PkiError::Request(why.to_string()))?.public_key))
    }

    /// blake3 of the key, including its type.
    pub fn hash(&self) -> [u8; 32] {
        *blake3::hash(&self.0.subject_public_key_info()).as_bytes()
    }
}

/// An intermediate CA, ready to issue.
pub struct IntermediateCa {
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
    issued_by_it: Arc<dyn ClientCertVerifier>,
    validity: Validity,
}

impl std::fmt::Debug for IntermediateCa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IntermediateCa").field("validity", &self.validity).finish()
    }
}

impl IntermediateCa {
    /// Reads the authority's files.
    ///
    /// # Errors
    /// Files that cannot be read or do not match, or a certificate that is not an authority's.
    pub fn load(files: &IssuerFiles) -> Result<Self, PkiError> {
        let key = read_key(&files.key)?;
        let found = read_ca(&files.cert, &key)?;
        let what = "certificate of an intermediate CA (rolloutctl cert init-issuer)";
        let malformed = || PkiError::Malformed { path: files.cert.clone(), what };
        let (_, parsed) = X509Certificate::from_der(&found.der).map_err(|_| malformed())?;
        if !parsed.is_ca() {
            return Err(malformed());
        }
        let validity = Validity::of(&parsed);
        let mut anchor = RootCertStore::empty();
        anchor.add(found.der.clone()).map_err(|_| malformed())?;
        let issued_by_it =
            WebPkiClientVerifier::builder_with_provider(Arc::new(anchor), provider())
                .build()
                .map_err(|_| malformed())?;
        let issuer = Issuer::from_ca_cert_der(&found.der, key)?;
        Ok(Self { der: found.der, issuer, issued_by_it, validity })
    }

    /// The validity of its own certificate.
    pub fn validity(&self) -> Validity {
        self.validity
    }

    fn not_after_s(&self) -> u64 {
        self.validity.not_after_unix.try_into().unwrap_or(0)
    }

    /// Issues a certificate of `identity` for `key`. It expires after `lifetime_s`, or with the authority's
    /// certificate if that is earlier. It is valid from a few minutes ago, because clocks differ, but from
    /// `not_before_min_s` at the earliest, in Unix seconds: a revocation of certificates issued before that time does
    /// not cover it. Returns the chain, DER, the holder's own first.
    ///
    /// # Errors
    /// An identity that only the authority itself certifies, or the cryptography.
    pub fn issue(
        &self,
        identity: &Identity,
        key: &RequestedKey,
        lifetime_s: u64,
        not_before_min_s: u64,
    ) -> Result<Vec<CertificateDer<'static>>, PkiError> {
        if !matches!(identity.role, Role::Worker | Role::Client) {
            return Err(PkiError::RoleByHand(identity.role));
        }
        let now_s = unix_now_s();
        let not_after_s = (now_s + lifetime_s).min(self.not_after_s());
        let request = IssueRequest {
            role: identity.role,
            name: identity.name.clone(),
            namespaces: identity.namespaces.clone(),
            dns_names: Vec::new(),
            ip_addrs: Vec::new(),
            days: 1,
        };
        let not_before_s = now_s.saturating_sub(ISSUED_BACKDATE_S).max(not_before_min_s.min(now_s));
        let mut params = leaf_params(identity, &request, not_before_s, not_after_s)?;
        // Two certificates for one key have different serial numbers.
        let mut serial: [u8; 16] = rand::random();
        serial[0] &= 0x7f;
        params.serial_number = Some(SerialNumber::from_slice(&serial));
        let certificate = params.signed_by(&key.0, &self.issuer)?;
        Ok(vec![certificate.der().clone(), self.der.clone()])
    }

    /// Whether this key has issued the certificate, and the certificate is valid now.
    pub fn has_issued(&self, certificate: &CertificateDer<'_>) -> bool {
        self.issued_by_it.verify_client_cert(certificate, &[], UnixTime::now()).is_ok()
    }
}
