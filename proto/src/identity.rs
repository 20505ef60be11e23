//! The identity in a certificate: role, name and namespaces.
//!
//! *Invariant:* an [`Identity`] from a certificate comes from exactly one SAN URI of the scheme `rollout`, written in
//! its one canonical form. If there is none, or several, or it is malformed, the certificate has no identity. No
//! certificate can have the name of the plaintext identity.
//!
//! Absent: what a role may do (`authz.rs`), and the verification of a certificate: the TLS handshake has
//! verified its chain before.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use tonic::Status;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::error::{ErrorCode, RpcError};

/// The longest name of an identity or namespace, in bytes.
pub const IDENTITY_NAME_BYTES_MAX: usize = 128;
/// The most namespaces that one certificate lists.
pub const IDENTITY_NAMESPACES_MAX: usize = 64;

const SCHEME: &str = "rollout://";
const INSECURE_NAME: &str = "insecure";
const UNENROLLED_NAME: &str = "?";

/// The role of a certificate's holder, which decides the methods that it may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// A coordinator replica.
    Member,
    /// An agent on a GPU host.
    Worker,
    /// A person or service that only reads.
    Viewer,
    /// A person or service that submits and watches runs.
    Client,
    /// An operator of the cluster.
    Admin,
    /// A caller without a certificate; no certificate has this role.
    Unenrolled,
}

impl Role {
    /// Every role that a certificate may have.
    pub const ALL: [Role; 5] =
        [Role::Member, Role::Worker, Role::Viewer, Role::Client, Role::Admin];

    /// The role as certificates, flags and messages write it.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Member => "member",
            Role::Worker => "worker",
            Role::Viewer => "viewer",
            Role::Client => "client",
            Role::Admin => "admin",
            Role::Unenrolled => "newcomer",
        }
    }
}

impl Role {
    /// The role with its article: "an admin".
    pub fn with_article(self) -> String {
        let article = if self == Role::Admin { "an" } else { "a" };
        format!("{article} {self}")
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Role::ALL
            .into_iter()
            .find(|role| role.as_str() == text)
            .ok_or_else(|| IdentityError::UnknownRole(shortened(text)))
    }
}

/// Why a certificate, or a text, names no identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// Not X.509, or its SAN extension is malformed.
    #[error("the certificate cannot be parsed")]
    Unparsable,
    /// Not exactly one SAN URI of the scheme `rollout`.
    #[error(
        "the certificate has {0} SAN URIs of the form rollout://<role>/<name>, exactly one is needed"
    )]
    UriCount(usize),
    /// A URI that is not in the canonical form.
    #[error("identity {0:?} is not of the form rollout://<role>/<name>[?ns=<namespace>,...]")]
    Malformed(String),
    /// A role that this version does not know.
    #[error("unknown role {0:?}: one of member, worker, viewer, client, admin")]
    UnknownRole(String),
    /// A name or namespace out of bounds or of other characters.
    #[error(
        "name {0:?} is refused: 1 to 128 letters, digits, '.', '_' or '-', the first a letter or digit"
    )]
    BadName(String),
    /// The name reserved for callers in plaintext.
    #[error("the name \"insecure\" is reserved for plaintext connections")]
    ReservedName,
    /// More namespaces than [`IDENTITY_NAMESPACES_MAX`].
    #[error("{0} namespaces in one identity, at most 64 are allowed")]
    TooManyNamespaces(usize),
}

/// The identity of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Its role.
    pub role: Role,
    /// The name of a member, a worker, or a person or service.
    pub name: String,
    /// The namespaces that it may access; empty means all.
    pub namespaces: Vec<String>,
}

impl Identity {
    /// An identity with checked names.
    ///
    /// # Errors
    /// A name or namespace out of bounds, or the reserved name.
    pub fn new(
        role: Role,
        name: impl Into<String>,
        namespaces: Vec<String>,
    ) -> Result<Self, IdentityError> {
        let name = name.into();
        check_name(&name)?;
        if name == INSECURE_NAME {
            return Err(IdentityError::ReservedName);
        }
        if namespaces.len() > IDENTITY_NAMESPACES_MAX {
            return Err(IdentityError::TooManyNamespaces(namespaces.len()));
        }
        namespaces.iter().try_for_each(|namespace| check_name(namespace))?;
        Ok(Identity { role, name, namespaces })
    }

