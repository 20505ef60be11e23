//! Bounds of join tokens.

use crate::bench::{Bench, register, registration};
use rollout_ledger::{Body, OpKind, Rejection, TokenOp, TokenRole, TokenSpec, TokenUse, limits};
use std::collections::BTreeMap;

fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(2));
    bench
}

fn spec() -> TokenSpec {
    TokenSpec {
        role: TokenRole::Worker,
        holder: None,
        namespaces: Vec::new(),
        labels: BTreeMap::new(),
        ttl_ms: 1000,
        uses_max: 1,
    }
}

fn create(name: &str, spec: TokenSpec) -> OpKind {
    OpKind::Token(TokenOp::Create { name: name.into(), secret_hash: [1; 32], spec })
}

fn spend(holder: &str) -> OpKind {
    OpKind::Token(TokenOp::Spend(TokenUse {
        token: "t".into(),
        secret_hash: [1; 32],
        holder: holder.into(),
        key_hash: [2; 32],
    }))
}

fn is_refused(bench: &mut Bench, holder: &str) {
    let why = bench.refused(spend(holder));
    assert!(matches!(why, Rejection::TokenRefused(_)), "{why:?}");
}

pub(crate) fn tokens() {
    let mut bench = bench();
    bench.all_granted((0..limits::TOKENS_MAX).map(|n| create(&format!("t{n}"), spec())));
    bench.over(limits::TOKENS_MAX as u64, create("more", spec()));
    bench.granted(create("t0", spec()));
    bench.granted(OpKind::Token(TokenOp::Revoke { name: "t0".into() }));
    bench.granted(create("more", spec()));
}

pub(crate) fn uses() {
    let mut bench = bench();
    let uses = |uses_max| TokenSpec { uses_max, ..spec() };
    bench.invalid(create("t", uses(0)));
    bench.invalid(create("t", uses(limits::TOKEN_USES_MAX + 1)));
    bench.granted(create("t", uses(limits::TOKEN_USES_MAX)));
    bench.granted(register(registration("taken", 1)));
    let why = bench.refused(spend("taken"));
    assert!(matches!(why, Rejection::WorkerNameTaken { .. }), "{why:?}");
    bench.all_granted((0..limits::TOKEN_USES_MAX).map(|n| spend(&format!("w{n}"))));
    is_refused(&mut bench, "more");
    // A repeat is none.
    bench.granted(spend("w0"));
    assert_eq!(bench.ledger.token_view("t").expect("a token").uses, limits::TOKEN_USES_MAX);
}

pub(crate) fn ttl() {
    let mut bench = bench();
    let lives = |ttl_ms| TokenSpec { ttl_ms, uses_max: 2, ..spec() };
    bench.invalid(create("t", lives(0)));
    bench.invalid(create("t", lives(limits::TOKEN_TTL_MS_MAX + 1)));
    let end = bench.now() + limits::TOKEN_TTL_MS_MAX;
    bench.granted(create("t", lives(limits::TOKEN_TTL_MS_MAX)));
    bench.tick_to(end - 1);
    bench.granted(spend("w0"));
    bench.tick_to(end);
    is_refused(&mut bench, "w0");
    assert!(bench.ledger.token_view("t").is_none(), "it is forgotten");
}

pub(crate) fn namespaces() {
    let mut bench = bench();
    let of = |count: usize| {
        let namespaces = (0..count).map(|n| format!("n{n}")).collect();
        TokenSpec { namespaces, ..spec() }
    };
    let most = limits::TOKEN_NAMESPACES_MAX;
    bench.over(most as u64, create("t", of(most + 1)));
    bench.granted(create("t", of(most)));
}
