//! Issues certificates: holds the issuing key, and paces refusals.
//!
//! *Invariant:* without `[enrolment]` there is no desk, and nothing is issued. Refusals are delayed and sent one after
//! another; valid tokens are not delayed. So callers that guess tokens burden neither the log nor the holders of valid
//! tokens. An issuing key with an expired certificate issues nothing, but does not stop the member.
//! Deliberately absent: who may enroll (the ledger's tokens decide), and replacing the key without a restart.

use crate::config::{Config, EnrolmentSettings};
use anyhow::{Context, Result};
use rollout_proto::pki::{self, IssuingAuthority, RequestedKey, Validity};
use rollout_proto::{ErrorCode, Identity, RpcError, Security, v1};
use rustls_pki_types::CertificateDer;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;

/// Between two refusals of one member.
const REFUSAL_EVERY: Duration = Duration::from_millis(100);
/// What an issuing key has to be good for yet: less is no certificate.
const LEFT_MIN_S: u64 = 10;

/// The desk of one member.
pub(crate) struct EnrolmentDesk {
    issuer: IssuingAuthority,
    lifetime_s: u64,
    /// Read for each answer: it is replaced under us while an authority is.
    ca_file: PathBuf,
    refusing: Mutex<()>,
}

impl EnrolmentDesk {
    /// The desk that the configuration asks for, if it asks for one.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>> {
        let (Some(settings), Security::Mtls(files)) = (&config.enrolment, &config.security) else {
            return Ok(None);
        };
        let EnrolmentSettings { lifetime_s, .. } = *settings;
        let issuer = IssuingAuthority::load(&settings.issuer()).context("[enrolment]")?;
        let desk =
            Self { issuer, lifetime_s, ca_file: files.ca.clone(), refusing: Mutex::default() };
        // It is an alarm, and no reason to serve nobody: those whose certificates are good do not need this key.
        if let Err(error) = desk.lifetime_left_s() {
            tracing::warn!(%error, "this member issues no certificates");
        }
        Ok(Some(desk))
    }

    /// How long what is issued now is good: as configured, but no longer than the issuing key's own certificate.
    pub(crate) fn lifetime_left_s(&self) -> Result<u64, RpcError> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ends_s = u64::try_from(self.issuer.validity().not_after_unix).unwrap_or(0);
        let left_s = ends_s.saturating_sub(now_s);
        if left_s < LEFT_MIN_S {
            let text =
                "the certificate of the issuing key has expired: rolloutctl cert init-issuer";
            return Err(RpcError::new(ErrorCode::EnrolmentOff, text));
        }
        Ok(self.lifetime_s.min(left_s))
    }

    /// How long the certificate of the issuing key is good.
    pub(crate) fn validity(&self) -> Validity {
        self.issuer.validity()
    }

    /// Whether its key issued that certificate.
    pub(crate) fn has_issued(&self, certificate: &CertificateDer<'_>) -> bool {
        self.issuer.has_issued(certificate)
    }

    /// A certificate of that identity for that key, valid from no earlier time than `not_before_min_s`, in seconds since 1970.
    pub(crate) fn issue(
        &self,
        identity: &Identity,
        key: &RequestedKey,
        not_before_min_s: u64,
    ) -> Result<v1::IssuedCertificate, RpcError> {
        let broken = |error: pki::PkiError| RpcError::new(ErrorCode::Internal, error.to_string());
        let lifetime_s = self.lifetime_left_s()?;
        let chain =
            self.issuer.issue(identity, key, lifetime_s, not_before_min_s).map_err(broken)?;
        let authorities = pki::authorities(&self.ca_file).map_err(broken)?;
        let bytes = |all: Vec<CertificateDer<'static>>| {
            all.into_iter().map(|der| der.to_vec().into()).collect()
        };
        Ok(v1::IssuedCertificate {
            chain: bytes(chain),
            authorities: bytes(authorities),
            lifetime_ms: lifetime_s * 1000,
        })
    }

    /// The hashes of the public keys of the authorities that a newcomer may believe.
    pub(crate) fn pins(&self) -> Result<Vec<[u8; 32]>, RpcError> {
        let broken = |error: pki::PkiError| RpcError::new(ErrorCode::Internal, error.to_string());
        pki::authority_pins(&self.ca_file).map_err(broken)
    }

    /// Waits until the next refusal may be told.
    pub(crate) async fn refusal_is_due(&self) {
        let _one_by_one = self.refusing.lock().await;
        tokio::time::sleep(REFUSAL_EVERY).await;
    }
}