    /// The identity of every caller in plaintext. No certificate is requested, so every caller may do everything.
    pub fn insecure() -> Self {
        Identity { role: Role::Admin, name: INSECURE_NAME.to_owned(), namespaces: Vec::new() }
    }

    /// The identity of a caller that enrolls. No certificate can have its name, and it may call only the methods of
    /// its role. It may access no namespaces, although its list is empty.
    pub fn unenrolled() -> Self {
        Identity {
            role: Role::Unenrolled,
            name: UNENROLLED_NAME.to_owned(),
            namespaces: Vec::new(),
        }
    }

    /// Whether this is the plaintext identity, which no certificate can have. It is exempt from the check that a
    /// certificate names the worker for which it speaks.
    pub fn is_insecure(&self) -> bool {
        self.role == Role::Admin && self.name == INSECURE_NAME
    }

    /// Whether it may act as `role`.
    pub fn acts_as(&self, role: Role) -> bool {
        self.role == role || self.is_insecure()
    }

    /// Whether it may access `namespace`.
    pub fn allows_namespace(&self, namespace: &str) -> bool {
        let all = self.namespaces.is_empty() && self.role != Role::Unenrolled;
        all || self.namespaces.iter().any(|allowed| allowed == namespace)
    }

    /// The SAN URI with this identity.
    pub fn to_uri(&self) -> String {
        let mut uri = format!("{SCHEME}{}/{}", self.role, self.name);
        if !self.namespaces.is_empty() {
            uri.push_str("?ns=");
            uri.push_str(&self.namespaces.join(","));
        }
        uri
    }

    /// Parses exactly what [`Identity::to_uri`] writes: no percent-encoding, no other query, no fragment.
    ///
    /// # Errors
    /// Anything but the canonical form.
    pub fn from_uri(uri: &str) -> Result<Self, IdentityError> {
        let malformed = || IdentityError::Malformed(shortened(uri));
        let rest = uri.strip_prefix(SCHEME).ok_or_else(malformed)?;
        let (path, namespaces) = match rest.split_once('?') {
            None => (rest, Vec::new()),
            Some((path, query)) => {
                let list = query.strip_prefix("ns=").ok_or_else(malformed)?;
                // An empty list would read as "all namespaces", so refuse it as a bad name.
                let listed = list.split(',').take(IDENTITY_NAMESPACES_MAX + 1);
                (path, listed.map(str::to_owned).collect())
            }
        };
        let (role, name) = path.split_once('/').ok_or_else(malformed)?;
        Identity::new(role.parse()?, name, namespaces)
    }

    /// The identity in a certificate (DER) that the handshake has verified.
    ///
    /// # Errors
    /// An unparsable certificate, or not exactly one well-formed SAN URI of the scheme `rollout`.
    pub fn from_certificate(der: &[u8]) -> Result<Self, IdentityError> {
        let (_, certificate) =
            X509Certificate::from_der(der).map_err(|_| IdentityError::Unparsable)?;
        Identity::from_x509(&certificate)
    }

    pub(crate) fn from_x509(certificate: &X509Certificate<'_>) -> Result<Self, IdentityError> {
        let names =
            certificate.subject_alternative_name().map_err(|_| IdentityError::Unparsable)?;
        let ours: Vec<&str> = names
            .iter()
            .flat_map(|extension| &extension.value.general_names)
            .filter_map(|name| match name {
                GeneralName::URI(uri) if has_our_scheme(uri) => Some(*uri),
                _ => None,
            })
            .collect();
        match ours.as_slice() {
            [uri] => Identity::from_uri(uri),
            several => Err(IdentityError::UriCount(several.len())),
        }
    }
}

impl fmt::Display for Identity {
    /// `role/name`, as logs and the audit log write it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.role, self.name)
    }
}

/// The identity and the address of a connection's peer, in every request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its identity.
    pub identity: Identity,
    /// Its address, from the socket.
    pub addr: SocketAddr,
    /// Its certificate, DER, as the handshake verified it; `None` in plaintext and for unenrolled clients.
    pub certificate: Option<Arc<CertificateDer<'static>>>,
    /// The start of the certificate's validity, in Unix seconds; 0 without one.
    pub not_before_unix: i64,
}

