//! `Tokens`: join tokens, with which unenrolled clients get certificates.
//!
//! *Invariant:* no secret arrives here: the client that creates a token generates the secret and sends only its hash.

use super::{Shared, caller, check_every_namespace};
use crate::grpc::convert::invalid;
use crate::leader::ledger_read::ReadLedger;
use crate::observe::audit;
use rollout_ledger::{OpKind, Rejection, TokenOp, TokenRole, TokenSpec, TokenView};
use rollout_proto::{RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct TokensService(pub(crate) Arc<Shared>);

pub(super) fn role_in(role: &str) -> Result<TokenRole, RpcError> {
    match role {
        "worker" => Ok(TokenRole::Worker),
        "client" => Ok(TokenRole::Client),
        other => {
            let other: String = other.chars().take(32).collect();
            Err(invalid(format!(
                "a join token is for the role worker or client, not {other:?}: the authority issues other certificates (rolloutctl cert issue)"
            )))
        }
    }
}

fn out(view: TokenView) -> v1::TokenInfo {
    let spec = view.spec;
    v1::TokenInfo {
        name: view.name,
        role: match spec.role {
            TokenRole::Worker => "worker".into(),
            TokenRole::Client => "client".into(),
        },
        holder: spec.holder.unwrap_or_default(),
        namespaces: spec.namespaces,
        labels: spec.labels.into_iter().collect(),
        uses: view.uses,
        uses_max: spec.uses_max,
        left_ms: view.left_ms,
        age_ms: spec.ttl_ms.saturating_sub(view.left_ms),
    }
}

#[tonic::async_trait]
impl v1::tokens_server::Tokens for TokensService {
    async fn create_token(
        &self,
        request: Request<v1::CreateTokenRequest>,
    ) -> Result<Response<v1::CreateTokenResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        audit::about("token", &r.name);
        check_every_namespace(&identity)?;
        let authority_pins = self.0.issuer()?.pins()?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let secret_hash = r.secret_hash[..].try_into();
        let secret_hash = secret_hash.map_err(|_| invalid("secret_hash must have 32 bytes"))?;
        let spec = TokenSpec {
            role: role_in(&r.role)?,
            holder: Some(r.holder).filter(|holder| !holder.is_empty()),
            namespaces: r.namespaces,
            labels: r.labels.into_iter().collect(),
            ttl_ms: r.ttl_ms,
            uses_max: r.uses_max,
        };
        let op = TokenOp::Create { name: r.name.clone(), secret_hash, spec };
        self.0.apply(Some(id), OpKind::Token(op)).await?;
        tracing::info!(by = %identity, token = r.name, "a join token was made");
        let view = self.0.node.ledger(|l| l.token_view(&r.name));
        // The token may have been revoked since.
        let gone = || crate::leader::reject::rejected(&Rejection::TokenUnknown(r.name.clone()));
        let token = Some(out(view.ok_or_else(gone)?));
        let authority_pins = authority_pins.iter().map(|pin| pin.to_vec().into()).collect();
        let header = Some(self.0.header());
        Ok(Response::new(v1::CreateTokenResponse { header, token, authority_pins }))
    }

    async fn list_tokens(
        &self,
        request: Request<v1::ListTokensRequest>,
    ) -> Result<Response<v1::ListTokensResponse>, Status> {
        check_every_namespace(&caller(&request)?)?;
        self.0.reading().await?;
        let all = self.0.read_ledger(|l| l.token_views());
        let tokens = all.into_iter().map(out).collect();
        Ok(Response::new(v1::ListTokensResponse { header: Some(self.0.header()), tokens }))
    }

    async fn revoke_token(
        &self,
        request: Request<v1::RevokeTokenRequest>,
    ) -> Result<Response<v1::RevokeTokenResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        audit::about("token", &r.name);
        check_every_namespace(&identity)?;
        let id = self.0.request_in(&identity, r.request.as_ref())?;
        let op = TokenOp::Revoke { name: r.name.clone() };
        self.0.apply(Some(id), OpKind::Token(op)).await?;
        tracing::info!(by = %identity, token = r.name, "a join token was revoked");
        Ok(Response::new(v1::RevokeTokenResponse { header: Some(self.0.header()) }))
    }
}
