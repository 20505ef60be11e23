use super::*;
use crate::leader::state::test_leader::{PATIENCE, TestLeader};
use rollout_config::coordinator::Workers;
use rollout_ledger::Reply;
use rollout_ledger::view::RunState;
use rollout_ledger::{EngineSpec, RunAction, RunSpec, SegmentDecl, op};
use std::path::Path;
use tempfile::TempDir;

const KEPT: Retention =
    Retention { run_ttl_ms: 3_600_000, retention_ms: 0, sweep_every_ms: 0, sweep_age_ms: 0 };

/// A leader, its cluster's store in one directory, and stores below that directory for runs.
struct Fixture {
    leader: TestLeader,
    stores: RunStores,
    dir: TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("cluster")).expect("created");
        let cluster = BlobStore::open(&url(dir.path(), "cluster")).expect("a store");
        let stores = RunStores::new(cluster, &[url(dir.path(), "own")]).expect("good");
        Self { leader: TestLeader::start(Workers::default()).await, stores, dir }
    }

    fn leader_state(&self) -> &Arc<LeaderState> {
        &self.leader.state
    }

    /// An ended run of one segment, which is not written yet.
    async fn ended(&self, name: &str, store_url: &str) -> RunNo {
        let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
        let store_url = store_url.to_owned();
        let spec = RunSpec { engine, weight: 1, attempts_max: 1, store_url, ..RunSpec::default() };
        let (namespace, folder) = ("default".to_owned(), format!("{name}/own"));
        let spec = Box::new(spec);
        let create =
            OpKind::CreateRun(op::CreateRun { namespace, name: name.into(), spec, folder });
        let Reply::Run { run, .. } = self.leader.op(create).await else { panic!("no run") };
        let segment = SegmentDecl { number: SegmentNo(0), rows: 1, blob: BlobRef::default() };
        self.leader.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] })).await;
        let reason = String::new();
        self.leader
            .op(OpKind::ControlRun(op::ControlRun { run, action: RunAction::Cancel, reason }))
            .await;
        run
    }

    /// Writes that segment.
    async fn write(&self, name: &str, store: &BlobStore) {
        let key = rollout_storage::segment_key("default", &format!("{name}/own"), &[0; 32]);
        store.put(&key, bytes::Bytes::from_static(b"x")).await.expect("put");
    }

    fn view(&self, run: RunNo) -> Option<RunView> {
        self.leader_state().node.ledger(|l| l.run_view(run))
    }
}

fn url(dir: &Path, name: &str) -> String {
    format!("file://{}/{name}", dir.display())
}

#[tokio::test]
async fn a_run_whose_input_is_not_in_the_store_is_not_sealed_and_nothing_is_written() {
    let fixture = Fixture::new().await;
    let own = url(fixture.dir.path(), "own");
    let run = fixture.ended("r", &own).await;
    let error = seal(fixture.leader_state(), &fixture.stores, run).await.expect_err("sealed");
    assert!(matches!(error, GcError::Elsewhere { .. }), "{error}");
    assert!(fixture.view(run).expect("a run").sealed.is_none());
    assert!(!fixture.dir.path().join("own").exists(), "something was written");
    fixture.write("r", &BlobStore::open(&own).expect("a store")).await;
    seal(fixture.leader_state(), &fixture.stores, run).await.expect("sealed");
    assert!(fixture.view(run).expect("a run").sealed.is_some());
    fixture.leader.end().await;
}

#[tokio::test]
async fn a_run_whose_store_is_not_listed_is_left_alone() {
    let fixture = Fixture::new().await;
    let other = url(fixture.dir.path(), "other");
    let run = fixture.ended("r", &other).await;
    fixture.write("r", &BlobStore::open(&other).expect("a store")).await;
    let error = seal(fixture.leader_state(), &fixture.stores, run).await.expect_err("sealed");
    assert!(matches!(error, GcError::NotListed(_)), "{error}");
    fixture.leader.op(OpKind::DeleteRun(op::DeleteRun { run })).await;
    let error = remove(fixture.leader_state(), &fixture.stores, run).await.expect_err("removed");
    assert!(matches!(error, GcError::NotListed(_)), "{error}");
    fixture.leader.end().await;
}

#[tokio::test]
async fn a_run_is_forgotten_only_if_its_objects_were_in_this_store() {
    let fixture = Fixture::new().await;
    let run = fixture.ended("r", "").await;
    fixture.leader.op(OpKind::DeleteRun(op::DeleteRun { run })).await;
    let error = remove(fixture.leader_state(), &fixture.stores, run).await.expect_err("removed");
    assert!(matches!(error, GcError::Elsewhere { .. }), "{error}");
    assert_eq!(fixture.view(run).expect("a run").state, RunState::Deleting);
    // The state that a leader leaves if it is deposed after the last removal.
    let store = fixture.stores.cluster();
    fixture.write("r", store).await;
    let prefix = rollout_storage::run_prefix("default", "r/own");
    remove_all(store, store.list(&prefix).await.expect("listed")).await.expect("removed");
    store.prune(&prefix).await.expect("pruned");
    remove(fixture.leader_state(), &fixture.stores, run).await.expect("forgotten");
    assert!(fixture.view(run).is_none());
    fixture.leader.end().await;
}

#[tokio::test]
async fn a_store_that_refuses_holds_up_no_other_run() {
    let fixture = Fixture::new().await;
    std::fs::write(fixture.dir.path().join("own"), "no directory").expect("written");
    let refused = fixture.ended("refused", &url(fixture.dir.path(), "own")).await;
    let other = fixture.ended("other", "").await;
    fixture.write("other", fixture.stores.cluster()).await;
    fixture.leader.op(OpKind::DeleteRun(op::DeleteRun { run: refused })).await;
    let collecting = collect_runs(fixture.leader_state().clone(), fixture.stores.clone(), KEPT);
    let collecting = tokio::spawn(fixture.leader_state().clone().until_ended(collecting));
    // By then the leader has tried and failed.
    tokio::time::sleep(3 * LOOK_EVERY).await;
    fixture.leader.op(OpKind::DeleteRun(op::DeleteRun { run: other })).await;
    let gone = async {
        while fixture.view(other).is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(AGAIN_AFTER / 2, gone).await.expect("it is held up");
    assert!(fixture.view(refused).is_some());
    fixture.leader.end().await;
    tokio::time::timeout(PATIENCE, collecting).await.expect("it ends").expect("no panic");
}
