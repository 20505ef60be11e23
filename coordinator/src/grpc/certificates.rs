//! `Certificates`: the list of revoked certificates, which every member refuses.
//!
//! *Invariant:* without `force`, a revocation is refused if it would shut out the administrator who requests it, or a
//! member with the certificate with which it last connected. It is never possible to revoke all certificates of a
//! member of the cluster, because no new one would let it back in, and without a majority the revocation could not be
//! withdrawn.

use super::{Shared, caller, check_every_namespace};
use crate::grpc::convert::invalid;
use crate::grpc::revoked_certificates;
use crate::observe::audit;
use rollout_ledger::{OpKind, RevocationAuthor, RevocationOp, Revoked};
use rollout_proto::{ErrorCode, Identity, PeerInfo, RevocationList, Role, RpcError, v1};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tonic::{Request, Response, Status};

/// How far a time of issue may be ahead of the leader's clock, in seconds, because clocks differ.
const AHEAD_MAX_S: u64 = 300;

#[derive(Clone)]
pub(crate) struct CertificatesService(pub(crate) Arc<Shared>);

pub(super) fn whose(identity: &str) -> Result<Revoked, RpcError> {
    if identity.is_empty() {
        return Ok(Revoked::Everyone);
    }
    let parsed = revoked_certificates::parse(identity)
        .and_then(|(role, name)| Identity::new(role, name, Vec::new()).ok());
    match parsed {
        Some(parsed) => Ok(Revoked::Identity(parsed.to_string())),
        None => {
            let identity: String = identity.chars().take(160).collect();
            let roles = Role::ALL.map(Role::as_str).join(", ");
            Err(invalid(format!("{identity:?} is not ROLE/NAME, where ROLE is one of {roles}")))
        }
    }
}

fn whose_in_audit(identity: &str) -> &str {
    if identity.is_empty() { "everyone" } else { identity }
}

/// The caller, for the ledger to check: it knows revocations that are not yet in force at this member.
fn author(peer: Option<&PeerInfo>) -> Option<RevocationAuthor> {
    let peer = peer.filter(|peer| !peer.identity.is_insecure())?;
    let not_before_s = u64::try_from(peer.not_before_unix).unwrap_or(0);
    Some(RevocationAuthor { identity: peer.identity.to_string(), not_before_s })
}

fn check_time(issued_before_s: Option<u64>) -> Result<(), RpcError> {
    let now_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    match issued_before_s {
        Some(before_s) if before_s > now_s + AHEAD_MAX_S => {
            let text = "the time before which the certificates were issued is in the future: leave it out to revoke all \
                        certificates of an identity";
            Err(invalid(text))
        }
        _ => Ok(()),
    }
}

impl CertificatesService {
    /// Refuses to revoke all certificates of a member.
    fn check_member(&self, whose: &Revoked, issued_before_s: Option<u64>) -> Result<(), RpcError> {
        let (Revoked::Identity(identity), None) = (whose, issued_before_s) else { return Ok(()) };
        let Some((Role::Member, name)) = revoked_certificates::parse(identity) else {
            return Ok(());
        };
        if self.0.node.members().iter().all(|(member, _)| member.name != name) {
            return Ok(());
        }
        let text = format!(
            "{name} is a member of the cluster, and no new certificate would let it back in: remove the member first, or give \
             --issued-before"
        );
        Err(RpcError::new(ErrorCode::RevocationUnsafe, text))
    }

    /// Identities in use that the revocation would lock out: the caller and members.
    fn locked_out(&self, op: (&Revoked, Option<u64>), caller: Option<&PeerInfo>) -> Vec<String> {
        let mut list = RevocationList::default();
        match op {
            (Revoked::Everyone, before_s) => list.revoke_everyone(before_s.unwrap_or(u64::MAX)),
            (Revoked::Identity(identity), before_s) => {
                if let Some((role, name)) = revoked_certificates::parse(identity) {
                    list.revoke(role, name, before_s);
                }
            }
        }
        let mut out = Vec::new();
        if let Some(peer) = caller.filter(|p| list.refuses(&p.identity, p.not_before_unix)) {
            out.push(format!("{} (your own certificate)", peer.identity));
        }
        let own = self.0.tls.validity().map(|validity| validity.not_before_unix);
        let seen: BTreeMap<String, i64> = self.0.revocations.members_seen().into_iter().collect();
        for (member, _) in self.0.node.members() {
            let since = match member.name == self.0.config.name {
                true => own,
                // A member that never connected here may have any certificate.
                false => Some(seen.get(&member.name).copied().unwrap_or(0)),
            };
            let named = Identity::new(Role::Member, member.name.as_str(), Vec::new());
            if let (Some(since), Ok(named)) = (since, named)
                && list.refuses(&named, since)
            {
                out.push(named.to_string());
            }
        }
        out
    }
}

