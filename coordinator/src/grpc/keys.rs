//! `Keys`: API keys, with which callers of the HTTP API authenticate.
//!
//! *Invariant:* no secret arrives here: the client that creates a key draws the secret and sends only the hash of the
//! key's text. An answer has neither. An administrator sees the keys of the namespaces that its certificate names.

use super::namespace::Listed;
use super::rendezvous::page;
use super::{Shared, caller, check_namespace, namespace_or_default};
use crate::grpc::convert::invalid;
use crate::leader::ledger_read::ReadLedger;
use crate::leader::reject::rejected;
use crate::observe::audit;
use rollout_ledger::{ApiKeySpec, ApiKeyView, KeyLimits, KeyRole, Ledger, OpKind, Rejection, op};
use rollout_proto::{RpcError, v1};
use std::sync::Arc;
use tonic::{Request, Response, Status};

#[derive(Clone)]
pub(crate) struct KeysService(pub(crate) Arc<Shared>);

fn role_in(role: &str) -> Result<KeyRole, RpcError> {
    match role {
        "viewer" => Ok(KeyRole::Viewer),
        "client" => Ok(KeyRole::Client),
        "admin" => Ok(KeyRole::Admin),
        other => {
            let other: String = other.chars().take(32).collect();
            Err(invalid(format!(
                "the role of an API key is viewer, client or admin, not {other:?}"
            )))
        }
    }
}

fn limits_in(limits: Option<v1::KeyLimits>) -> KeyLimits {
    let limits = limits.unwrap_or_default();
    KeyLimits {
        requests_per_s: limits.requests_per_second,
        open_batches: limits.open_batches,
        waiting_rows: limits.waiting_rows,
        stored_bytes: limits.stored_bytes,
    }
}

/// The operation of a request.
pub(super) fn create_in(r: v1::CreateKeyRequest) -> Result<op::CreateApiKey, RpcError> {
    let secret_hash = r.secret_hash[..].try_into();
    let secret_hash = secret_hash.map_err(|_| invalid("secret_hash must have 32 bytes"))?;
    let spec = ApiKeySpec {
        name: r.name,
        namespace: namespace_or_default(&r.namespace),
        role: role_in(&r.role)?,
        ttl_ms: r.ttl_ms,
        limits: limits_in(r.limits),
    };
    Ok(op::CreateApiKey { id: r.id, secret_hash, spec })
}

fn out(view: ApiKeyView<'_>) -> v1::KeyInfo {
    let ApiKeySpec { name, namespace, role, limits, .. } = view.spec;
    let role = match role {
        KeyRole::Viewer => "viewer",
        KeyRole::Client => "client",
        KeyRole::Admin => "admin",
    };
    v1::KeyInfo {
        id: view.id.to_owned(),
        name: name.clone(),
        namespace: namespace.clone(),
        role: role.to_owned(),
        limits: Some(v1::KeyLimits {
            requests_per_second: limits.requests_per_s,
            open_batches: limits.open_batches,
            waiting_rows: limits.waiting_rows,
            stored_bytes: limits.stored_bytes,
        }),
        created_wall_ms: view.created_wall_ms,
        left_ms: view.left_ms,
    }
}

/// The page of keys that a request asks for, and whether there are more behind it.
fn page_of(ledger: &Ledger, listed: &Listed, r: &v1::ListKeysRequest) -> (Vec<v1::KeyInfo>, bool) {
    let limit = page(r.limit);
    let after = Some(r.after.as_str()).filter(|after| !after.is_empty());
    let mut keys: Vec<v1::KeyInfo> = match listed {
        Listed::One(namespace) => {
            let found = ledger.api_keys(Some(namespace), after, limit + 1);
            found.into_iter().map(out).collect()
        }
        Listed::All(_) => {
            // The ledger bounds how many keys there are.
            let all = ledger.api_keys(None, after, rollout_ledger::limits::API_KEYS_MAX);
            let theirs = all.into_iter().filter(|key| listed.has(&key.spec.namespace));
            theirs.take(limit + 1).map(out).collect()
        }
    };
    let more = keys.len() > limit;
    keys.truncate(limit);
    (keys, more)
}

fn unknown(id: &str) -> RpcError {
    // A caller chooses the text, so only as much of it as an id may have is repeated.
    let id: String = id.chars().take(rollout_ledger::API_KEY_ID_LEN).collect();
    rejected(&Rejection::ApiKeyUnknown(id))
}

