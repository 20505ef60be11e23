//! Owns: tests of the image's contents after a restart, and after a power loss in a child process.

use std::path::{Path, PathBuf};
use std::process::Command as Process;

use openraft::StorageHelper;
use rollout_ledger::EntryId;
use rollout_powerloss::{JOURNAL_ENV, Journal, Loss, lose_power};
use rollout_proto::{DialMap, Security};
use rollout_storage::ImageBatch;

use super::state::record_applied;
use super::*;
use crate::codec::encode_entry;
use crate::state::log_store::LogStore;
use crate::state::snapshot_files::stage_copy;
use crate::state::state_machine::StateMachine;
use crate::types::{SnapshotMeta, Types, log_id, term_of};

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn config(dir: &Path) -> RaftConfig {
    RaftConfig::new(dir, "c1", DialMap::default(), Security::InsecurePlaintext)
}

fn open(dir: &Path) -> (Stores, Machine) {
    let stores = Stores::open(dir).expect("stores");
    let machine = Machine::load(CLUSTER, stores.clone(), &config(dir)).expect("an image");
    (stores, machine)
}

/// Marks everything up to an index as applied, and writes the image.
async fn applied(machine: &Machine, term: u64, index: u64) {
    {
        let mut state = machine.shared.state.write();
        state.applied = Some(log_id(term, index));
        record_applied(&mut state.ledger, EntryId { index, term });
    }
    machine.flush().await;
}

/// Writes blank entries of a term to the log, and does not make them durable.
fn append(log: &RaftLog, term: u64, indexes: std::ops::RangeInclusive<u64>) {
    let first = *indexes.start();
    let entries: Vec<_> = indexes
        .map(|index| encode_entry(&Entry::new(log_id(term, index), EntryPayload::Blank)))
        .collect();
    log.append(first, &entries).expect("appended");
}

#[tokio::test]
async fn a_member_whose_power_failed_before_the_snapshot_of_an_installed_image_has_a_new_one() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (stores, machine) = open(dir.path());
    applied(&machine, 1, 4).await;
    machine.snapshot().await.expect("a snapshot");
    // As an installation leaves it that ends behind the pointer: an image, and no snapshot of it.
    applied(&machine, 1, 8).await;
    drop((stores, machine));
    let (_stores, machine) = open(dir.path());
    let snapshot = machine.image().current_snapshot().expect("a snapshot");
    let meta = meta_of(&snapshot.open_image().expect("an image")).expect("its metadata");
    assert_eq!(meta.last_log_id, Some(log_id(1, 8)));
}

#[tokio::test]
async fn writing_the_image_fsyncs_the_log_and_a_closed_log_keeps_the_image_as_it_is() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (stores, machine) = open(dir.path());
    append(&stores.log, 1, 1..=4);
    let before = stores.log.stats().fsyncs;
    applied(&machine, 1, 4).await;
    assert!(stores.log.stats().fsyncs > before, "what the image holds is durable in the log");
    assert_eq!(machine.image_index(), Some(4));
    stores.log.close();
    applied(&machine, 1, 5).await;
    assert_eq!(machine.image_index(), Some(4), "nothing can be made durable any more");
}

#[tokio::test]
async fn an_image_of_another_cluster_is_refused_naming_both() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (stores, machine) = open(dir.path());
    applied(&machine, 1, 4).await;
    drop((stores, machine));
    let other = ClusterId([8; 16]);
    let stores = Stores::open(dir.path()).expect("stores");
    let refused = Machine::load(other, stores, &config(dir.path())).err().expect("no image of it");
    let text = refused.to_string();
    assert!(text.contains(&CLUSTER.to_string()) && text.contains(&other.to_string()), "{text}");
}

#[tokio::test]
async fn an_image_of_another_version_is_refused_by_its_version_whatever_its_records_are() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (stores, machine) = open(dir.path());
    applied(&machine, 1, 4).await;
    // A record that this build cannot read. Its key comes before that of the version.
    let unknown = (b"A".to_vec(), b"?".to_vec());
    let batch = ImageBatch { puts: vec![unknown], ..ImageBatch::default() };
    stores.image.write(batch).expect("written");
    drop((stores, machine));
    let load = |versions: (u32, u32)| {
        let stores = Stores::open(dir.path()).expect("stores");
        let config = RaftConfig { versions, ..config(dir.path()) };
        let refused = Machine::load(CLUSTER, stores, &config).err().expect("no readable image");
        refused.to_string()
    };
    let text = load((2, 3));
    assert!(text.contains("is of version 1, and this build runs 2 to 3"), "{text}");
    let text = load((1, 3));
    assert!(text.contains("cannot be read"), "{text}");
}

