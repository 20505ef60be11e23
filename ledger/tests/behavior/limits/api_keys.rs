//! Bounds of API keys.

use crate::bench::Bench;
use rollout_ledger::{
    ApiKeySpec, Body, KeyLimits, KeyRole, OPENAI_API_VERSION, OpKind, limits, op,
};

fn bench() -> Bench {
    let mut bench = Bench::new();
    bench.command(Body::SetVersion(OPENAI_API_VERSION));
    bench
}

fn id(n: usize) -> String {
    format!("{n:08}")
}

fn create(n: usize, namespace: &str) -> OpKind {
    let spec = ApiKeySpec {
        name: "ci".into(),
        namespace: namespace.into(),
        role: KeyRole::Client,
        ttl_ms: 0,
        limits: KeyLimits::default(),
    };
    OpKind::CreateApiKey(op::CreateApiKey { id: id(n), secret_hash: [1; 32], spec })
}

fn revoke(n: usize) -> OpKind {
    OpKind::RevokeApiKey(op::RevokeApiKey { id: id(n) })
}

fn namespace(name: &str) -> OpKind {
    OpKind::SetNamespace(op::SetNamespace { name: name.into(), running_rows_max: 0 })
}

pub(crate) fn of_namespace() {
    let mut bench = bench();
    let max = limits::NAMESPACE_API_KEYS_MAX;
    bench.granted(namespace("other"));
    bench.all_granted((0..max).map(|n| create(n, "default")));
    bench.over(max as u64, create(max, "default"));
    // A repeat is no new key, and another namespace has room.
    bench.granted(create(0, "default"));
    bench.granted(create(max, "other"));
    bench.granted(revoke(0));
    bench.granted(create(max + 1, "default"));
}

pub(crate) fn of_all() {
    let mut bench = bench();
    let (max, of_one) = (limits::API_KEYS_MAX, limits::NAMESPACE_API_KEYS_MAX);
    let name = |n: usize| format!("n{}", n / of_one);
    bench.all_granted((0..=max / of_one).map(|n| namespace(&name(n * of_one))));
    bench.all_granted((0..max).map(|n| create(n, &name(n))));
    bench.over(max as u64, create(max, &name(max)));
    bench.granted(revoke(0));
    bench.granted(create(max, &name(max)));
}
