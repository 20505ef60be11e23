//! A snapshot file of a working cluster, and a new cluster that continues from it.

use std::path::{Path, PathBuf};

use crate::cluster::{
    Cluster, Member, bulk, certificates, chain_and_digest, config, free_port, open_clients,
};
use rollout_ledger::{EntryId, Ledger};
use rollout_raft::{
    Backup, MemberRecord, RestoreError, RestorePlan, Restored, owner, restore, salvage,
};
use rollout_storage::{SnapshotFileReader, SnapshotFileWriter, SnapshotHeader};

fn write(backup: &Backup, path: &Path) {
    let file = std::fs::File::create(path).expect("a file");
    backup.write_to(std::io::BufWriter::new(file)).expect("a snapshot file");
}

fn record(name: &str, port: u16) -> MemberRecord {
    MemberRecord {
        name: name.into(),
        peer_addr: format!("127.0.0.1:{port}"),
        client_addr: format!("127.0.0.1:{}", port + 1),
        version_min: 1,
        version_max: 3,
        ..MemberRecord::default()
    }
}

fn plan(data_dir: PathBuf, member: &str, members: &[MemberRecord], token: &str) -> RestorePlan {
    let members = members.to_vec();
    RestorePlan { data_dir, member: member.into(), members, token: token.into() }
}

fn restored(file: &Path, plan: &RestorePlan) -> Result<Restored, RestoreError> {
    restore(file, plan, &mut |_| {})
}

/// Three members made of one file, running, in a directory of their own.
async fn new_cluster(file: &Path) -> Cluster {
    let dir = tempfile::tempdir().expect("a directory");
    let names = ["x", "y", "z"];
    let ports = [free_port(), free_port(), free_port()];
    let records: Vec<_> = names.iter().zip(ports).map(|(name, port)| record(name, port)).collect();
    let mut members = Vec::new();
    let mut ids = Vec::new();
    for ((name, port), security) in
        names.into_iter().zip(ports).zip(certificates(dir.path(), &names))
    {
        let data = dir.path().join(format!("data-{name}"));
        let made = restored(file, &plan(data.clone(), name, &records, "t")).expect("a member");
        ids.push(made.cluster_id);
        members.push(Member::start(config(data, name, security), port).await);
    }
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    Cluster { members, id: ids[0], dir }
}

