//! A cluster for tests of the API: a ledger without consensus.

use crate::openai::error::ApiError;
use crate::openai::state::{ApiState, Cluster};
use futures::FutureExt;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use rollout_ledger::id::{CoordEpoch, LedgerMs};
use rollout_ledger::{
    ApiKeySpec, Body, Command, EntryId, KeyLimits, KeyRole, Ledger, Op, OpKind, ROUTES_PROPERTY,
    Registration, Reply, SUPPORTED_VERSIONS, Scope, ScopedOp, SlotOffer, limits, op,
};
use rollout_proto::Identity;
use rollout_storage::BlobStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The secret of every key here.
const SECRET: &str = "SSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSSS";

/// The text of the key with this id.
pub(crate) fn key(id: &str) -> String {
    format!("rk_{id}_{SECRET}")
}

/// The cluster. Clones share it.
#[derive(Clone)]
pub(crate) struct TestCluster(Arc<State>);

struct State {
    ledger: Mutex<Ledger>,
    /// Operations that this member applies with the next read.
    lacks: Mutex<Vec<OpKind>>,
    reads: AtomicU64,
    cut_off: AtomicBool,
    /// How many operations this member still gets an answer for.
    answers: AtomicU64,
    store: BlobStore,
}

impl TestCluster {
    /// A cluster of the newest version, with the namespaces `default` and `team`, and a store in memory.
    pub(crate) fn new() -> Self {
        static STORES: AtomicU64 = AtomicU64::new(0);
        let number = STORES.fetch_add(1, Ordering::Relaxed);
        Self::with_store(&format!("memory://api-{}-{number}", std::process::id()))
    }

    /// The same with the store of this URL.
    pub(crate) fn with_store(url: &str) -> Self {
        let this = Self(Arc::new(State {
            ledger: Mutex::new(Ledger::new([7; 16])),
            lacks: Mutex::default(),
            reads: AtomicU64::new(0),
            cut_off: AtomicBool::new(false),
            answers: AtomicU64::new(u64::MAX),
            store: BlobStore::open(url).expect("a store"),
        }));
        this.command(Body::OpenEpoch);
        this.command(Body::SetVersion(SUPPORTED_VERSIONS.1));
        let team = op::SetNamespace { name: "team".into(), running_rows_max: 0 };
        this.op(OpKind::SetNamespace(team));
        this
    }

    /// The state of a member of this cluster.
    pub(crate) fn api(&self) -> Arc<ApiState> {
        ApiState::new(self.0.clone(), self.0.store.clone())
    }

    /// Applies an operation of the cluster's own, which must not be rejected.
    pub(crate) fn op(&self, kind: OpKind) -> Reply {
        match self.command(Body::Ops(vec![kind.into()])).remove(0) {
            Reply::Rejected(why) => panic!("{why:?}"),
            reply => reply,
        }
    }

    fn command(&self, body: Body) -> Vec<Reply> {
        self.0.command(body).1
    }

    pub(crate) fn add_key(&self, id: &str, namespace: &str, role: KeyRole) {
        self.op(create_key(id, namespace, role, KeyLimits::default()));
    }

    pub(crate) fn add_key_with_rate(&self, id: &str, namespace: &str, requests_per_s: u32) {
        let limits = KeyLimits { requests_per_s, ..KeyLimits::default() };
        self.op(create_key(id, namespace, KeyRole::Client, limits));
    }

    /// Adds a key that this member applies with the next read.
    pub(crate) fn add_key_at_next_read(&self, id: &str, namespace: &str, role: KeyRole) {
        self.0.lacks.lock().push(create_key(id, namespace, role, KeyLimits::default()));
    }

    pub(crate) fn revoke_key(&self, id: &str) {
        self.op(OpKind::RevokeApiKey(op::RevokeApiKey { id: id.into() }));
    }

    /// Registers a worker with one slot for these models.
    pub(crate) fn register_worker(&self, namespace: &str, models: &[&str]) {
        let models = models.iter().map(|model| (*model).to_owned()).collect();
        let registration = Registration {
            namespace: namespace.into(),
            name: "w1".into(),
            instance: 1,
            slots: vec![SlotOffer { models, ..SlotOffer::default() }],
            ..Registration::default()
        };
        self.op(OpKind::Register(Box::new(registration)));
    }

