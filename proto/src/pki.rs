//! A private certificate authority, and the certificates that it issues.
//!
//! *Invariant:* a key is never readable by another user, not even while it is being written, and never overwritten by
//! another authority's. Writing the authority's key is the commit point: its certificate can be made again from it, so
//! an interrupted start leaves nothing broken.
//!
//! Absent: revocation (`revocations`), and keys of other authorities: a site with its own authority issues
//! its own certificates, with the SAN URI of [`crate::Identity`].

mod files;
mod holder;
mod issuer;
#[cfg(test)]
mod tests;

pub(crate) use holder::{AUTHORITIES_MAX, pin_of};
pub use holder::{Trust, authorities, authority_pins, chain_pem, keep_issued, signing_request};
pub use issuer::{
    IntermediateCa, IssuerFiles, RequestedKey, SIGNING_REQUEST_BYTES_MAX, init_issuer,
};

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::identity::{Identity, IdentityError, Role, check_name};

const CA_CERT: &str = "ca.pem";
const CA_KEY: &str = "ca.key";
const CA_DAYS: u32 = 3650;
/// The longest life of a certificate, in days.
pub const CERT_DAYS_MAX: u32 = 3650;
// Clocks of a fleet differ: a certificate from a host whose clock is an hour ahead must be valid at once where the
// clock is an hour behind.
const BACKDATE_S: u64 = 2 * 3600;
const DAY_S: u64 = 86_400;

/// The files of a host's certificate, its key and the authority that it trusts, all in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificates of the trusted authority; several while it is being replaced.
    pub ca: PathBuf,
    /// This host's certificate, followed by intermediate ones if there are any.
    pub cert: PathBuf,
    /// The key of that certificate; no other user should be able to read it.
    pub key: PathBuf,
}

/// Why a certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum PkiError {
    /// A file could not be read or written.
    #[error("{path}: {cause}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        cause: std::io::Error,
    },
    /// The directory holds an authority's certificate without its key.
    #[error("{0} holds the certificate of an authority but not its key: issue where the key is")]
    CaKeyMissing(PathBuf),
    /// There is no authority in the directory.
    #[error("{0} contains no CA: create one first")]
    NoCa(PathBuf),
    /// The authority belongs to another cluster, or its key and certificate do not match.
    #[error("{path} is the authority {found:?}, not {wanted:?}: use another directory")]
    OtherCa {
        /// Its certificate.
        path: PathBuf,
        /// The name in it.
        found: String,
        /// The requested name.
        wanted: String,
    },
    /// A file that should hold a certificate or a key does not.
    #[error("{path} holds no usable {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// A name that no identity may have.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A host name that a certificate cannot carry.
    #[error("{0:?} is not a host name")]
    DnsName(String),
    /// A lifetime of no days, or of too many.
    #[error("the lifetime of a certificate is 1 to {CERT_DAYS_MAX} days, not {0}")]
    Days(u32),
    /// A certificate that would not be valid yet.
    #[error(
        "a certificate that is valid from a time in the future cannot be used: wait, or give an earlier time"
    )]
    NotYetValid,
    /// The authority does not allow an intermediate one.
    #[error(
        "{0} belongs to an authority that allows no intermediate CA, as earlier versions made them: replace the \
         authority first"
    )]
    NoRoomBelow(PathBuf),
    /// A malformed signing request.
    #[error("malformed signing request (PKCS #10, DER): {0}")]
    Request(String),
    /// A role for which an intermediate CA may not issue certificates.
    #[error("the intermediate CA cannot certify {}: use the authority itself (rolloutctl cert issue)", .0.with_article())]
    RoleByHand(Role),
    /// A certificate that was issued over the wire and cannot be saved.
    #[error("the issued certificate cannot be used: {0}")]
    Issued(String),
    /// A cryptographic operation failed.
    #[error("cannot make the certificate: {0}")]
    Make(#[from] rcgen::Error),
}

