//! Settings of enrollment: the address to which newcomers connect, and the key that signs their certificates.

use anyhow::{Result, bail};
use rollout_proto::Security;
use rollout_proto::pki::IssuerFiles;
use serde::Deserialize;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// Bounds of the lifetime of issued certificates, in seconds.
const LIFETIME_S: RangeInclusive<u64> = 10..=7 * 24 * 60 * 60;

/// The enrollment port, and the issuing key.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnrolmentSettings {
    /// Address for newcomers, which have no certificate.
    pub listen: SocketAddr,
    /// The issuing authority's certificate: see `rolloutctl cert init-issuer`.
    pub issuer_cert_file: PathBuf,
    /// The issuing authority's private key.
    pub issuer_key_file: PathBuf,
    /// Lifetime of issued certificates, in seconds.
    #[serde(default = "default_lifetime_s")]
    pub lifetime_s: u64,
}

fn default_lifetime_s() -> u64 {
    24 * 60 * 60
}

impl EnrolmentSettings {
    pub(super) fn check(&self, security: &Security) -> Result<()> {
        if matches!(security, Security::InsecurePlaintext) {
            bail!("[enrolment] has nothing to issue where [tls] insecure_plaintext = true");
        }
        if !LIFETIME_S.contains(&self.lifetime_s) {
            let (min, max) = LIFETIME_S.into_inner();
            bail!("[enrolment] lifetime_s = {} has to be {min} to {max}", self.lifetime_s);
        }
        Ok(())
    }

    /// The issuing authority's files.
    pub fn issuer(&self) -> IssuerFiles {
        IssuerFiles { cert: self.issuer_cert_file.clone(), key: self.issuer_key_file.clone() }
    }
}
