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
struct Place {
    leader: TestLeader,
    stores: RunStores,
    dir: TempDir,
}

impl Place {
    async fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("cluster")).expect("created");
        let cluster = BlobStore::open(&url(dir.path(), "cluster")).expect("a store");
        let stores = RunStores::new(cluster, &[url(dir.path(), "own")]).expect("good");
        Self { leader: TestLeader::start(Workers::default()).await, stores, dir }
    }

    fn leading(&self) -> &Arc<LeaderState> {
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
        self.leading().node.ledger(|l| l.run_view(run))
    }
}

fn url(dir: &Path, name: &str) -> String {
    format!("file://{}/{name}", dir.display())
}

#[tokio::test]
async fn a_run_whose_input_is_not_in_the_store_is_not_sealed_and_nothing_is_written() {
    let place = Place::new().await;
    let own = url(place.dir.path(), "own");
    let run = place.ended("r", &own).await;
    let error = seal(place.leading(), &place.stores, run).await.expect_err("sealed");
    assert!(matches!(error, GcError::Elsewhere { .. }), "{error}");
    assert!(place.view(run).expect("a run").sealed.is_none());
    assert!(!place.dir.path().join("own").exists(), "something was written");
    place.write("r", &BlobStore::open(&own).expect("a store")).await;
    seal(place.leading(), &place.stores, run).await.expect("sealed");
    assert!(place.view(run).expect("a run").sealed.is_some());
    place.leader.end().await;
}

#[tokio::test]
async fn a_run_whose_store_is_not_listed_is_left_alone() {
    let place = Place::new().await;
    let other = url(place.dir.path(), "other");
    let run = place.ended("r", &other).await;
    place.write("r", &BlobStore::open(&other).expect("a store")).await;
    let error = seal(place.leading(), &place.stores, run).await.expect_err("sealed");
    assert!(matches!(error, GcError::NotListed(_)), "{error}");
    place.leader.op(OpKind::DeleteRun(op::DeleteRun { run })).await;
    let error = remove(place.leading(), &place.stores, run).await.expect_err("removed");
    assert!(matches!(error, GcError::NotListed(_)), "{error}");
    place.leader.end().await;
}

#[tokio::test]
async fn a_run_is_forgotten_only_if_its_objects_were_in_this_store() {
    let place = Place::new().await;
    let run = place.ended("r", "").await;
    place.leader.op(OpKind::DeleteRun(op::DeleteRun { run })).await;
    let error = remove(place.leading(), &place.stores, run).await.expect_err("removed");
    assert!(matches!(error, GcError::Elsewhere { .. }), "{error}");
    assert_eq!(place.view(run).expect("a run").state, RunState::Deleting);
    // The state that a leader leaves if it is deposed after the last removal.
    let store = place.stores.cluster();
    place.write("r", store).await;
    let prefix = rollout_storage::run_prefix("default", "r/own");
    remove_all(store, store.list(&prefix).await.expect("listed")).await.expect("removed");
    store.prune(&prefix).await.expect("pruned");
    remove(place.leading(), &place.stores, run).await.expect("forgotten");
    assert!(place.view(run).is_none());
    place.leader.end().await;
}

#[tokio::test]
async fn a_store_that_refuses_holds_up_no_other_run() {
    let place = Place::new().await;
    std::fs::write(place.dir.path().join("own"), "no directory").expect("written");
    let refused = place.ended("refused", &url(place.dir.path(), "own")).await;
    let other = place.ended("other", "").await;
    place.write("other", place.stores.cluster()).await;
    place.leader.op(OpKind::DeleteRun(op::DeleteRun { run: refused })).await;
    let collecting = collect_runs(place.leading().clone(), place.stores.clone(), KEPT);
    let collecting = tokio::spawn(place.leading().clone().until_ended(collecting));
    // By then the leader has tried and failed.
    tokio::time::sleep(3 * LOOK_EVERY).await;
    place.leader.op(OpKind::DeleteRun(op::DeleteRun { run: other })).await;
    let gone = async {
        while place.view(other).is_some() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(AGAIN_AFTER / 2, gone).await.expect("it is held up");
    assert!(place.view(refused).is_some());
    place.leader.end().await;
    tokio::time::timeout(PATIENCE, collecting).await.expect("it ends").expect("no panic");
}
