//! The holder's side of a certificate that is issued over the wire: its key, its signing request, and the files of the
//! answer.
//!
//! *Invariant:* a key is made once and never leaves its file. A certificate replaces another only if it is for that
//! key. So a process that follows the files finds a matching pair at every moment.
//!
//! Deliberately absent: how the answer arrives here, and a new key for a renewed certificate: to get one, remove the
//! key's file and enroll again.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{PkiError, files, read_key};
use crate::identity::Identity;
use crate::tls::TlsFiles;
use crate::v1;

/// The most authorities that are taken from an answer, or told to newcomers.
pub(crate) const AUTHORITIES_MAX: usize = 8;
/// Characters of a line of PEM.
const PEM_LINE: usize = 64;

/// A signing request, PKCS #10 in DER, by the key at this path, which is made (mode 0600) where it is not there.
///
/// # Errors
/// A file that is no key, or the disk.
pub fn signing_request(key_path: &Path) -> Result<Vec<u8>, PkiError> {
    if !files::exists(key_path)? {
        if let Some(dir) = key_path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            files::create_private_dir(dir)?;
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        files::write_new(key_path, key.serialize_pem().as_bytes(), 0o600)?;
    }
    // Of two processes at once the first one's key stays.
    let key = read_key(key_path)?;
    // Whoever issues it takes the key alone: the rest says nothing.
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    Ok(params.serialize_request(&key)?.der().to_vec())
}

/// What may be in the place of the authorities that are trusted so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Those of the same cluster alone: one of them is known already, or there are none yet.
    Known,
    /// Whatever the cluster says, to whom the connection was verified by the old ones.
    AsTold,
}

/// Keeps an issued certificate: the authorities first, so that what is trusted never lags behind, and then the certificate
/// with its issuer, each file whole. Says whom it names.
///
/// # Errors
/// One that is not of the key in `files.key`, or names nobody; authorities of another cluster; the disk.
pub fn keep_issued(
    files: &TlsFiles,
    issued: &v1::IssuedCertificate,
    trust: Trust,
) -> Result<Identity, PkiError> {
    let refused = |why: &'static str| PkiError::Issued(why.to_owned());
    let leaf = issued.chain.first().ok_or_else(|| refused("it is empty"))?;
    let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| refused("it is none"))?;
    let identity = Identity::from_x509(&parsed)?;
    let key = read_key(&files.key)?;
    if parsed.public_key().raw != key.subject_public_key_info() {
        return Err(refused("it is of another key"));
    }
    if issued.authorities.is_empty() || issued.authorities.len() > AUTHORITIES_MAX {
        return Err(refused("it comes without authorities, or with too many"));
    }
    if trust == Trust::Known && files::exists(&files.ca)? {
        let bytes = files::read(&files.ca)?;
        let mut known = CertificateDer::pem_slice_iter(&bytes).flatten();
        if !known.any(|der| issued.authorities.iter().any(|told| told[..] == der[..])) {
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

// A process that follows the file reads it again when it is replaced.
fn replace_if_new(path: &Path, text: &str) -> Result<(), PkiError> {
    if files::exists(path)? && files::read(path)? == text.as_bytes() {
        return Ok(());
    }
    files::replace(path, text.as_bytes(), 0o644)
}

/// A chain of certificates as PEM, the holder's own first: what a certificate file holds.
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

/// blake3 of the public key of each authority in a file of certificates, [`AUTHORITIES_MAX`] at most: how a join token
/// names whom its holder may believe.
///
/// # Errors
/// A file that cannot be read, or holds what is no certificate.
pub fn authority_pins(ca: &Path) -> Result<Vec<[u8; 32]>, PkiError> {
    let malformed = || PkiError::Malformed { path: ca.to_owned(), what: "certificate" };
    let pins: Option<Vec<[u8; 32]>> = authorities(ca)?.iter().map(|der| pin_of(der)).collect();
    pins.filter(|pins| !pins.is_empty()).ok_or_else(malformed)
}

/// The certificates of the authorities in a file, DER, [`AUTHORITIES_MAX`] at most.
///
/// # Errors
/// As [`authority_pins`].
pub fn authorities(ca: &Path) -> Result<Vec<CertificateDer<'static>>, PkiError> {
    let malformed = |_| PkiError::Malformed { path: ca.to_owned(), what: "certificate" };
    let bytes = files::read(ca)?;
    let all = CertificateDer::pem_slice_iter(&bytes).take(AUTHORITIES_MAX);
    all.collect::<Result<_, _>>().map_err(malformed)
}

/// blake3 of the public key, with its kind, of a certificate; `None` where it is none.
pub(crate) fn pin_of(der: &CertificateDer<'_>) -> Option<[u8; 32]> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    Some(*blake3::hash(parsed.public_key().raw).as_bytes())
}
