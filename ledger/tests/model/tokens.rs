//! Join tokens in the model: each use is kept as reported, and counted from scratch each time. And the actions on
//! them.

use crate::naive::{Model, Outcome};
use proptest::prelude::*;
use rollout_ledger::{
    Ledger, OpKind, Rejection, Reply, TokenOp, TokenRole, TokenSpec, TokenUse, TokenView,
};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) struct Token {
    secret: [u8; 32],
    spec: TokenSpec,
    ends_at: u64,
    uses: BTreeSet<(String, [u8; 32])>,
}

/// What is done with one of two tokens.
#[derive(Clone, Debug)]
pub(crate) enum TokenAct {
    Create { token: u8, secret: u8, client: bool, uses: u8, ttl_ms: u64 },
    Revoke { token: u8 },
    Spend { token: u8, secret: u8, holder: u8, key: u8 },
}

pub(crate) fn token_act() -> impl Strategy<Value = TokenAct> {
    let secret = || prop_oneof![9 => Just(0u8), 1 => Just(1u8)];
    // The first three are names of workers.
    let holder = || prop_oneof![3 => 3..5u8, 1 => 0..3u8];
    prop_oneof![
        4 => (0..2u8, secret(), any::<bool>(), 1..4u8, 1..60_000u64).prop_map(
            |(token, secret, client, uses, ttl_ms)| {
                TokenAct::Create { token, secret, client, uses, ttl_ms }
            }
        ),
        1 => (0..2u8).prop_map(|token| TokenAct::Revoke { token }),
        8 => (0..2u8, secret(), holder(), 0..2u8).prop_map(|(token, secret, holder, key)| {
            TokenAct::Spend { token, secret, holder, key }
        }),
    ]
}

impl TokenAct {
    pub(crate) fn kind(&self) -> OpKind {
        let name = |token: u8| format!("t{token}");
        OpKind::Token(match *self {
            TokenAct::Create { token, secret, client, uses, ttl_ms } => TokenOp::Create {
                name: name(token),
                secret_hash: [secret; 32],
                spec: TokenSpec {
                    role: if client { TokenRole::Client } else { TokenRole::Worker },
                    holder: client.then(|| "w4".to_owned()),
                    // One of the three workers is in the other namespace.
                    namespaces: if token == 0 { vec!["team".to_owned()] } else { Vec::new() },
                    labels: BTreeMap::new(),
                    ttl_ms,
                    uses_max: uses.into(),
                },
            },
            TokenAct::Revoke { token } => TokenOp::Revoke { name: name(token) },
            TokenAct::Spend { token, secret, holder, key } => TokenOp::Spend(TokenUse {
                token: name(token),
                secret_hash: [secret; 32],
                holder: format!("w{holder}"),
                key_hash: [key; 32],
            }),
        })
    }
}

impl Model {
    pub(crate) fn token(&mut self, op: TokenOp) -> Outcome {
        if self.version < 2 {
            return Err(Rejection::VersionLow { needs: 2, version: self.version });
        }
        match op {
            TokenOp::Create { name, secret_hash, spec } => {
                if let Some(known) = self.tokens.get(&name) {
                    return match known.secret == secret_hash && known.spec == spec {
                        true => Ok(Reply::Ok),
                        false => Err(Rejection::TokenConflict(name)),
                    };
                }
                let ends_at = self.clock + spec.ttl_ms;
                let uses = BTreeSet::new();
                self.tokens.insert(name, Token { secret: secret_hash, spec, ends_at, uses });
                Ok(Reply::Ok)
            }
            TokenOp::Revoke { name } => {
                let gone = self.tokens.remove(&name).map(|_| Reply::Ok);
                gone.ok_or(Rejection::TokenUnknown(name))
            }
            TokenOp::Spend(used) => self.spend(used),
        }
    }

    fn spend(&mut self, used: TokenUse) -> Outcome {
        let refused = |why: &str| Err(Rejection::TokenRefused(why.into()));
        let token = self.tokens.get_mut(&used.token).filter(|t| t.secret == used.secret_hash);
        let Some(token) = token else {
            return refused("there is no such token, or its secret is another one");
        };
        if token.ends_at <= self.clock {
            return refused("the token has expired");
        }
        if token.spec.holder.as_ref().is_some_and(|holder| *holder != used.holder) {
            return refused("the token is for another name");
        }
        let this = (used.holder.clone(), used.key_hash);
        if token.uses.contains(&this) {
            self.events.push("token used again".into());
            return Ok(Reply::Ok);
        }
        if token.uses.len() as u32 == token.spec.uses_max {
            return refused("the token was used as often as it may be");
        }
        let of_worker = token.spec.role == TokenRole::Worker;
        for worker in self.workers.values().filter(|_| of_worker) {
            let spaces = &token.spec.namespaces;
            if worker.name == used.holder
                && (spaces.is_empty() || spaces.contains(&worker.namespace))
            {
                let (name, address) = (worker.name.clone(), worker.address.clone());
                return Err(Rejection::WorkerNameTaken { name, address });
            }
        }
        token.uses.insert(this);
        self.events.push("token used".into());
        Ok(Reply::Ok)
    }

    pub(crate) fn end_tokens(&mut self) {
        let now = self.clock;
        self.tokens.retain(|_, token| token.ends_at > now);
    }

    /// The tokens, as the ledger shows them.
    pub(crate) fn token_views(&self) -> Vec<TokenView> {
        let good = self.tokens.iter().filter(|(_, token)| token.ends_at > self.clock);
        let view = |(name, token): (&String, &Token)| TokenView {
            name: name.clone(),
            spec: token.spec.clone(),
            uses: token.uses.len() as u32,
            left_ms: token.ends_at - self.clock,
        };
        good.map(view).collect()
    }
}

/// Checks that a restored cluster accepts no earlier token.
pub(crate) fn restored_has_none(restored: &Ledger) -> bool {
    restored.token_views().is_empty()
}
