use super::*;
use crate::identity::api_key::{KeyLimits, KeyRole};
use crate::kernel::id::CoordEpoch;
use crate::kernel::reply::Reply;
use crate::kernel::versions::OPENAI_API_VERSION;
use crate::machine::command::{Body, Command, Op, OpKind, Scope, ScopedOp, op};
use crate::machine::ledger::EntryId;

/// A ledger with the namespaces `default` and `team`, the index of its last entry, and ledger time.
struct Bench {
    ledger: Ledger,
    index: u64,
    clock: u64,
}

fn spec(namespace: &str) -> ApiKeySpec {
    ApiKeySpec {
        name: "ci".into(),
        namespace: namespace.into(),
        role: KeyRole::Client,
        ttl_ms: 0,
        limits: KeyLimits::default(),
    }
}

fn create(id: &str, spec: ApiKeySpec) -> OpKind {
    OpKind::CreateApiKey(op::CreateApiKey { id: id.into(), secret_hash: [7; 32], spec })
}

fn revoke(id: &str) -> OpKind {
    OpKind::RevokeApiKey(op::RevokeApiKey { id: id.into() })
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self { ledger: Ledger::new([1; 16]), index: 0, clock: 1000 };
        bench.apply(Body::OpenEpoch);
        bench.apply(Body::SetVersion(OPENAI_API_VERSION));
        let team = op::SetNamespace { name: "team".into(), running_rows_max: 0 };
        bench.op(OpKind::SetNamespace(team));
        bench
    }

    fn apply(&mut self, body: Body) -> Reply {
        self.index += 1;
        let (epoch, at) = (CoordEpoch(1), LedgerMs(self.clock));
        let command = Command { epoch, at, wall_ms: 5000, body };
        let entry = EntryId { index: self.index, term: 1 };
        let mut replies = self.ledger.apply(entry, &command.encode()).expect("it is known");
        self.ledger.check_invariants().expect("they hold");
        replies.pop().expect("a reply")
    }

    fn op(&mut self, kind: OpKind) -> Reply {
        self.apply(Body::Ops(vec![kind.into()]))
    }

    /// Applies an operation of a caller that may use only this namespace.
    fn within(&mut self, namespace: &str, kind: OpKind) -> Reply {
        let scope = Scope::Namespaces(vec![namespace.into()]);
        self.apply(Body::ScopedOps(vec![ScopedOp { scope, op: Op::from(kind) }]))
    }

    fn reloaded(&self) -> Ledger {
        let mut records = Vec::new();
        self.ledger.for_each_record(|key, value| records.push((key.to_vec(), value.to_vec())));
        assert!(records.is_sorted(), "records come in the order of their keys");
        Ledger::load(records).expect("it is whole")
    }
}

fn ids(keys: Vec<ApiKeyView<'_>>) -> Vec<&str> {
    keys.into_iter().map(|key| key.id).collect()
}

#[test]
fn a_key_is_valid_until_it_is_revoked_or_expires_and_never_again() {
    let mut bench = Bench::new();
    bench.op(create("Forever1", spec("team")));
    bench.op(create("ShortOne", ApiKeySpec { ttl_ms: 500, ..spec("team") }));
    let key = bench.ledger.api_key("ShortOne").expect("a key");
    assert_eq!((key.left_ms, key.created_wall_ms, key.secret_hash), (Some(500), 5000, &[7; 32]));
    assert_eq!(bench.ledger.api_key("Forever1").expect("a key").left_ms, None);
    assert_eq!(bench.ledger.next_deadline(), Some(LedgerMs(1500)));
    let before = bench.ledger.api_key_changes();

    // Time has come, and the `Tick` has not: the key is not valid.
    bench.clock = 1500;
    bench.op(create("Third003", spec("default")));
    assert_eq!(bench.ledger.api_key("ShortOne"), None);
    assert_eq!(ids(bench.ledger.api_keys(Some("team"), None, 9)), ["Forever1"]);
    bench.apply(Body::Tick);
    let expired = bench.ledger.api_key_changes();
    assert!(expired > before);
    assert_eq!(bench.ledger.next_deadline(), None);

    assert_eq!(bench.op(revoke("Forever1")), Reply::Ok);
    assert!(bench.ledger.api_key_changes() > expired);
    let gone = |id: &str| Reply::Rejected(Rejection::ApiKeyUnknown(id.into()));
    for id in ["Forever1", "ShortOne", "NeverWas"] {
        assert_eq!(bench.op(revoke(id)), gone(id));
        assert_eq!(bench.ledger.api_key(id), None);
    }
    assert_eq!(ids(bench.ledger.api_keys(None, None, 9)), ["Third003"]);
}

