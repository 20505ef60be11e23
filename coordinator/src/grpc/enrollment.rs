//! `Enrolment`: issues a certificate for a join token, and renews a certificate for its holder.
//!
//! *Invariant:* no certificate is issued for a token before a quorum has logged its use. The token and the caller's own
//! certificate determine the identity in a certificate, never a signing request. A refusal of an unenrolled client
//! discloses nothing about the cluster.

use super::{Shared, caller};
use crate::enrollment::CertificateIssuer;
use crate::grpc::convert::invalid;
use crate::grpc::revoked_certificates;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::reject;
use crate::observe::audit;
use rollout_ledger::{OpKind, TokenOp, TokenRole, TokenSpec, TokenUse};
use rollout_proto::pki::RequestedKey;
use rollout_proto::{ErrorCode, IDENTITY_NAME_BYTES_MAX, Identity, PeerInfo, Role, RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct EnrollmentService(pub(crate) Arc<Shared>);

impl Shared {
    /// The certificate issuer of this member.
    pub(crate) fn issuer(&self) -> Result<&CertificateIssuer, RpcError> {
        self.issuer.as_deref().ok_or_else(|| {
            let name = &self.config.name;
            let text =
                format!("{name} issues no certificates: its configuration has no [enrollment]");
            RpcError::new(ErrorCode::EnrollmentOff, text)
        })
    }
}

/// The identity of a certificate for the use of such a token.
fn holder_of(spec: TokenSpec, name: String) -> Result<Identity, RpcError> {
    let role = match spec.role {
        TokenRole::Worker => Role::Worker,
        TokenRole::Client => Role::Client,
    };
    Identity::new(role, name, spec.namespaces).map_err(|error| invalid(error.to_string()))
}

fn key_in(request: &[u8]) -> Result<RequestedKey, RpcError> {
    RequestedKey::read(request).map_err(|error| invalid(error.to_string()))
}

impl EnrollmentService {
    /// From when on certificates of `identity` are accepted. Call it once everything committed before can be read;
    /// otherwise this could issue a certificate that every member refuses.
    fn accepted_from_s(&self, identity: &Identity) -> Result<u64, RpcError> {
        let listed = self.0.node.ledger(|l| Some(l.revocations().clone()));
        let listed = listed.ok_or_else(|| reject::not_leader(None))?;
        revoked_certificates::in_force(&listed).accepted_from_s(identity).ok_or_else(|| {
            let text = format!(
                "all certificates of {identity} are revoked: an administrator must withdraw that first (rolloutctl cert \
                 unrevoke {identity})"
            );
            RpcError::new(ErrorCode::CertificateRevoked, text)
        })
    }

    async fn let_in(
        &self,
        issuer: &CertificateIssuer,
        r: v1::EnrolRequest,
    ) -> Result<v1::EnrolResponse, RpcError> {
        issuer.lifetime_left_s()?;
        let key = key_in(&r.request)?;
        let used = TokenUse {
            token: r.token,
            secret_hash: *blake3::hash(&r.secret).as_bytes(),
            holder: r.name.clone(),
            key_hash: key.hash(),
        };
        self.0.reading().await?;
        // Check before proposing, so that refused requests leave nothing in the log.
        let checked = self.0.node.ledger(|l| {
            let good = l.check_use(&used);
            Some(good.map(|()| l.token_view(&used.token)))
        });
        let token = checked.transpose().map_err(|why| reject::rejected(&why))?.flatten();
        // A token that passed the check exists, so only a member without a ledger, which does not lead, gets here.
        let spec = token.map(|view| view.spec).ok_or_else(|| reject::not_leader(None))?;
        let labels = spec.labels.clone().into_iter().collect();
        let identity = holder_of(spec, r.name)?;
        self.accepted_from_s(&identity)?;
        audit::proved_identity("token", &used.token);
        audit::about(identity.role.as_str(), &identity.name);
        let token = used.token.clone();
        self.0.apply(None, OpKind::Token(TokenOp::Spend(used))).await?;
        let issued = Some(issuer.issue(&identity, &key, self.accepted_from_s(&identity)?)?);
        metrics::counter!("rollout_enrolments_total").increment(1);
        tracing::info!(token, holder = %identity, "a certificate was issued");
        Ok(v1::EnrolResponse { issued, labels })
    }
}

#[tonic::async_trait]
impl v1::enrolment_server::Enrolment for EnrollmentService {
    async fn enrol(
        &self,
        request: Request<v1::EnrolRequest>,
    ) -> Result<Response<v1::EnrolResponse>, Status> {
        let issuer = self.0.issuer()?;
        let r = request.into_inner();
        let token: String = r.token.chars().take(IDENTITY_NAME_BYTES_MAX).collect();
        audit::about("token", &token);
        match self.let_in(issuer, r).await {
            Ok(answer) => Ok(Response::new(answer)),
            Err(mut error) => {
                // Only callers with a certificate may know the members.
                (error.members, error.leader_addr) = (None, String::new());
                if !error.retryable {
                    metrics::counter!("rollout_enrolments_refused_total").increment(1);
                    tracing::warn!(token, %error, "enrollment refused");
                    issuer.refusal_is_due().await;
                }
                Err(error.into())
            }
        }
    }

    async fn renew(
        &self,
        request: Request<v1::RenewRequest>,
    ) -> Result<Response<v1::RenewResponse>, Status> {
        let identity = caller(&request)?;
        let issuer = self.0.issuer()?;
        // Only the leader has every revocation. Another member could date a certificate after one that it does not
        // know.
        self.0.reading().await?;
        let peer = request.extensions().get::<PeerInfo>();
        let shown = peer.and_then(|peer| peer.certificate.clone());
        if !shown.is_some_and(|certificate| issuer.has_issued(&certificate)) {
            let text = format!(
                "the certificate of {identity} was not issued by the intermediate CA in use: renew it with the authority that issued it"
            );
            return Err(RpcError::new(ErrorCode::EnrollmentOff, text).into());
        }
        let key = key_in(&request.get_ref().request)?;
        audit::about(identity.role.as_str(), &identity.name);
        let issued = Some(issuer.issue(&identity, &key, self.accepted_from_s(&identity)?)?);
        metrics::counter!("rollout_certificates_renewed_total").increment(1);
        Ok(Response::new(v1::RenewResponse { header: Some(self.0.header()), issued }))
    }
}
