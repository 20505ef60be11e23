//! This build opens a data directory that an earlier build wrote, and continues.
//!
//! `testdata/data-1` is the directory of a member that was its whole cluster, as that build left it: identity, log
//! and image, without RocksDB's human-readable files; its image is older than its log, as after a SIGKILL.
//! `ROLLOUT_REWRITE=1` rewrites it; use it only while the format is unreleased. For a released format, add a
//! directory for the new format and keep this one.

use std::path::{Path, PathBuf};

use crate::cluster::{
    Member, chain_and_digest, eventually, logging, open_clients, open_epoch, waiting,
};
use rollout_raft::RaftConfig;

/// Commands with one new session each: the image holds half of them, the log all.
const COMMANDS: usize = 12;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata/data-1")
}

/// The ledger's chain at the end: a line of hex. It covers commands and replies, but not blank entries.
fn chain_file() -> PathBuf {
    golden().join("chain.hex")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// RocksDB's own log, its options as it read them, and its lock are no part of the format.
fn is_data(name: &str) -> bool {
    name != "LOCK"
        && name != "chain.hex"
        && !name.starts_with("LOG")
        && !name.starts_with("OPTIONS")
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory") {
        let entry = entry.expect("an entry");
        let name = entry.file_name().into_string().expect("a name");
        let (from, to) = (entry.path(), to.join(&name));
        if from.is_dir() {
            copy(&from, &to);
        } else if is_data(&name) {
            std::fs::copy(&from, &to).expect("copied");
        }
    }
}

async fn leads(member: &Member) -> u64 {
    let node = member.node();
    eventually("it leads, alone as it is", async || {
        let term = node.barrier().await.ok()?;
        node.propose(term, open_epoch(term)).await.ok()?;
        Some(term)
    })
    .await
}

async fn add(member: &Member, clients: std::ops::Range<usize>) {
    let epoch = leads(member).await;
    for n in clients {
        let command = open_clients(epoch, &[format!("client-{n}")]);
        member.node().propose(epoch, command).await.expect("applied");
    }
}

async fn rewrite() {
    let dir = tempfile::tempdir().expect("a directory");
    // The image is written at the end alone.
    let adjust = |config: &mut RaftConfig| config.image_interval_ms = 3_600_000;
    let mut members = waiting(dir.path(), &["a"], adjust).await;
    let mut member = members.pop().expect("one");
    member.node().bootstrap(vec![member.record()]).await.expect("a cluster of one");
    add(&member, 0..COMMANDS / 2).await;
    member.stop().await;
    member.restart().await;
    add(&member, COMMANDS / 2..COMMANDS).await;
    let (chain, _) = chain_and_digest(member.node());
    if golden().exists() {
        std::fs::remove_dir_all(golden()).expect("removed");
    }
    // As after a SIGKILL: nothing is in progress, so the files are what is on disk.
    copy(&member.config.data_dir, &golden());
    std::fs::write(chain_file(), hex(&chain) + "\n").expect("written");
    member.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_an_earlier_build_left_is_opened_and_goes_on() {
    logging();
    if rollout_recorded::rewrites() {
        rewrite().await;
    }
    let kept = std::fs::read_to_string(chain_file()).expect("the golden directory");
    let dir = tempfile::tempdir().expect("a directory");
    copy(&golden(), &dir.path().join("data-a"));
    // The member's certificate is no part of its data.
    let mut members = waiting(dir.path(), &["a"], |_| {}).await;
    let mut member = members.pop().expect("one");
    assert!(!member.node().is_waiting(), "its identity was read");
    // The image, and behind it what only the log has.
    eventually("the ledger is what it was", async || {
        (hex(&chain_and_digest(member.node()).0) == kept.trim()).then_some(())
    })
    .await;
    let epoch = leads(&member).await;
    let command = open_clients(epoch, &["later".to_owned()]);
    let (index, replies) = member.node().propose(epoch, command).await.expect("it goes on");
    assert_eq!(crate::cluster::opened(&replies), 1);
    assert!(index > COMMANDS as u64);
    member.stop().await;
    // After a restart it reads the old data together with its own additions.
    member.restart().await;
    assert!(member.node().applied(index, crate::cluster::LIMIT).await);
}