    /// Registers a worker with one slot whose engine serves these routes, separated by spaces. It replaces its
    /// predecessor.
    pub(crate) fn register_routes(&self, namespace: &str, routes: &str) {
        let versions = [(ROUTES_PROPERTY.to_owned(), routes.to_owned())].into();
        let models = vec!["m".to_owned()];
        let registration = Registration {
            namespace: namespace.into(),
            name: "w-routes".into(),
            instance: self.0.ledger.lock().applied().index,
            slots: vec![SlotOffer { models, versions, ..SlotOffer::default() }],
            ..Registration::default()
        };
        self.op(OpKind::Register(Box::new(registration)));
    }

    /// From now on this member hears no leader.
    pub(crate) fn lose_contact(&self) {
        self.0.cut_off.store(true, Ordering::SeqCst);
    }

    /// This member reaches the leader for so many further operations.
    pub(crate) fn answer_only(&self, operations: u64) {
        self.0.answers.store(operations, Ordering::SeqCst);
    }

    /// This much time passes, and what is due happens.
    pub(crate) fn pass(&self, ms: u64) {
        let now = self.0.ledger.lock().clock().0;
        let steps = (now..now + ms).step_by(limits::CLOCK_STEP_MAX_MS as usize).skip(1);
        for at in steps.chain([now + ms]) {
            let replies = self.0.command_at(LedgerMs(at), Body::Tick).1;
            assert!(!matches!(replies[..], [Reply::Rejected(_)]), "{replies:?}");
        }
    }

    /// How many reads were confirmed.
    pub(crate) fn reads(&self) -> u64 {
        self.0.reads.load(Ordering::SeqCst)
    }
}

pub(crate) fn create_key(id: &str, namespace: &str, role: KeyRole, limits: KeyLimits) -> OpKind {
    OpKind::CreateApiKey(op::CreateApiKey {
        id: id.into(),
        secret_hash: *blake3::hash(key(id).as_bytes()).as_bytes(),
        spec: ApiKeySpec {
            name: "test".into(),
            namespace: namespace.into(),
            role,
            ttl_ms: 0,
            limits,
        },
    })
}

impl State {
    fn command(&self, body: Body) -> (u64, Vec<Reply>) {
        self.command_at(LedgerMs(0), body)
    }

    fn command_at(&self, at: LedgerMs, body: Body) -> (u64, Vec<Reply>) {
        let mut ledger = self.ledger.lock();
        let index = ledger.applied().index + 1;
        let command = Command { epoch: CoordEpoch(1), at, wall_ms: 1_000, body };
        let entry = EntryId { index, term: 1 };
        (index, ledger.apply(entry, &command.encode()).expect("a known command"))
    }
}

impl Cluster for State {
    fn with_ledger(&self, read: &mut dyn FnMut(&Ledger)) {
        read(&self.ledger.lock());
    }

    fn read(&self) -> BoxFuture<'_, Result<(), ApiError>> {
        async {
            self.check_contact()?;
            self.reads.fetch_add(1, Ordering::SeqCst);
            let lacks = std::mem::take(&mut *self.lacks.lock());
            for kind in lacks {
                self.command(Body::Ops(vec![kind.into()]));
            }
            Ok(())
        }
        .boxed()
    }

    fn apply(&self, caller: Identity, op: OpKind) -> BoxFuture<'_, Result<(u64, Reply), ApiError>> {
        async move {
            self.check_contact()?;
            let one_less = |left: u64| left.checked_sub(1);
            if self.answers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_err() {
                return Err(ApiError::no_leader("this member reaches the leader no more"));
            }
            let scope = Scope::Namespaces(caller.namespaces);
            let (index, mut replies) =
                self.command(Body::ScopedOps(vec![ScopedOp { scope, op: Op::from(op) }]));
            Ok((index, replies.remove(0)))
        }
        .boxed()
    }

    fn check_contact(&self) -> Result<(), ApiError> {
        match self.cut_off.load(Ordering::SeqCst) {
            true => Err(ApiError::no_leader("this member hears no leader")),
            false => Ok(()),
        }
    }
}
