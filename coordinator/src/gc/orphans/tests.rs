use super::*;

const OURS: &str = "0123456789abcdef0123456789abcdef";
const OTHERS: &str = "ffffffffffffffffffffffffffffffff";
const AGE: Duration = Duration::from_secs(100);

async fn put(store: &BlobStore, folder: &str, digest: u8) -> String {
    let key = rollout_storage::segment_key("default", folder, &[digest; 32]);
    store.put(&key, bytes::Bytes::from_static(b"x")).await.expect("put");
    key
}

/// One round, with a ledger that has runs with these folders.
async fn round(orphans: &mut Orphans, runs: &[&str], now: Instant) -> usize {
    let looked = orphans.look().await.expect("listed");
    let without = looked.found.iter().filter(|f| !runs.contains(&f.folder.as_str()));
    let without: Vec<Folder> = without.cloned().collect();
    let due = orphans.judge(&looked, without, now).await;
    let count = due.len();
    orphans.remove(due, async |_| Ok(true)).await.expect("confirmed");
    count
}

#[tokio::test]
async fn only_folders_without_a_run_and_unchanged_for_long_are_removed() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = BlobStore::open(&format!("file://{}", dir.path().display())).expect("open");
    let folder = |name: &str, cluster: &str| rollout_storage::run_folder(name, cluster, 7);
    let (live, gone) = (folder("a", OURS), folder("b", OURS));
    let staged = folder("c", OURS);
    let kept = put(&store, &live, 1).await;
    let others = put(&store, &folder("b", OTHERS), 1).await;
    let unmarked = put(&store, "b/by-hand", 1).await;
    let orphan = put(&store, &gone, 1).await;
    let input = put(&store, &staged, 1).await;
    let mut orphans = Orphans::new(store.clone(), OURS, AGE);
    let begun = Instant::now();
    assert_eq!(round(&mut orphans, &[&live], begun).await, 0, "nothing was seen before");
    // A client still uploads to one of them, so its time starts again.
    let more = put(&store, &staged, 2).await;
    assert_eq!(round(&mut orphans, &[&live], begun + AGE / 2).await, 0);
    assert_eq!(round(&mut orphans, &[&live], begun + AGE).await, 1);
    let left = store.list("runs").await.expect("listed");
    assert!(!left.contains(&orphan), "{left:?}");
    for key in [&kept, &others, &unmarked, &input, &more] {
        assert!(left.contains(key), "{key} is gone");
    }
    // Its run was created at the last moment. If it is deleted later, its time starts again.
    let runs = [live.as_str(), staged.as_str()];
    assert_eq!(round(&mut orphans, &runs, begun + 2 * AGE).await, 0);
    assert_eq!(round(&mut orphans, &[&live], begun + 2 * AGE).await, 0);
    assert_eq!(round(&mut orphans, &[&live], begun + 3 * AGE).await, 1);
    assert!(store.list(&format!("runs/default/{staged}")).await.expect("listed").is_empty());
    assert!(orphans.seen.is_empty());
}

#[tokio::test]
async fn a_folder_that_gets_a_run_before_its_removal_stays() {
    let store = BlobStore::open("memory://orphans").expect("open");
    let folder = rollout_storage::run_folder("a", OURS, 1);
    let key = put(&store, &folder, 1).await;
    let mut orphans = Orphans::new(store.clone(), OURS, Duration::ZERO);
    let looked = orphans.look().await.expect("listed");
    assert_eq!(looked.found.len(), 1);
    let without = looked.found.clone();
    let due = orphans.judge(&looked, without, Instant::now()).await;
    assert_eq!(due.len(), 1);
    orphans.remove(due, async |_| Ok(false)).await.expect("answered");
    assert_eq!(store.list("runs").await.expect("listed"), [key]);
}

#[tokio::test]
async fn a_run_that_is_created_during_a_removal_keeps_the_objects_that_are_left() {
    let store = BlobStore::open("memory://late").expect("open");
    let folder = rollout_storage::run_folder("a", OURS, 1);
    let keys = (0..600u32).map(|i| format!("runs/default/{folder}/input/{i:03}"));
    let keys: Vec<String> = keys.collect();
    for key in &keys {
        store.put(key, bytes::Bytes::from_static(b"x")).await.expect("put");
    }
    let mut orphans = Orphans::new(store.clone(), OURS, Duration::ZERO);
    let looked = orphans.look().await.expect("listed");
    let due = orphans.judge(&looked, looked.found.clone(), Instant::now()).await;
    let asked = std::cell::Cell::new(0);
    let is_orphan = async |_| {
        asked.set(asked.get() + 1);
        Ok(asked.get() == 1)
    };
    orphans.remove(due, is_orphan).await.expect("answered");
    assert_eq!(store.list("runs").await.expect("listed").len(), keys.len() - REMOVED_AT_ONCE);
}

#[tokio::test]
async fn a_leader_that_is_deposed_removes_nothing_more() {
    let store = BlobStore::open("memory://deposed").expect("open");
    let folder = rollout_storage::run_folder("a", OURS, 1);
    let key = put(&store, &folder, 1).await;
    let mut orphans = Orphans::new(store.clone(), OURS, Duration::ZERO);
    let looked = orphans.look().await.expect("listed");
    let due = orphans.judge(&looked, looked.found.clone(), Instant::now()).await;
    let deposed = async |_| Err(GcError::Deposed("another member leads".to_owned()));
    orphans.remove(due, deposed).await.expect_err("it is deposed");
    assert_eq!(store.list("runs").await.expect("listed"), [key]);
}