#[test]
fn a_repeat_finds_the_key_and_no_other_key_takes_its_id() {
    let mut bench = Bench::new();
    assert_eq!(bench.op(create("aB3dE6gH", spec("team"))), Reply::Ok);
    bench.clock += 100;
    assert_eq!(bench.op(create("aB3dE6gH", spec("team"))), Reply::Ok);
    let conflict = Reply::Rejected(Rejection::ApiKeyConflict("aB3dE6gH".into()));
    let other =
        op::CreateApiKey { id: "aB3dE6gH".into(), secret_hash: [8; 32], spec: spec("team") };
    assert_eq!(bench.op(OpKind::CreateApiKey(other)), conflict);
    let admin = ApiKeySpec { role: KeyRole::Admin, ..spec("team") };
    assert_eq!(bench.op(create("aB3dE6gH", admin)), conflict);
    assert_eq!(bench.ledger.api_keys(None, None, 9).len(), 1);
}

#[test]
fn a_key_needs_an_id_a_name_and_a_namespace_that_exists() {
    let mut bench = Bench::new();
    let invalid = |reply: Reply| matches!(reply, Reply::Rejected(Rejection::Invalid(_)));
    for id in ["", "short", "nine45678", "with-bar", "ünicode"] {
        assert!(invalid(bench.op(create(id, spec("team")))), "{id}");
    }
    let unnamed = ApiKeySpec { name: String::new(), ..spec("team") };
    assert!(invalid(bench.op(create("aB3dE6gH", unnamed))));
    assert!(invalid(bench.op(create("aB3dE6gH", spec("")))));
    let unknown = Reply::Rejected(Rejection::NamespaceUnknown("nowhere".into()));
    assert_eq!(bench.op(create("aB3dE6gH", spec("nowhere"))), unknown);
    assert!(bench.ledger.api_keys(None, None, 9).is_empty());
}

#[test]
fn a_caller_of_one_namespace_neither_creates_nor_revokes_keys_of_another() {
    let mut bench = Bench::new();
    let denied = Reply::Rejected(Rejection::NamespaceDenied("team".into()));
    assert_eq!(bench.within("default", create("aB3dE6gH", spec("team"))), denied);
    assert_eq!(bench.within("team", create("aB3dE6gH", spec("team"))), Reply::Ok);
    assert_eq!(bench.within("default", revoke("aB3dE6gH")), denied);
    assert_eq!(bench.within("team", revoke("aB3dE6gH")), Reply::Ok);
}

#[test]
fn lists_have_pages_by_id_of_one_namespace_or_of_all() {
    let mut bench = Bench::new();
    for (id, namespace) in
        [("d0000000", "team"), ("b0000000", "default"), ("a0000000", "team"), ("c0000000", "team")]
    {
        bench.op(create(id, spec(namespace)));
    }
    let page = |namespace, after, max| ids(bench.ledger.api_keys(namespace, after, max));
    assert_eq!(page(None, None, 3), ["a0000000", "b0000000", "c0000000"]);
    assert_eq!(page(None, Some("c0000000"), 3), ["d0000000"]);
    assert_eq!(page(Some("team"), None, 2), ["a0000000", "c0000000"]);
    assert_eq!(page(Some("team"), Some("b"), 2), ["c0000000", "d0000000"]);
    assert!(page(Some("other"), None, 2).is_empty());
}

#[test]
fn an_image_keeps_the_keys_and_a_restored_cluster_has_none() {
    let mut bench = Bench::new();
    bench.op(create("aB3dE6gH", ApiKeySpec { ttl_ms: 500, ..spec("team") }));
    bench.op(create("Forever1", spec("default")));
    let loaded = bench.reloaded();
    assert_eq!(loaded.state_digest(), bench.ledger.state_digest());
    assert_eq!(loaded.api_keys(None, None, 9), bench.ledger.api_keys(None, None, 9));
    assert_eq!(loaded.next_deadline(), bench.ledger.next_deadline());
    // A member that replaces its state looks at its keys again.
    assert!(loaded.api_key_changes() > bench.ledger.api_key_changes());

    let restored = loaded.restored([2; 16], 7);
    restored.check_invariants().expect("they hold");
    assert!(restored.api_keys(None, None, 9).is_empty());
    assert_eq!(restored.next_deadline(), None);
}