impl PeerInfo {
    /// A peer without a certificate.
    pub fn uncertified(identity: Identity, addr: SocketAddr) -> Self {
        PeerInfo { identity, addr, certificate: None, not_before_unix: 0 }
    }
}

/// The identity of a request's caller.
///
/// # Errors
/// RO-3001 (`UNAUTHENTICATED`) if the server does not get its connections from [`crate::ServerTls::incoming`].
// A status is what every caller returns as it is.
#[allow(clippy::result_large_err)]
pub fn peer_identity<T>(request: &tonic::Request<T>) -> Result<Identity, Status> {
    request.extensions().get::<PeerInfo>().map(|peer| peer.identity.clone()).ok_or_else(no_identity)
}

/// The error for a request on a connection without a handshake of [`crate::ServerTls`].
pub(crate) fn no_identity() -> Status {
    RpcError::new(ErrorCode::Unauthenticated, "the connection carries no identity").into()
}

// Compare without case, so that a second URI in capitals counts as a second identity and is not ignored.
fn has_our_scheme(uri: &str) -> bool {
    uri.split_once(':').is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case("rollout"))
}

pub(crate) fn check_name(name: &str) -> Result<(), IdentityError> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    let fits = (1..=IDENTITY_NAME_BYTES_MAX).contains(&name.len());
    if fits && name.bytes().all(allowed) && name.as_bytes()[0].is_ascii_alphanumeric() {
        Ok(())
    } else {
        Err(IdentityError::BadName(shortened(name)))
    }
}

fn shortened(text: &str) -> String {
    text.chars().take(160).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_survives_its_uri() {
        for role in Role::ALL {
            for namespaces in [vec![], vec!["default".to_owned()], vec!["a".into(), "b-2".into()]] {
                let identity = Identity::new(role, "gpu-1.rack_2", namespaces).unwrap();
                assert_eq!(Identity::from_uri(&identity.to_uri()), Ok(identity));
            }
        }
        assert_eq!(
            Identity::new(Role::Client, "ann", vec!["a".into(), "b".into()]).unwrap().to_uri(),
            "rollout://client/ann?ns=a,b"
        );
    }

    #[test]
    fn anything_but_the_canonical_form_is_refused() {
        let long = format!("rollout://client/{}", "x".repeat(129));
        let many = format!("rollout://client/ann?ns={}", vec!["n"; 65].join(","));
        for uri in [
            "",
            "rollout://",
            "rollout://client",
            "rollout://client/",
            "rollout://Client/ann",
            "ROLLOUT://client/ann",
            "rollout://root/ann",
            "rollout://client/ann/bob",
            "rollout://client/../ann",
            "rollout://client/.ann",
            "rollout://client/ann?",
            "rollout://client/ann?ns=",
            "rollout://client/ann?ns=a,",
            "rollout://client/ann?ns=a,,b",
            "rollout://client/ann?ns=a&role=admin",
            "rollout://client/ann?role=admin",
            "rollout://client/ann#x",
            "rollout://client/a%6e",
            "rollout://client/\u{e4}",
            "rollout://ann@client/ann",
            "https://client/ann",
            long.as_str(),
            many.as_str(),
        ] {
            assert!(Identity::from_uri(uri).is_err(), "{uri} was accepted");
        }
    }

    #[test]
    fn no_certificate_can_carry_the_plaintext_identity() {
        for role in Role::ALL {
            assert_eq!(
                Identity::from_uri(&format!("rollout://{role}/insecure")),
                Err(IdentityError::ReservedName)
            );
        }
        assert!(Identity::insecure().is_insecure());
    }

    #[test]
    fn no_namespaces_means_all_and_some_mean_those() {
        let all = Identity::new(Role::Client, "ann", vec![]).unwrap();
        let one = Identity::new(Role::Client, "ann", vec!["a".into()]).unwrap();
        assert!(all.allows_namespace("a") && all.allows_namespace("b"));
        assert!(one.allows_namespace("a") && !one.allows_namespace("b"));
    }
}