fn out((whose, of): (&Revoked, &rollout_ledger::Revocation)) -> v1::Revocation {
    v1::Revocation {
        identity: match whose {
            Revoked::Everyone => String::new(),
            Revoked::Identity(identity) => identity.clone(),
        },
        issued_before_s: of.issued_before_s,
        reason: of.reason.clone(),
        made_wall_ms: of.made_wall_ms,
    }
}

#[tonic::async_trait]
impl v1::certificates_server::Certificates for CertificatesService {
    async fn revoke(
        &self,
        request: Request<v1::RevokeRequest>,
    ) -> Result<Response<v1::RevokeResponse>, Status> {
        let identity = caller(&request)?;
        let peer = request.extensions().get::<PeerInfo>().cloned();
        let r = request.into_inner();
        audit::about("certificates", whose_in_audit(&r.identity));
        check_every_namespace(&identity)?;
        let (whose, issued_before_s) = (whose(&r.identity)?, r.issued_before_s);
        check_time(issued_before_s)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        self.check_member(&whose, issued_before_s)?;
        let locked_out = self.locked_out((&whose, issued_before_s), peer.as_ref());
        if !locked_out.is_empty() && !r.force {
            let text = format!(
                "this would shut out {}: issue certificates that it does not cover first (cert issue --valid-from TIME), or add \
                 --force",
                locked_out.join(", ")
            );
            return Err(RpcError::new(ErrorCode::RevocationUnsafe, text).into());
        }
        let revoked = whose.to_string();
        let by = author(peer.as_ref());
        let op = RevocationOp::Revoke { whose, issued_before_s, reason: r.reason, by };
        self.0.apply(Some(id), OpKind::Revocation(op)).await?;
        tracing::warn!(
            by = %identity, certificates = revoked, issued_before_s, force = r.force,
            "certificates were revoked"
        );
        Ok(Response::new(v1::RevokeResponse { header: Some(self.0.header()) }))
    }

    async fn withdraw(
        &self,
        request: Request<v1::WithdrawRequest>,
    ) -> Result<Response<v1::WithdrawResponse>, Status> {
        let identity = caller(&request)?;
        let by = author(request.extensions().get::<PeerInfo>());
        let r = request.into_inner();
        audit::about("certificates", whose_in_audit(&r.identity));
        check_every_namespace(&identity)?;
        let whose = whose(&r.identity)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let revoked = whose.to_string();
        self.0.apply(Some(id), OpKind::Revocation(RevocationOp::Withdraw { whose, by })).await?;
        tracing::warn!(by = %identity, certificates = revoked, "a revocation of certificates was withdrawn");
        Ok(Response::new(v1::WithdrawResponse { header: Some(self.0.header()) }))
    }

    async fn list_revocations(
        &self,
        request: Request<v1::ListRevocationsRequest>,
    ) -> Result<Response<v1::ListRevocationsResponse>, Status> {
        check_every_namespace(&caller(&request)?)?;
        self.0.reading().await?;
        let revocations = self.0.read_ledger(|l| l.revocations().iter().map(out).collect());
        let header = Some(self.0.header());
        Ok(Response::new(v1::ListRevocationsResponse { header, revocations }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_a_role_and_a_name_and_nothing_else() {
        assert_eq!(whose("").unwrap(), Revoked::Everyone);
        let gpu = Revoked::Identity("worker/gpu-1".into());
        assert_eq!(whose("worker/gpu-1").unwrap(), gpu);
        for bad in ["gpu-1", "root/gpu-1", "worker/", "worker/a b", "worker/a?ns=b", "newcomer/?"] {
            let error = whose(bad).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn a_time_in_the_future_is_refused() {
        assert!(check_time(None).is_ok() && check_time(Some(0)).is_ok());
        assert!(check_time(Some(u64::MAX - AHEAD_MAX_S)).is_err());
    }
}