#[tokio::test]
async fn changing_folders_do_not_hide_unchanged_ones() {
    let store = BlobStore::open("memory://crowd").expect("open");
    let folder = |name: String| rollout_storage::run_folder(&name, OURS, 1);
    let crowd: Vec<String> = (0..FOLDERS_PER_ROUND).map(|i| folder(format!("a{i}"))).collect();
    let last = folder("z".to_owned());
    let hidden = put(&store, &last, 1).await;
    let mut orphans = Orphans::new(store.clone(), OURS, AGE);
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    // An object is uploaded to each of the crowd before each round.
    for (digest, passed) in
        (0..).zip([Duration::ZERO, second, second + AGE, 2 * second + AGE, 3 * second + AGE])
    {
        for folder in &crowd {
            put(&store, folder, digest).await;
        }
        round(&mut orphans, &[], begun + passed).await;
    }
    let left = store.list("runs").await.expect("listed");
    assert!(!left.contains(&hidden), "it was never looked at");
    assert_eq!(left.len(), 5 * crowd.len(), "what changes stays");
}

#[tokio::test]
async fn a_folder_that_cannot_be_listed_does_not_block_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = BlobStore::open(&format!("file://{}", dir.path().display())).expect("open");
    let orphan = rollout_storage::run_folder("m", OURS, 1);
    put(&store, &orphan, 1).await;
    // Names that no object has, so that the folders cannot be listed: folders with the mark, runs, namespaces.
    let mark = rollout_storage::folder_mark(OURS);
    let odd: Vec<String> = (0..FOLDERS_PER_ROUND)
        .map(|i| format!("default/a/{mark}{i} by hand"))
        .chain(["default/b by hand".to_owned(), "a by hand/c".to_owned()])
        .collect();
    for name in &odd {
        let path = dir.path().join("runs").join(name);
        std::fs::create_dir_all(path).expect("created");
    }
    let mut orphans = Orphans::new(store.clone(), OURS, AGE);
    let (begun, second) = (Instant::now(), Duration::from_secs(1));
    let mut swept = 0;
    for passed in [Duration::ZERO, second, second + AGE, 2 * second + AGE] {
        swept += round(&mut orphans, &[], begun + passed).await;
    }
    assert_eq!(swept, 1, "the folders that cannot be listed hide it");
    assert!(store.list(&format!("runs/default/{orphan}")).await.expect("listed").is_empty());
    for name in &odd {
        assert!(dir.path().join("runs").join(name).is_dir(), "{name} is gone");
    }
}

#[tokio::test]
async fn a_store_that_does_not_answer_does_not_send_a_round_back_to_the_first_names() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = BlobStore::open(&format!("file://{}", dir.path().display())).expect("open");
    put(&store, &rollout_storage::run_folder("a", OURS, 1), 1).await;
    let mut orphans = Orphans::new(store, OURS, AGE);
    let after = Some(("default".to_owned(), "a".to_owned()));
    orphans.after.clone_from(&after);
    let (runs, away) = (dir.path().join("runs"), dir.path().join("away"));
    std::fs::rename(&runs, &away).expect("renamed");
    std::fs::write(&runs, "no directory").expect("written");
    assert!(orphans.look().await.is_err(), "the store answers");
    assert_eq!(orphans.after, after);
    std::fs::remove_file(&runs).expect("removed");
    std::fs::rename(&away, &runs).expect("renamed");
    assert!(orphans.look().await.expect("listed").found.is_empty(), "what is before is looked at");
}

#[tokio::test]
async fn folders_that_are_gone_are_forgotten() {
    let store = BlobStore::open("memory://gone").expect("open");
    let folder = |name: &str| rollout_storage::run_folder(name, OURS, 1);
    let mut orphans = Orphans::new(store.clone(), OURS, AGE);
    let now = Instant::now();
    put(&store, &folder("stays"), 1).await;
    let key = put(&store, &folder("goes"), 1).await;
    round(&mut orphans, &[], now).await;
    assert_eq!(orphans.seen.len(), 2);
    remove_all(&store, vec![key]).await.expect("removed");
    round(&mut orphans, &[], now).await;
    let seen: Vec<&str> = orphans.seen.keys().map(|f| f.folder.as_str()).collect();
    assert_eq!(seen, [folder("stays")]);
}

#[test]
fn a_round_forgets_only_folders_in_the_range_that_it_scanned() {
    let at = |name: &str| Some(("default".to_owned(), name.to_owned()));
    let looked = ScanResult { found: Vec::new(), range: (at("b"), at("d")) };
    for (name, covered) in [("b", false), ("b-", true), ("c", true), ("d", true), ("d-", false)] {
        let folder = rollout_storage::run_folder(name, OURS, 1);
        let folder = Folder { namespace: "default".to_owned(), folder };
        assert_eq!(looked.covers(&folder), covered, "{name}");
    }
}