/// The content of a certificate to be issued.
#[derive(Clone, Debug)]
pub struct IssueRequest {
    /// The role. A member's certificate is for servers and clients, every other one only for clients.
    pub role: Role,
    /// The name.
    pub name: String,
    /// The namespaces; empty means all.
    pub namespaces: Vec<String>,
    /// The host names under which a member is reached.
    pub dns_names: Vec<String>,
    /// The addresses under which a member is reached.
    pub ip_addrs: Vec<IpAddr>,
    /// The lifetime in days. It ends with the authority's certificate at the latest.
    pub days: u32,
}

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertInfo {
    /// Its identity; `None` for an authority or a certificate of another system.
    pub identity: Option<Identity>,
    /// The common name of its issuer; empty if that has none.
    pub issuer: String,
    /// Its validity.
    pub validity: Validity,
    /// Its alternative names, as text (`dns:a`, `ip:127.0.0.1`, `uri:rollout://...`).
    pub sans: Vec<String>,
}

/// The validity of a certificate, in Unix seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Validity {
    /// Its first second.
    pub not_before_unix: i64,
    /// Its last second.
    pub not_after_unix: i64,
}

impl Validity {
    pub(crate) fn of(certificate: &X509Certificate<'_>) -> Self {
        let validity = certificate.validity();
        Self {
            not_before_unix: validity.not_before.timestamp(),
            not_after_unix: validity.not_after.timestamp(),
        }
    }

    /// When renewal is due: in the last third of the lifetime, and at most `within_s` seconds before its end. So a
    /// certificate of one day is not due all the time, and one of several years not too early.
    pub fn renewal_unix(&self, within_s: i64) -> i64 {
        let lifetime_s = self.not_after_unix.saturating_sub(self.not_before_unix).max(0);
        let last_third_s = renewal_ahead(Duration::from_secs(lifetime_s.unsigned_abs())).as_secs();
        self.not_after_unix.saturating_sub(within_s.min(last_third_s.cast_signed()))
    }

    /// Whether renewal is due at `now_unix`.
    pub fn is_due(&self, now_unix: i64, within_s: i64) -> bool {
        now_unix > self.renewal_unix(within_s)
    }
}

/// At most this many seconds before its end, a certificate is reported as about to expire: two weeks.
pub const RENEWAL_WITHIN_S: i64 = 14 * 86_400;

/// How long before its end a certificate of that lifetime is renewed: a third of it, which leaves time for retries.
pub fn renewal_ahead(lifetime: Duration) -> Duration {
    lifetime / 3
}