#[tonic::async_trait]
impl v1::keys_server::Keys for KeysService {
    async fn create_key(
        &self,
        request: Request<v1::CreateKeyRequest>,
    ) -> Result<Response<v1::CreateKeyResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        audit::about("key", &r.id);
        check_namespace(&identity, &namespace_or_default(&r.namespace))?;
        let request = self.0.request_in(&identity, r.request.as_ref())?;
        let op = create_in(r)?;
        let id = op.id.clone();
        self.0.apply(Some(request), OpKind::CreateApiKey(op)).await?;
        tracing::info!(by = %identity, key = id, "an API key was created");
        // The key may have been revoked since.
        let key = self.0.node.ledger(|l| l.api_key(&id).map(out)).ok_or_else(|| unknown(&id))?;
        Ok(Response::new(v1::CreateKeyResponse { header: Some(self.0.header()), key: Some(key) }))
    }

    async fn list_keys(
        &self,
        request: Request<v1::ListKeysRequest>,
    ) -> Result<Response<v1::ListKeysResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        let listed = Listed::of(&identity, &r.namespace)?;
        self.0.reading().await?;
        listed.check_is_there(&self.0)?;
        let (keys, more) = self.0.read_ledger(|l| page_of(l, &listed, &r));
        Ok(Response::new(v1::ListKeysResponse { header: Some(self.0.header()), keys, more }))
    }

    async fn describe_key(
        &self,
        request: Request<v1::DescribeKeyRequest>,
    ) -> Result<Response<v1::DescribeKeyResponse>, Status> {
        let identity = caller(&request)?;
        let id = request.into_inner().id;
        self.0.reading().await?;
        let key = self.0.read_ledger(|l| l.api_key(&id).map(out)).ok_or_else(|| unknown(&id))?;
        check_namespace(&identity, &key.namespace)?;
        let header = Some(self.0.header());
        Ok(Response::new(v1::DescribeKeyResponse { header, key: Some(key) }))
    }

    async fn revoke_key(
        &self,
        request: Request<v1::RevokeKeyRequest>,
    ) -> Result<Response<v1::RevokeKeyResponse>, Status> {
        let identity = caller(&request)?;
        let r = request.into_inner();
        audit::about("key", &r.id);
        let request = self.0.request_in(&identity, r.request.as_ref())?;
        // The ledger checks the namespace of the key: it has keys only from a version on in which it does.
        let op = op::RevokeApiKey { id: r.id.clone() };
        self.0.apply(Some(request), OpKind::RevokeApiKey(op)).await?;
        tracing::info!(by = %identity, key = r.id, "an API key was revoked");
        Ok(Response::new(v1::RevokeKeyResponse { header: Some(self.0.header()) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::state::test_leader::TestLeader;
    use rollout_config::coordinator::Workers;
    use rollout_ledger::{API_KEY_ID_LEN, OPENAI_API_VERSION};
    use rollout_proto::{ALL_NAMESPACES, ApiKey, ErrorCode, Identity};

    fn request(id: &str, namespace: &str) -> v1::CreateKeyRequest {
        v1::CreateKeyRequest {
            id: id.into(),
            name: "ci".into(),
            namespace: namespace.into(),
            role: "client".into(),
            secret_hash: vec![1; 32].into(),
            ..Default::default()
        }
    }

    #[test]
    fn the_ledger_accepts_the_ids_that_clients_draw() {
        assert_eq!(ApiKey::draw().unwrap().id().len(), API_KEY_ID_LEN);
    }

    #[test]
    fn a_request_without_a_namespace_is_for_the_default_one_and_other_roles_are_refused() {
        let op = create_in(request("aB3dE6gH", "")).unwrap();
        assert_eq!((op.spec.namespace.as_str(), op.spec.role), ("default", KeyRole::Client));
        for role in ["", "worker", "member", "Admin"] {
            let r = v1::CreateKeyRequest { role: role.into(), ..request("aB3dE6gH", "") };
            assert_eq!(create_in(r).unwrap_err().code, ErrorCode::InvalidArgument, "{role}");
        }
        let r = v1::CreateKeyRequest { secret_hash: vec![1; 31].into(), ..request("a", "") };
        assert_eq!(create_in(r).unwrap_err().code, ErrorCode::InvalidArgument);
    }

    #[tokio::test]
    async fn lists_have_pages_and_only_the_keys_of_the_callers_namespaces() {
        let leader = TestLeader::start_version(OPENAI_API_VERSION, Workers::default()).await;
        let team = op::SetNamespace { name: "team".into(), running_rows_max: 0 };
        leader.op(OpKind::SetNamespace(team)).await;
        for (id, namespace) in [("a0000000", "team"), ("b0000000", ""), ("c0000000", "team")] {
            leader.op(OpKind::CreateApiKey(create_in(request(id, namespace)).unwrap())).await;
        }
        let page = |of: &Identity, namespace: &str, after: &str, limit| {
            let listed = Listed::of(of, namespace).unwrap();
            let after = after.to_owned();
            let r = v1::ListKeysRequest { after, limit, ..Default::default() };
            let (keys, more) = leader.state.node.ledger(|l| page_of(l, &listed, &r));
            (keys.into_iter().map(|key| key.id).collect::<Vec<_>>().join(" "), more)
        };
        let all = Identity::insecure();
        let of_team = Identity { namespaces: vec!["team".into()], ..Identity::insecure() };
        let (shown, yes, no) = (|ids: &str| ids.to_owned(), true, false);
        assert_eq!(page(&all, ALL_NAMESPACES, "", 2), (shown("a0000000 b0000000"), yes));
        assert_eq!(page(&all, ALL_NAMESPACES, "b0000000", 2), (shown("c0000000"), no));
        assert_eq!(page(&of_team, ALL_NAMESPACES, "", 0), (shown("a0000000 c0000000"), no));
        assert_eq!(page(&of_team, ALL_NAMESPACES, "", 1), (shown("a0000000"), yes));
        assert_eq!(page(&all, "default", "", 0), (shown("b0000000"), no));
        assert_eq!(page(&all, "team", "a0000000", 1), (shown("c0000000"), no));
        leader.end().await;
    }
}
