//! Owns: who calls: the API key of a request.
//!
//! Invariant: a request reaches a handler only with a secret whose hash the ledger has. Hashes are compared in constant
//! time. A key that was created before the request is known on every member: a member that does not know it reads the
//! ledger again after a confirmation by the leader. A member that cannot know of recent revocations accepts no key.
//! Absent: how long a request may go on after its key has ended (`key_watch`); rates (`rate`).

use crate::openai::error::ApiError;
use crate::openai::state::ApiState;
use axum::http::{HeaderMap, Method, StatusCode, header};
use rollout_ledger::{KeyLimits, KeyRole, Ledger};
use rollout_proto::{ApiKey, Identity, Role};
use std::sync::Arc;

/// The caller of a request. Handlers get it as `Extension<Arc<KeyCaller>>`.
#[derive(Clone, Debug)]
pub(crate) struct KeyCaller {
    /// The id of the key.
    pub(crate) key_id: String,
    /// The only namespace that the caller may access.
    pub(crate) namespace: String,
    pub(crate) role: KeyRole,
    /// 0 means no limit.
    pub(crate) limits: KeyLimits,
    /// The same as an identity, for the scope of operations and for the audit.
    pub(crate) identity: Identity,
}

/// The caller of a request with these headers.
///
/// # Errors
/// 401 without a key or with a wrong one, 503 if this member may not know of revoked keys.
pub(super) async fn authenticate(
    api: &ApiState,
    headers: &HeaderMap,
) -> Result<Arc<KeyCaller>, ApiError> {
    let wrong = || ApiError::invalid_key("Incorrect API key: it is wrong, revoked or expired.");
    let key: ApiKey = bearer(headers)?.parse().map_err(|_| wrong())?;
    api.check_contact()?;
    let (id, hash) = (key.id(), blake3::Hash::from_bytes(key.hash()));
    let mut found = api.ledger(|l| Found::of(l, id, &hash));
    if matches!(found, Found::Unknown) {
        // It may have been created a moment ago.
        api.read().await?;
        found = api.ledger(|l| Found::of(l, id, &hash));
    }
    match found {
        Found::Key(caller) => Ok(Arc::new(*caller)),
        Found::Unknown | Found::OtherSecret => Err(wrong()),
    }
}

/// What the ledger has of a key.
#[derive(Default)]
enum Found {
    #[default]
    Unknown,
    OtherSecret,
    Key(Box<KeyCaller>),
}

impl Found {
    fn of(ledger: &Ledger, id: &str, hash: &blake3::Hash) -> Self {
        let Some(key) = ledger.api_key(id) else { return Self::Unknown };
        // This comparison of hashes takes the same time whatever differs.
        if *hash != blake3::Hash::from_bytes(*key.secret_hash) {
            return Self::OtherSecret;
        }
        let role = match key.spec.role {
            KeyRole::Viewer => Role::Viewer,
            KeyRole::Client => Role::Client,
            KeyRole::Admin => Role::Admin,
        };
        let namespace = key.spec.namespace.clone();
        let namespaces = vec![namespace.clone()];
        Self::Key(Box::new(KeyCaller {
            key_id: id.to_owned(),
            namespace,
            role: key.spec.role,
            limits: key.spec.limits,
            identity: Identity { role, name: format!("key:{id}"), namespaces },
        }))
    }
}

/// The key in the header `Authorization`.
fn bearer(headers: &HeaderMap) -> Result<&str, ApiError> {
    let missing = "No API key in the request: send the header Authorization: Bearer rk_...";
    let value = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let (scheme, key) = value
        .and_then(|value| value.split_once(' '))
        .ok_or_else(|| ApiError::invalid_key(missing))?;
    match scheme.eq_ignore_ascii_case("bearer") {
        true => Ok(key.trim()),
        false => Err(ApiError::invalid_key(missing)),
    }
}

/// Refuses a change by a key that may only read.
///
/// # Errors
/// 403.
pub(super) fn check_role(caller: &KeyCaller, method: &Method) -> Result<(), ApiError> {
    if caller.role != KeyRole::Viewer || is_read(method) {
        return Ok(());
    }
    let message = format!("Key {} has the role viewer, which may only read.", caller.key_id);
    Err(ApiError::new(StatusCode::FORBIDDEN, "permission_denied", message))
}

/// Whether requests with this method change nothing.
pub(super) fn is_read(method: &Method) -> bool {
    *method == Method::GET || *method == Method::HEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::test_cluster::{TestCluster, key};

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::AUTHORIZATION, value.parse().expect("a value"))])
    }

    #[tokio::test]
    async fn only_the_right_secret_of_a_key_is_accepted() {
        let cluster = TestCluster::new();
        cluster.add_key("abcdefgh", "team", KeyRole::Client);
        let api = cluster.api();
        let caller = authenticate(&api, &headers(&format!("Bearer {}", key("abcdefgh")))).await;
        let caller = caller.expect("the key");
        assert_eq!((&*caller.key_id, &*caller.namespace), ("abcdefgh", "team"));
        assert_eq!(caller.identity.to_string(), "client/key:abcdefgh");
        assert_eq!(caller.identity.namespaces, ["team"]);
        let other_secret = key("abcdefgh").replace('S', "T");
        for wrong in [
            format!("Bearer {other_secret}"),
            format!("Bearer {}", key("unknown1")),
            "Bearer sk-of-another-service".to_owned(),
            format!("Basic {}", key("abcdefgh")),
            key("abcdefgh"),
        ] {
            let error = authenticate(&api, &headers(&wrong)).await.expect_err("wrong");
            assert_eq!(
                (error.status().as_u16(), error.code()),
                (401, "invalid_api_key"),
                "{wrong}"
            );
            assert!(!error.to_string().contains("rk_abcdefgh_"), "the error repeats no secret");
        }
        assert_eq!(authenticate(&api, &HeaderMap::new()).await.expect_err("none").status(), 401);
    }

    #[tokio::test]
    async fn a_key_that_is_not_applied_here_yet_is_found_after_a_confirmed_read() {
        let cluster = TestCluster::new();
        cluster.add_key_at_next_read("abcdefgh", "team", KeyRole::Client);
        let api = cluster.api();
        let bearer = headers(&format!("Bearer {}", key("abcdefgh")));
        authenticate(&api, &bearer).await.expect("the key");
        assert_eq!(cluster.reads(), 1);
        authenticate(&api, &bearer).await.expect("the key");
        assert_eq!(cluster.reads(), 1, "a known key needs no confirmation");
    }

    #[tokio::test]
    async fn a_member_without_contact_to_a_leader_accepts_no_key() {
        let cluster = TestCluster::new();
        cluster.add_key("abcdefgh", "team", KeyRole::Client);
        cluster.lose_contact();
        let bearer = headers(&format!("Bearer {}", key("abcdefgh")));
        let error = authenticate(&cluster.api(), &bearer).await.expect_err("cut off");
        assert_eq!((error.status().as_u16(), error.code()), (503, "no_leader"));
    }

    #[tokio::test]
    async fn a_viewer_may_only_read() {
        let cluster = TestCluster::new();
        cluster.add_key("abcdefgh", "team", KeyRole::Viewer);
        let bearer = headers(&format!("Bearer {}", key("abcdefgh")));
        let caller = authenticate(&cluster.api(), &bearer).await.expect("the key");
        check_role(&caller, &Method::GET).expect("a read");
        for method in [Method::POST, Method::DELETE, Method::PUT] {
            assert_eq!(check_role(&caller, &method).expect_err("a change").status(), 403);
        }
    }
}