/// Checks that the cluster continues where the file ends, with its own terms, and that its members agree.
async fn goes_on(cluster: &mut Cluster, index: u64) {
    let (leader, epoch) = cluster.open().await;
    let write = open_clients(epoch, &["new".to_owned()]);
    let (written, replies) =
        cluster.members[leader].node().propose(epoch, write).await.expect("applied");
    assert!(written > index, "indexes go on: {written} behind {index}");
    assert_eq!(crate::cluster::opened(&replies), 1);
    cluster.all_applied(written).await;
    let expected = chain_and_digest(cluster.members[leader].node());
    for (_, node) in cluster.running() {
        assert_eq!(chain_and_digest(node), expected);
    }
    // Its disk is that of any member.
    let other = (leader + 1) % 3;
    cluster.members[other].stop().await;
    cluster.members[other].restart().await;
    cluster.all_applied(written).await;
    assert_eq!(chain_and_digest(cluster.members[other].node()), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn three_members_made_of_one_file_are_one_cluster_that_goes_on_behind_it() {
    let mut old = Cluster::form(|_| {}).await;
    let (leader, epoch) = old.open().await;
    let node = old.members[leader].node();
    let (saved, _) = node.propose(epoch, bulk(epoch, 300, 1)).await.expect("applied");
    let backup = node.backup("test", 5).await.expect("a backup").expect("of a cluster");
    // What comes behind it is not in it, though it is written while more is applied.
    node.propose(epoch, bulk(epoch, 300, 2)).await.expect("applied");
    let file = old.dir.path().join("x.snap");
    write(&backup, &file);
    let reader = SnapshotFileReader::open(&file).expect("a snapshot file");
    assert_eq!(reader.header().cluster_id, old.id.to_string());
    assert_eq!((reader.header().index, reader.header().members.len()), (saved, 3));
    drop(backup);
    for member in &mut old.members {
        member.stop().await;
    }

    let mut new = new_cluster(&file).await;
    assert_ne!(new.id, old.id);
    goes_on(&mut new, saved).await;
    let node = new.members[0].node();
    let (ancestors, version) =
        node.with_ledger(|l| (l.ancestors().to_vec(), l.version())).expect("a ledger");
    assert_eq!((ancestors, version), (vec![old.id.0], 1));
    assert_eq!(node.status().snapshots_installed, 0, "each made its own state");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_of_the_last_member_becomes_a_cluster_and_its_directory_stays_unchanged() {
    let mut old = Cluster::form(|_| {}).await;
    let (leader, epoch) = old.open().await;
    let (index, _) =
        old.members[leader].node().propose(epoch, bulk(epoch, 300, 1)).await.expect("applied");
    old.all_applied(index).await;
    for member in &mut old.members {
        member.stop().await;
    }
    let left = &old.members[(leader + 1) % 3].config;
    assert_eq!(owner(&left.data_dir).expect("a member's directory").name, left.name);
    let file = old.dir.path().join("last.snap");
    let salvaged = salvage(&left.data_dir, &file, "test", 5).expect("a snapshot file");
    assert!(salvaged.header.salvaged && salvaged.header.index >= index);
    assert!(salvage(&left.data_dir, &file, "test", 5).is_err(), "a file is never replaced");
    let again = old.dir.path().join("again.snap");
    let again = salvage(&left.data_dir, &again, "test", 5).expect("a second time");
    assert_eq!(again.digest, salvaged.digest, "the directory stays what it was");

    let mut new = new_cluster(&file).await;
    goes_on(&mut new, salvaged.header.index).await;

    // The old cluster could still continue if the others were alive after all.
    for member in &mut old.members {
        member.restart().await;
    }
    let (leader, epoch) = old.open().await;
    let write = open_clients(epoch, &["still".to_owned()]);
    old.members[leader].node().propose(epoch, write).await.expect("applied");
}

/// The ledger of the golden commands as a snapshot file.
fn golden_bytes() -> Vec<u8> {
    let commands =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../ledger/tests/testdata/golden/commands.txt");
    let commands = std::fs::read_to_string(commands).expect("the golden commands");
    let mut ledger = Ledger::new([9; 16]);
    for (index, line) in (1..).zip(commands.lines()) {
        let (_, hex) = line.split_once(' ').expect("a name and bytes");
        let digits = (0..hex.len()).step_by(2);
        let bytes = digits
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16))
            .collect::<Result<Vec<u8>, _>>();
        ledger.apply(EntryId { index, term: 1 }, &bytes.expect("hex")).expect("known");
    }
    let header = SnapshotHeader {
        cluster_id: "09".repeat(16),
        member: "c1".into(),
        index: ledger.applied().index,
        term: 1,
        taken_unix_ms: 1_795_000_000_000,
        cluster_version: 1,
        program: "0.1.0".into(),
        salvaged: false,
        members: vec![],
    };
    let mut file = SnapshotFileWriter::new(Vec::new(), &header).expect("a header");
    ledger.for_each_record(|key, value| file.record(key, value).expect("a record"));
    file.finish().expect("an end").0
}

/// The file must stay readable forever: `ROLLOUT_REWRITE=1` rewrites it; use it only while no user has such a file.
#[test]
fn a_snapshot_file_of_the_first_format_is_restored() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/testdata/format-1.snap");
    if rollout_recorded::rewrites() {
        std::fs::write(&golden, golden_bytes()).expect("writable");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let members = [record("c1", 7001), record("c2", 7003), record("c3", 7005)];
    let made = |name: &str, token: &str| {
        restored(&golden, &plan(dir.path().join(name), name, &members, token))
    };
    let first = made("c1", "t").expect("a member");
    assert!(first.summary.records > 20, "{first:?}");
    let second = made("c2", "t").expect("another");
    assert_eq!((first.cluster_id, second.member_id), (second.cluster_id, 2));
    let other = made("c3", "another").expect("one of another cluster");
    assert_ne!(first.cluster_id, other.cluster_id);
    assert!(matches!(made("c1", "t"), Err(RestoreError::NotEmpty { .. })));
    assert!(matches!(made("c9", "t"), Err(RestoreError::Plan(_))));
    assert!(matches!(made("c2", ""), Err(RestoreError::Plan(_))));
}