#[test]
fn the_thread_that_applies_entries_is_free_while_a_digest_is_computed() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (_stores, machine) = open(dir.path());
        applied(&machine, 1, 4).await;
        // Nothing is computed on another thread until this is released.
        let (release, released) = std::sync::mpsc::channel::<()>();
        let busy = tokio::task::spawn_blocking(move || released.recv());
        let computes = machine.clone();
        let digest = tokio::spawn(async move { computes.digest_now(4).await });
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(!digest.is_finished(), "it hashed the state on the thread of consensus");
        release.send(()).expect("it waits");
        digest.await.expect("no panic");
        busy.await.expect("no panic").expect("it was released");
        let limit = std::time::Duration::from_secs(60);
        assert!(machine.digests().at(4, limit).await.is_some());
    });
}

/// Set in a child process: its task and its directory. It ends halfway, as if it were killed.
const CHILD: &str = "ROLLOUT_TEST_MACHINE_POWER";

/// Not a separate test: the body of a child process.
#[tokio::test]
async fn child_process() {
    let Ok(args) = std::env::var(CHILD) else { return };
    let (task, dir) = args.split_once('|').expect("a task and a directory");
    let dir = Path::new(dir);
    let (stores, machine) = open(dir);
    match task {
        "flush" => {
            append(&stores.log, 1, 1..=8);
            applied(&machine, 1, 8).await;
        }
        "install" => {
            append(&stores.log, 2, 1..=20);
            stores.log.sync_now().expect("durable");
            applied(&machine, 2, 4).await;
            let received = received(&machine, dir, log_id(3, 15)).await;
            let meta = SnapshotMeta { last_log_id: Some(log_id(3, 15)), ..SnapshotMeta::default() };
            // What consensus does if the log conflicts with a snapshot.
            stores.log.truncate_after(Some(4)).expect("truncated");
            machine.install(&meta, received).await.expect("installed");
        }
        other => panic!("{other}"),
    }
    std::process::abort();
}

/// An image that another member took at `last`.
async fn received(machine: &Machine, dir: &Path, last: LogId) -> rollout_storage::Staged {
    let (_stores, other) = open(&dir.join("other"));
    applied(&other, term_of(&last), last.index()).await;
    other.snapshot().await.expect("a snapshot");
    let taken = other.image().current_snapshot().expect("a snapshot");
    stage_copy(machine.image(), &taken).expect("staged")
}

/// Runs a child until it ends, and removes from its directory what it had not made durable.
fn power_fails_after(task: &str) -> (tempfile::TempDir, PathBuf) {
    let scene = tempfile::tempdir().expect("a temporary directory");
    let base = scene.path().canonicalize().expect("a path");
    let (root, journal) = (base.join("root"), base.join("journal"));
    std::fs::create_dir(&root).expect("a directory");
    Journal::create(&journal, &root).expect("a journal");
    let ended = Process::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "state::machine::tests::child_process", "--nocapture"])
        .env(CHILD, format!("{task}|{}", root.display()))
        .env("LD_PRELOAD", preload_library())
        .env(JOURNAL_ENV, &journal)
        .output()
        .expect("it starts");
    assert!(ended.status.code().is_none(), "it ended before its end: {ended:?}");
    lose_power(&journal, Loss::Strict).expect("power is lost");
    (scene, root)
}

/// The library that keeps the journal, built with the profile of this test into its target directory.
fn preload_library() -> PathBuf {
    let exe = std::env::current_exe().expect("this program");
    // <target>/<profile>/deps/<test>
    let profile = exe.ancestors().nth(2).expect("a profile");
    let target = profile.parent().expect("a target directory");
    let mut build = Process::new(env!("CARGO"));
    build.args(["build", "--quiet", "-p", "rollout-preload", "--target-dir"]).arg(target);
    build.current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "the preloaded library does not build");
    profile.join("librollout_preload.so")
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_all_entries_of_the_image_after_a_power_loss() {
    let (_scene, root) = power_fails_after("flush");
    let (stores, machine) = open(&root);
    assert_eq!(machine.read(|state| state.applied), Some(log_id(1, 8)));
    assert_eq!(stores.log.bounds().last.map(|(index, _)| index), Some(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tail_that_conflicted_with_an_installed_image_is_gone_after_a_power_loss() {
    let (_scene, root) = power_fails_after("install");
    let (stores, machine) = open(&root);
    assert_eq!(machine.read(|state| state.applied), Some(log_id(3, 15)));
    assert_eq!(stores.log.bounds().last.map(|(index, _)| index), Some(4));
    let mut log = LogStore::new(stores.log, stores.open, 1 << 20).expect("a log");
    let mut state = StateMachine::new(machine);
    let mut helper = StorageHelper::<Types, _, _>::new(&mut log, &mut state).with_id(1);
    let started = helper.get_initial_state().await.map(drop);
    started.expect("consensus starts from what is left");
}
