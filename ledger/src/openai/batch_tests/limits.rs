//! Limits of API keys and namespaces for batches. `ledger/tests/behavior/limits/batches.rs` tests those of the cluster.

use super::*;
use crate::Quota;
use crate::identity::api_key::{ApiKeySpec, KeyLimits, KeyRole};

fn create_key(bench: &mut Bench, limits: KeyLimits) {
    let (name, namespace) = ("nightly".into(), "default".into());
    let spec = ApiKeySpec { name, namespace, role: KeyRole::Client, ttl_ms: 0, limits };
    let (id, secret_hash) = ("abcd1234".to_owned(), [1; 32]);
    bench.granted(OpKind::CreateApiKey(op::CreateApiKey { id, secret_hash, spec }));
}

fn of_key(id: &str) -> OpKind {
    made(BatchDecl { key: "abcd1234".into(), ..decl(id) })
}

fn over(what: &str, used: u64, max: u64) -> OpenAiRefusal {
    OpenAiRefusal::KeyLimit { key: "abcd1234".into(), what: what.into(), used, max }
}

#[test]
fn a_key_has_at_most_its_number_of_open_batches() {
    let mut bench = Bench::new();
    create_key(&mut bench, KeyLimits { open_batches: 2, ..KeyLimits::default() });
    bench.granted(of_key("batch_1"));
    bench.granted(of_key("batch_2"));
    let full = over("batches that have not ended", 2, 2);
    assert_eq!(bench.openai_refusal(of_key("batch_3")), full);
    // A repeat creates none, and other keys have their own limits.
    bench.granted(of_key("batch_2"));
    bench.create("batch_4");
    bench.granted(cancel("batch_1"));
    bench.granted(of_key("batch_3"));
}

#[test]
fn a_key_has_at_most_its_number_of_waiting_rows() {
    let mut bench = Bench::new();
    let slot = bench.register();
    create_key(&mut bench, KeyLimits { waiting_rows: 20, ..KeyLimits::default() });
    bench.started("batch_9", 100);
    bench.granted(cancel("batch_9"));
    for id in ["batch_1", "batch_2"] {
        bench.granted(of_key(id));
        let fence = bench.assign(id, FIRST);
        bench.granted(segments(id, fence, 0, &[12]));
    }
    let (first, second) = (bench.task("batch_1").fence, bench.task("batch_2").fence);
    let more = segments("batch_1", first, 1, &[12]);
    assert_eq!(bench.openai_refusal(more), over("waiting rows", 0, 20));
    bench.granted(start("batch_1", first, &[12]));
    let full = over("waiting rows", 12, 20);
    assert_eq!(bench.openai_refusal(start("batch_2", second, &[12])), full);
    // Rows of a run that ends no longer wait.
    bench.run_rows(slot, 12, 0);
    bench.granted(start("batch_2", second, &[12]));
}

#[test]
fn the_rows_of_a_batch_count_for_the_quota_of_its_namespace() {
    let mut bench = Bench::new();
    let quota = |rows, runs| {
        OpKind::SetQuota(Quota {
            namespace: "default".into(),
            pending_rows_max: Some(rows),
            runs_max: Some(runs),
            ..Quota::default()
        })
    };
    bench.granted(quota(20, 1));
    bench.started("batch_1", 12);
    bench.create("batch_2");
    let fence = bench.assign("batch_2", FIRST);
    let is_over = |why: Rejection| assert!(matches!(why, Rejection::OverQuota { .. }), "{why:?}");
    is_over(bench.refused(segments("batch_2", fence, 0, &[12])));
    bench.granted(segments("batch_2", fence, 0, &[8]));
    is_over(bench.refused(start("batch_2", fence, &[8])));
    bench.granted(quota(20, 2));
    bench.granted(start("batch_2", fence, &[8]));
}
