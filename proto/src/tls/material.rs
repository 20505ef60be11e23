//! The three files of a host, read and parsed.
//!
//! *Invariant:* the result is parsed completely: an unexpired certificate with an identity, its key, and at least one
//! trusted root. rustls checks later whether the key matches.

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::{TlsError, TlsFiles};
use crate::identity::{Identity, IdentityError};
use crate::pki::Validity;

const PEM_FILE_BYTES_MAX: u64 = 1 << 20;

/// A host's certificate chain and key, the roots that it trusts, and the content of the certificate.
pub(super) struct Material {
    pub(super) files: TlsFiles,
    pub(super) roots: RootCertStore,
    /// The certificates of the roots.
    pub(super) authorities: Vec<CertificateDer<'static>>,
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) identity: Identity,
    pub(super) validity: Validity,
}

impl Material {
    pub(super) fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let mut roots = RootCertStore::empty();
        let authorities = certificates(&files.ca)?;
        for root in &authorities {
            roots.add(root.clone()).map_err(|cause| pem_error(&files.ca, "certificate", cause))?;
        }
        let chain = certificates(&files.cert)?;
        let (identity, validity) = leaf(&files.cert, &chain[0])?;
        warn_if_others_can_read(&files.key);
        let key = PrivateKeyDer::from_pem_slice(&bounded_read(&files.key)?)
            .map_err(|cause| pem_error(&files.key, "private key", cause))?;
        let files = files.clone();
        Ok(Material { files, roots, authorities, chain, key, identity, validity })
    }

    /// The error if rustls cannot build a configuration from this material.
    pub(super) fn refused(files: &TlsFiles, cause: impl std::fmt::Display) -> TlsError {
        TlsError::Config {
            cert: files.cert.clone(),
            key: files.key.clone(),
            cause: cause.to_string(),
        }
    }
}

// At least one certificate, in the file's order.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let bytes = bounded_read(path)?;
    let all = CertificateDer::pem_slice_iter(&bytes)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|cause| pem_error(path, "certificate", cause))?;
    if all.is_empty() {
        return Err(pem_error(path, "certificate", "there is none in it"));
    }
    Ok(all)
}

fn leaf(path: &Path, der: &CertificateDer<'_>) -> Result<(Identity, Validity), TlsError> {
    let refused = |cause| TlsError::Identity { path: path.to_owned(), cause };
    let (_, certificate) =
        X509Certificate::from_der(der).map_err(|_| refused(IdentityError::Unparsable))?;
    let identity = Identity::from_x509(&certificate).map_err(refused)?;
    let validity = Validity::of(&certificate);
    if validity.not_after_unix < unix_now_s() {
        let not_after_unix = validity.not_after_unix;
        return Err(TlsError::Expired { path: path.to_owned(), not_after_unix });
    }
    Ok((identity, validity))
}

fn unix_now_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn bounded_read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |cause| TlsError::Read { path: path.to_owned(), cause: Arc::new(cause) };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(PEM_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > PEM_FILE_BYTES_MAX {
        return Err(TlsError::TooLarge { path: path.to_owned(), bytes_max: PEM_FILE_BYTES_MAX });
    }
    Ok(bytes)
}

// Warn but do not refuse: secrets that an orchestrator mounts are often readable by every user of a container that has
// only one.
fn warn_if_others_can_read(path: &Path) {
    if let Ok(meta) = std::fs::metadata(path) {
        let mode = meta.permissions().mode() & 0o777;
        if mode & 0o007 != 0 {
            tracing::warn!(
                path = %path.display(),
                mode = %format_args!("{mode:04o}"),
                "the private key is open to every user of this host: chmod 0600"
            );
        }
    }
}

fn pem_error(path: &Path, what: &'static str, cause: impl std::fmt::Display) -> TlsError {
    TlsError::Pem { path: path.to_owned(), what, cause: cause.to_string() }
}
