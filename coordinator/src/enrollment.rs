//! Issues certificates: holds the intermediate CA, and paces refusals.
//!
//! *Invariant:* without `[enrollment]` there is no issuer, and nothing is issued. Refusals are delayed and sent one
//! after another; valid tokens are not delayed. So callers that guess tokens burden neither the log nor the holders of
//! valid tokens. An intermediate CA with an expired certificate issues nothing, but does not stop the member.
//! Absent: who may enroll (the ledger's tokens decide), and replacing the key without a restart.

use crate::config::Config;
use anyhow::{Context, Result};
use rollout_proto::pki::{self, IntermediateCa, IssuerFiles, RequestedKey, Validity};
use rollout_proto::{ErrorCode, Identity, RpcError, Security, v1};
use rustls_pki_types::CertificateDer;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::Mutex;

/// Time between two refusals of one member.
const REFUSAL_EVERY: Duration = Duration::from_millis(100);
/// The shortest remaining lifetime of the intermediate CA for which a certificate is worth issuing.
const LEFT_MIN_S: u64 = 10;

/// The certificate issuer of one member.
pub(crate) struct CertificateIssuer {
    intermediate: IntermediateCa,
    lifetime_s: u64,
    /// Read for each answer, because it is replaced while the member runs when an authority is replaced.
    ca_file: PathBuf,
    refusing: Mutex<()>,
}

impl CertificateIssuer {
    /// Opens the issuer, if it is configured.
    pub(crate) fn open(config: &Config) -> Result<Option<Self>> {
        let (Some(settings), Security::Mtls(tls)) = (&config.enrollment, &config.security) else {
            return Ok(None);
        };
        let lifetime_s = settings.lifetime_s;
        let files = IssuerFiles {
            cert: settings.issuer_cert_file.clone(),
            key: settings.issuer_key_file.clone(),
        };
        let intermediate = IntermediateCa::load(&files).context("[enrollment]")?;
        let issuer =
            Self { intermediate, lifetime_s, ca_file: tls.ca.clone(), refusing: Mutex::default() };
        // Raise an alarm, but serve: callers with good certificates do not need this key.
        if let Err(error) = issuer.lifetime_left_s() {
            tracing::warn!(%error, "this member issues no certificates");
        }
        Ok(Some(issuer))
    }

    /// The lifetime of a certificate issued now: as configured, but no longer than that of the intermediate CA's
    /// certificate.
    pub(crate) fn lifetime_left_s(&self) -> Result<u64, RpcError> {
        let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ends_s = u64::try_from(self.intermediate.validity().not_after_unix).unwrap_or(0);
        let left_s = ends_s.saturating_sub(now_s);
        if left_s < LEFT_MIN_S {
            let text = "the certificate of the intermediate CA has expired: create a new one with rolloutctl cert init-issuer";
            return Err(RpcError::new(ErrorCode::EnrollmentOff, text));
        }
        Ok(self.lifetime_s.min(left_s))
    }

    /// The validity of the intermediate CA's certificate.
    pub(crate) fn validity(&self) -> Validity {
        self.intermediate.validity()
    }

    /// Whether this issuer's key issued that certificate.
    pub(crate) fn has_issued(&self, certificate: &CertificateDer<'_>) -> bool {
        self.intermediate.has_issued(certificate)
    }

    /// Issues a certificate of that identity for that key, valid from `not_before_min_s` at the earliest, in Unix
    /// seconds.
    pub(crate) fn issue(
        &self,
        identity: &Identity,
        key: &RequestedKey,
        not_before_min_s: u64,
    ) -> Result<v1::IssuedCertificate, RpcError> {
        let broken = |error: pki::PkiError| RpcError::new(ErrorCode::Internal, error.to_string());
        let lifetime_s = self.lifetime_left_s()?;
        let chain =
            self.intermediate.issue(identity, key, lifetime_s, not_before_min_s).map_err(broken)?;
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

    /// The hashes of the public keys of the authorities that an unenrolled client may trust.
    pub(crate) fn pins(&self) -> Result<Vec<[u8; 32]>, RpcError> {
        let broken = |error: pki::PkiError| RpcError::new(ErrorCode::Internal, error.to_string());
        pki::authority_pins(&self.ca_file).map_err(broken)
    }

    /// Waits until the next refusal may be sent.
    pub(crate) async fn refusal_is_due(&self) {
        let _one_by_one = self.refusing.lock().await;
        tokio::time::sleep(REFUSAL_EVERY).await;
    }
}
