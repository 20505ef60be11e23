//! The requests of operators: quotas, tokens, revocations, datasets, settings and API keys.

use super::{one, read};
use crate::grpc::convert::{Checked, invalid};
use crate::grpc::training_convert::spec_in;
use crate::grpc::{certificates, keys, namespace_or_default, settings, tokens};
use rollout_ledger::{DatasetOp, Op, OpKind, Quota, RevocationOp, TokenOp, TokenSpec, op};
use rollout_proto::v1;

pub(super) fn of_operators(kind: u8, bytes: &[u8]) -> Checked<Vec<Op>> {
    match kind {
        12 => {
            let r: v1::SetQuotaRequest = read(bytes)?;
            let quota = Quota {
                namespace: namespace_or_default(&r.namespace),
                create: r.create,
                pending_rows_max: r.pending_rows_max,
                running_rows_max: r.running_rows_max,
                runs_max: r.runs_max,
            };
            one(r.request.as_ref(), OpKind::SetQuota(quota))
        }
        13 => {
            let r: v1::CreateTokenRequest = read(bytes)?;
            let secret_hash = r.secret_hash[..].try_into();
            let secret_hash = secret_hash.map_err(|_| invalid("secret_hash must have 32 bytes"))?;
            let spec = TokenSpec {
                role: tokens::role_in(&r.role)?,
                holder: Some(r.holder).filter(|holder| !holder.is_empty()),
                namespaces: r.namespaces,
                labels: r.labels.into_iter().collect(),
                ttl_ms: r.ttl_ms,
                uses_max: r.uses_max,
            };
            let op = TokenOp::Create { name: r.name, secret_hash, spec };
            one(r.request.as_ref(), OpKind::Token(op))
        }
        14 => {
            let r: v1::RevokeTokenRequest = read(bytes)?;
            one(r.request.as_ref(), OpKind::Token(TokenOp::Revoke { name: r.name }))
        }
        15 => {
            let r: v1::RevokeRequest = read(bytes)?;
            let (whose, issued_before_s) = (certificates::whose(&r.identity)?, r.issued_before_s);
            let op = RevocationOp::Revoke { whose, issued_before_s, reason: r.reason, by: None };
            one(r.request.as_ref(), OpKind::Revocation(op))
        }
        16 => {
            let r: v1::WithdrawRequest = read(bytes)?;
            let op = RevocationOp::Withdraw { whose: certificates::whose(&r.identity)?, by: None };
            one(r.request.as_ref(), OpKind::Revocation(op))
        }
        _ => {
            let r: v1::CreateDatasetRequest = read(bytes)?;
            let (namespace, name) = (namespace_or_default(&r.namespace), r.name);
            let op = DatasetOp::Create { namespace, name, spec: Box::new(spec_in(r.spec)?) };
            one(r.request.as_ref(), OpKind::Dataset(op))
        }
    }
}

pub(super) fn of_settings(bytes: &[u8]) -> Checked<Vec<Op>> {
    let r: v1::SetSettingRequest = read(bytes)?;
    let op = settings::change_in(&r.name, r.value)?;
    one(r.request.as_ref(), OpKind::Setting(op))
}

pub(super) fn create_key(r: v1::CreateKeyRequest) -> Checked<Vec<Op>> {
    let request = r.request;
    one(request.as_ref(), OpKind::CreateApiKey(keys::create_in(r)?))
}

pub(super) fn revoke_key(r: v1::RevokeKeyRequest) -> Checked<Vec<Op>> {
    one(r.request.as_ref(), OpKind::RevokeApiKey(op::RevokeApiKey { id: r.id }))
}
