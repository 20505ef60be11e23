//! The holder's side of a certificate that is issued over the wire: its key, its signing request, and the files of the
//! answer.
//!
//! *Invariant:* a key is made once and never leaves its file. A certificate replaces another only if it is for that
//! key. So a process that follows the files finds a matching pair at every moment.
//!
//! Absent: how the answer arrives here, and a new key for a renewed certificate: to get one, remove the
//! key's file and enroll again.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{PkiError, TlsFiles, files, read_key};
use crate::identity::Identity;
use crate::v1;

/// The most authorities that are accepted in an answer, or sent to unenrolled clients.
pub(crate) const AUTHORITIES_MAX: usize = 8;
/// Characters in one line of PEM.
const PEM_LINE: usize = 64;

/// A signing request, PKCS #10 in DER, with the key at this path, which is created (mode 0600) if it is missing.
///
/// # Errors
/// A file that is not a key, or the disk.
pub fn signing_request(key_path: &Path) -> Result<Vec<u8>, PkiError> {
    if !files::exists(key_path)? {
        if let Some(dir) = key_path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            files::create_private_dir(dir)?;
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        files::write_new(key_path, key.serialize_pem().as_bytes(), 0o600)?;
    }
    // If two processes create the key at the same time, the first one's stays.
    let key = read_key(key_path)?;
    // The issuer uses only the key, so the rest of the request is empty.
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params.serialize_request(&key)?.der().to_vec())
}

/// Which authorities may replace the trusted ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Only authorities of the same cluster: at least one is trusted already, or none is trusted yet.
    Known,
    /// Any authorities that the cluster sends, over a connection that the old ones have verified.
    AsTold,
}

/// Saves an issued certificate: first the authorities, so that the trusted ones never lag behind, then the certificate
/// with its issuer. Each file is replaced as a whole. Returns the identity in the certificate.
///
/// # Errors
/// A certificate for another key than `files.key`, or without an identity; authorities of another cluster; the disk.
pub fn keep_issued(
    files: &TlsFiles,
    issued: &v1::IssuedCertificate,
    trust: Trust,
) -> Result<Identity, PkiError> {
    let refused = |why: &'static str| PkiError::Issued(why.to_owned());
    let leaf = issued.chain.first().ok_or_else(|| refused("it is empty"))?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| refused("it is malformed"))?;
    let identity = Identity::from_x509(&parsed)?;
    let key = read_key(&files.key)?;
    if parsed.public_key().raw != key.subject_public_key_info() {
        return Err(refused("it is for another key"));
    }
    if issued.authorities.is_empty() || issued.authorities.len() > AUTHORITIES_MAX {
        return Err(refused("it comes without authorities, or with too many"));
    }
    if trust == Trust::Known && files::exists(&files.ca)? {
        let bytes = files::read(&files.ca)?;
        let mut stored = CertificateDer::pem_slice_iter(&bytes).flatten();
        if !stored.any(|der| issued.authorities.iter().any(|issued_der| issued_der[..] == der[..]))
        {
            return Err(PkiError::OtherCa {
                path: files.ca.clone(),
                found: "another authority".to_owned(),
                wanted: "the cluster's".to_owned(),
            });
        }
    }
    replace_if_new(&files.ca, &pem(issued.authorities.iter().map(AsRef::as_ref)))?;
    replace_if_new(&files.cert, &pem(issued.chain.iter().map(AsRef::as_ref)))?;
    Ok(identity)
}

// An unchanged file is not replaced, because a process that follows it would read it again.
fn replace_if_new(path: &Path, text: &str) -> Result<(), PkiError> {
    if files::exists(path)? && files::read(path)? == text.as_bytes() {
        return Ok(());
    }
    files::replace(path, text.as_bytes(), 0o644)
}

/// A chain of certificates as PEM, the holder's own first, as certificate files have it.
pub fn chain_pem(chain: &[CertificateDer<'_>]) -> String {
    pem(chain.iter().map(AsRef::as_ref))
}

fn pem<'a>(certificates: impl Iterator<Item = &'a [u8]>) -> String {
    let mut text = String::new();
    for der in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(der);
        for line in encoded.as_bytes().chunks(PEM_LINE) {
            text.extend(line.iter().copied().map(char::from));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

/// blake3 of the public key of each authority in a certificate file, at most [`AUTHORITIES_MAX`]. A join token names
/// with these the authorities that its holder may trust.
///
/// # Errors
/// A file that cannot be read, or has a malformed certificate.
pub fn authority_pins(ca: &Path) -> Result<Vec<[u8; 32]>, PkiError> {
    let malformed = || PkiError::Malformed { path: ca.to_owned(), what: "certificate" };
    let pins: Option<Vec<[u8; 32]>> = authorities(ca)?.iter().map(|der| pin_of(der)).collect();
    pins.filter(|pins| !pins.is_empty()).ok_or_else(malformed)
}

/// The certificates of the authorities in a file, DER, at most [`AUTHORITIES_MAX`].
///
/// # Errors
/// As [`authority_pins`].
pub fn authorities(ca: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let malformed = |_| PkiError::Malformed { path: ca.to_owned(), what: "certificate" };
    let bytes = files::read(ca)?;
    let all = CertificateDer::pem_slice_iter(&bytes).take(AUTHORITIES_MAX);
    all.collect::<Result<_, _>>().map_err(malformed)
}

/// blake3 of a certificate's public key, including its type; `None` if the certificate is malformed.
pub(crate) fn pin_of(der: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    Some(*blake3::hash(parsed.public_key().raw).as_bytes())
}
