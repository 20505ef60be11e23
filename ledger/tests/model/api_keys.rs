//! API keys in the model: a list that is searched from scratch each time. And the actions on them.

use crate::naive::{Model, Outcome};
use proptest::prelude::*;
use rollout_ledger::{ApiKeySpec, KeyLimits, KeyRole, Ledger, OpKind, Rejection, Reply, op};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ApiKey {
    id: String,
    secret: [u8; 32],
    pub(crate) spec: ApiKeySpec,
    ends_at: Option<u64>,
}

/// What is done with one of three keys.
#[derive(Clone, Debug)]
pub(crate) enum KeyAct {
    Create { key: u8, secret: u8, namespace: u8, ttl_ms: u64 },
    Revoke { key: u8 },
}

pub(crate) fn key_act() -> impl Strategy<Value = KeyAct> {
    let secret = prop_oneof![9 => Just(0u8), 1 => Just(1u8)];
    let namespace = prop_oneof![4 => Just(0u8), 4 => Just(1u8), 1 => Just(2u8)];
    let ttl = prop_oneof![1 => Just(0u64), 3 => 1..30_000u64];
    prop_oneof![
        4 => (0..3u8, secret, namespace, ttl).prop_map(|(key, secret, namespace, ttl_ms)| {
            KeyAct::Create { key, secret, namespace, ttl_ms }
        }),
        2 => (0..3u8).prop_map(|key| KeyAct::Revoke { key }),
    ]
}

impl KeyAct {
    pub(crate) fn kind(&self) -> OpKind {
        let id = |key: u8| format!("Key0000{key}");
        match *self {
            KeyAct::Create { key, secret, namespace, ttl_ms } => {
                let spec = ApiKeySpec {
                    name: "ci".into(),
                    namespace: ["default", "team", "nowhere"][usize::from(namespace)].into(),
                    role: [KeyRole::Viewer, KeyRole::Client, KeyRole::Admin][usize::from(key)],
                    ttl_ms,
                    limits: KeyLimits::default(),
                };
                let (id, secret_hash) = (id(key), [secret; 32]);
                OpKind::CreateApiKey(op::CreateApiKey { id, secret_hash, spec })
            }
            KeyAct::Revoke { key } => OpKind::RevokeApiKey(op::RevokeApiKey { id: id(key) }),
        }
    }
}

impl Model {
    fn check_keys_version(&self) -> Result<(), Rejection> {
        match self.version {
            5.. => Ok(()),
            version => Err(Rejection::VersionLow { needs: 5, version }),
        }
    }

    pub(crate) fn create_api_key(&mut self, op: op::CreateApiKey) -> Outcome {
        self.check_keys_version()?;
        let op::CreateApiKey { id, secret_hash: secret, spec } = op;
        if let Some(known) = self.api_keys.iter().find(|key| key.id == id) {
            return match known.secret == secret && known.spec == spec {
                true => Ok(Reply::Ok),
                false => Err(Rejection::ApiKeyConflict(id)),
            };
        }
        if !self.namespaces.contains_key(&spec.namespace) {
            return Err(Rejection::NamespaceUnknown(spec.namespace));
        }
        let ends_at = (spec.ttl_ms > 0).then(|| self.clock + spec.ttl_ms);
        self.api_keys.push(ApiKey { id, secret, spec, ends_at });
        Ok(Reply::Ok)
    }

    pub(crate) fn revoke_api_key(&mut self, id: String) -> Outcome {
        self.check_keys_version()?;
        let Some(at) = self.api_keys.iter().position(|key| key.id == id) else {
            return Err(Rejection::ApiKeyUnknown(id));
        };
        self.api_keys.remove(at);
        Ok(Reply::Ok)
    }

    /// The namespace of a key.
    pub(crate) fn namespace_of_key(&self, id: &str) -> Option<String> {
        let found = self.api_keys.iter().find(|key| key.id == id)?;
        Some(found.spec.namespace.clone())
    }

    pub(crate) fn end_api_keys(&mut self) {
        let now = self.clock;
        let before = self.api_keys.len();
        self.api_keys.retain(|key| key.ends_at.is_none_or(|end| end > now));
        if self.api_keys.len() < before {
            self.events.push("API key expired".into());
        }
    }

    /// The valid keys by id, each with the rest of its time.
    pub(crate) fn valid_api_keys(&self) -> Vec<(ApiKey, Option<u64>)> {
        let left = |key: &ApiKey| key.ends_at.map(|end| end.saturating_sub(self.clock));
        let all = self.api_keys.iter().map(|key| (key.clone(), left(key)));
        let mut valid: Vec<_> = all.filter(|(_, left)| *left != Some(0)).collect();
        valid.sort_by(|(a, _), (b, _)| a.id.cmp(&b.id));
        valid
    }
}

/// The same, as the ledger lists them.
pub(crate) fn listed(ledger: &Ledger) -> Vec<(ApiKey, Option<u64>)> {
    let now = ledger.clock().0;
    let all = ledger.api_keys(None, None, usize::MAX).into_iter().map(|view| {
        let (id, spec, secret) = (view.id.to_owned(), view.spec.clone(), *view.secret_hash);
        (ApiKey { id, secret, spec, ends_at: view.left_ms.map(|left| now + left) }, view.left_ms)
    });
    all.collect()
}

/// Checks that a restored cluster accepts no earlier key.
pub(crate) fn restored_has_none(restored: &Ledger) -> bool {
    restored.api_keys(None, None, 1).is_empty()
}