/// Creates the authority of a cluster in `dir` (`ca.pem`, `ca.key` with mode 0600), or finds the existing one. Two
/// processes at the same time get the same one. Returns its certificate's path.
///
/// # Errors
/// An authority of another cluster there, a certificate without its key, or the disk.
pub fn init_ca(dir: &Path, cluster_name: &str) -> Result<PathBuf, PkiError> {
    check_name(cluster_name)?;
    files::create_private_dir(dir)?;
    let (cert_path, key_path) = (dir.join(CA_CERT), dir.join(CA_KEY));
    if !files::exists(&key_path)? {
        if files::exists(&cert_path)? {
            return Err(PkiError::CaKeyMissing(dir.to_owned()));
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        files::write_new(&key_path, key.serialize_pem().as_bytes(), 0o600)?;
    }
    let key = read_key(&key_path)?;
    let wanted = ca_common_name(cluster_name, &key);
    if !files::exists(&cert_path)? {
        let certificate = ca_params(&wanted).self_signed(&key)?;
        files::write_new(&cert_path, certificate.pem().as_bytes(), 0o644)?;
    }
    let found = read_ca(&cert_path, &key)?.common_name;
    if found != wanted {
        return Err(PkiError::OtherCa { path: cert_path, found, wanted });
    }
    Ok(cert_path)
}

/// Issues a certificate of the authority in `dir_of_ca`. Writes `ca.pem`, `<role>-<name>.pem` and `<role>-<name>.key`
/// (mode 0600) to `out_dir`. An existing certificate of that name is renewed with a new key, file by file, so that a
/// running process uses them once both are there.
///
/// # Errors
/// No authority, a bad name, an `out_dir` that trusts another authority, or the disk.
pub fn issue(
    dir_of_ca: &Path,
    request: &IssueRequest,
    out_dir: &Path,
) -> Result<TlsFiles, PkiError> {
    issue_from(dir_of_ca, request, out_dir, unix_now_s().saturating_sub(BACKDATE_S))
}

/// Like [`issue`], but valid from `not_before_s` on, in Unix seconds.
///
/// # Errors
/// As [`issue`], and a time in the future: a host with a correct clock could not use the certificate.
pub fn issue_from(
    dir_of_ca: &Path,
    request: &IssueRequest,
    out_dir: &Path,
    not_before_s: u64,
) -> Result<TlsFiles, PkiError> {
    if !(1..=CERT_DAYS_MAX).contains(&request.days) {
        return Err(PkiError::Days(request.days));
    }
    let now_s = unix_now_s();
    if not_before_s > now_s {
        return Err(PkiError::NotYetValid);
    }
    let not_after_s = now_s + u64::from(request.days) * DAY_S;
    issue_between(dir_of_ca, request, out_dir, not_before_s, not_after_s)
}

fn issue_between(
    dir_of_ca: &Path,
    request: &IssueRequest,
    out_dir: &Path,
    not_before_s: u64,
    not_after_s: u64,
) -> Result<TlsFiles, PkiError> {
    let identity = Identity::new(request.role, &*request.name, request.namespaces.clone())?;
    let ca_path = dir_of_ca.join(CA_CERT);
    if !files::exists(&ca_path)? {
        return Err(PkiError::NoCa(dir_of_ca.to_owned()));
    }
    if !files::exists(&dir_of_ca.join(CA_KEY))? {
        return Err(PkiError::CaKeyMissing(dir_of_ca.to_owned()));
    }
    let ca_key = read_key(&dir_of_ca.join(CA_KEY))?;
    let ca = read_ca(&ca_path, &ca_key)?;
    let issuer = Issuer::from_ca_cert_der(&ca.der, ca_key)?;
    let not_after_s = not_after_s.min(ca.not_after_s);
    let params = leaf_params(&identity, request, not_before_s, not_after_s)?;
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.signed_by(&key, &issuer)?;

    files::create_private_dir(out_dir)?;
    let stem = format!("{}-{}", identity.role, identity.name);
    let written = TlsFiles {
        ca: out_dir.join(CA_CERT),
        cert: out_dir.join(format!("{stem}.pem")),
        key: out_dir.join(format!("{stem}.key")),
    };
    trust(&written.ca, &ca)?;
    files::replace(&written.key, key.serialize_pem().as_bytes(), 0o600)?;
    files::replace(&written.cert, certificate.pem().as_bytes(), 0o644)?;
    Ok(written)
}

/// Reads the first certificate in a PEM file, without verifying it.
///
/// # Errors
/// A file that cannot be read or has no certificate.
pub fn inspect(cert: &Path) -> Result<CertInfo, PkiError> {
    let malformed = || PkiError::Malformed { path: cert.to_owned(), what: "certificate" };
    inspect_all(cert)?.into_iter().next().ok_or_else(malformed)
}

/// Like [`inspect`], for every certificate in the file: a bundle of authorities has several.
///
/// # Errors
/// A file that cannot be read, or with a malformed certificate.
pub fn inspect_all(file: &Path) -> Result<Vec<CertInfo>, PkiError> {
    let bytes = files::read(file)?;
    let malformed = || PkiError::Malformed { path: file.to_owned(), what: "certificate" };
    let each = |der: Result<CertificateDer<'_>, _>| der.ok().and_then(|der| inspect_der(&der));
    CertificateDer::pem_slice_iter(&bytes).map(|der| each(der).ok_or_else(malformed)).collect()
}

/// The content of a certificate in DER; `None` if it is malformed.
pub fn inspect_der(der: &CertificateDer<'_>) -> Option<CertInfo> {
    let (_, parsed) = X509Certificate::from_der(der).ok()?;
    let names = parsed.subject_alternative_name().ok()?;
    let sans = names.iter().flat_map(|extension| &extension.value.general_names);
    let issuer = parsed.issuer().iter_common_name().next().and_then(|name| name.as_str().ok());
    Some(CertInfo {
        identity: Identity::from_x509(&parsed).ok(),
        issuer: issuer.unwrap_or_default().to_owned(),
        validity: Validity::of(&parsed),
        sans: sans.map(san_text).collect(),
    })
}

struct Ca {
    // The whole file, because a bundle is passed on as a whole.
    pem: Vec<u8>,
    der: CertificateDer<'static>,
    common_name: String,
    not_after_s: u64,
}

// If it is a bundle, takes the certificate that belongs to `key`.
fn read_ca(path: &Path, key: &KeyPair) -> Result<Ca, PkiError> {
    let malformed =
        || PkiError::Malformed { path: path.to_owned(), what: "certificate of the key beside it" };
    let pem = files::read(path)?;
    for der in CertificateDer::pem_slice_iter(&pem) {
        let der = der.map_err(|_| malformed())?;
        let (_, parsed) = X509Certificate::from_der(&der).map_err(|_| malformed())?;
        if parsed.public_key().subject_public_key.data.as_ref() != key.public_key_raw() {
            continue;
        }
        let common_name = parsed.subject().iter_common_name().next();
        let common_name = common_name.and_then(|name| name.as_str().ok()).unwrap_or_default();
        let not_after_s = parsed.validity().not_after.timestamp();
        let common_name = common_name.to_owned();
        let not_after_s = u64::try_from(not_after_s).unwrap_or_default();
        return Ok(Ca { common_name, not_after_s, der: der.clone(), pem });
    }
    Err(malformed())
}

fn read_key(path: &Path) -> Result<KeyPair, PkiError> {
    let malformed = || PkiError::Malformed { path: path.to_owned(), what: "private key" };
    let text = String::from_utf8(files::read(path)?).map_err(|_| malformed())?;
    KeyPair::from_pem(&text).map_err(|_| malformed())
}

// Keeps an existing bundle that has the authority, so that the other authorities in it stay trusted.
fn trust(path: &Path, ca: &Ca) -> Result<(), PkiError> {
    if files::exists(path)? {
        let bytes = files::read(path)?;
        let is_known = CertificateDer::pem_slice_iter(&bytes).flatten().any(|der| der == ca.der);
        if is_known {
            return Ok(());
        }
        return Err(PkiError::OtherCa {
            path: path.to_owned(),
            found: "another authority".to_owned(),
            wanted: ca.common_name.clone(),
        });
    }
    files::replace(path, &ca.pem, 0o644)
}

// The key is part of the name. If two authorities had the same name, a certificate of the other one would be refused
// for its signature instead of its unknown issuer.
fn ca_common_name(cluster_name: &str, key: &KeyPair) -> String {
    let digest = blake3::hash(key.public_key_raw()).to_hex();
    format!("rollout {cluster_name} authority {}", &digest[..8])
}

fn ca_params(common_name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    // Allows one authority below this one, the cluster's intermediate CA, and none below that.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(1));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let now_s = unix_now_s();
    set_validity(&mut params, now_s.saturating_sub(BACKDATE_S), now_s + u64::from(CA_DAYS) * DAY_S);
    params
}

fn leaf_params(
    identity: &Identity,
    request: &IssueRequest,
    not_before_s: u64,
    not_after_s: u64,
) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, identity.to_string());
    params.subject_alt_names.push(SanType::URI(identity.to_uri().try_into()?));
    for name in &request.dns_names {
        let valid = rustls_pki_types::DnsName::try_from(name.as_str()).is_ok();
        let text = name.as_str().try_into().map_err(|_| PkiError::DnsName(name.clone()))?;
        if !valid {
            return Err(PkiError::DnsName(name.clone()));
        }
        params.subject_alt_names.push(SanType::DnsName(text));
    }
    params.subject_alt_names.extend(request.ip_addrs.iter().copied().map(SanType::IpAddress));
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if identity.role == Role::Member {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.use_authority_key_identifier_extension = true;
    set_validity(&mut params, not_before_s, not_after_s);
    Ok(params)
}

fn set_validity(params: &mut CertificateParams, not_before_s: u64, not_after_s: u64) {
    let unix_epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = unix_epoch + Duration::from_secs(not_before_s);
    params.not_after = unix_epoch + Duration::from_secs(not_after_s);
}

fn unix_now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn san_text(name: &GeneralName<'_>) -> String {
    match name {
        GeneralName::DNSName(dns) => format!("dns:{dns}"),
        GeneralName::URI(uri) => format!("uri:{uri}"),
        GeneralName::IPAddress(bytes) => {
            let addr = match bytes.len() {
                4 => <[u8; 4]>::try_from(*bytes).ok().map(IpAddr::from),
                16 => <[u8; 16]>::try_from(*bytes).ok().map(IpAddr::from),
                _ => None,
            };
            addr.map_or_else(|| "ip:malformed".to_owned(), |addr| format!("ip:{addr}"))
        }
        other => format!("other:{other}"),
    }
}
