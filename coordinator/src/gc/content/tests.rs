use super::*;

const CLUSTER: &str = "0123456789abcdef0123456789abcdef";
const HOUR: u64 = limits::CONTENT_WRITE_MS_MAX;

fn folder(id: &str) -> Folder {
    ("default".into(), format!("0123456789abcdef-{id}"))
}

fn sweep() -> (tempfile::TempDir, Sweep) {
    let dir = tempfile::tempdir().expect("a directory");
    let url = format!("file://{}", dir.path().display());
    let store = BlobStore::open(&url).expect("a store");
    (dir, Sweep::new(store, CLUSTER))
}

async fn put(store: &BlobStore, (namespace, folder): &Folder, text: &'static str) {
    let digest = *blake3::hash(text.as_bytes()).as_bytes();
    let key = rollout_storage::content_key(namespace, folder, &digest);
    store.put(&key, text.into()).await.expect("stored");
}

#[test]
fn a_folder_is_swept_only_when_no_operation_can_name_it_any_more() {
    let (_dir, mut sweep) = sweep();
    let due =
        |sweep: &mut Sweep, folders: &[Folder], clock| sweep.due(folders.to_vec(), LedgerMs(clock));
    let (a, b) = (folder("file-a"), folder("file-b"));
    assert!(due(&mut sweep, std::slice::from_ref(&a), 10).is_empty());
    assert!(due(&mut sweep, &[a.clone(), b.clone()], 10 + HOUR).is_empty(), "still just allowed");
    assert_eq!(due(&mut sweep, &[a.clone(), b.clone()], 11 + HOUR), std::slice::from_ref(&a));
    // A folder that was named meanwhile starts again.
    assert!(due(&mut sweep, &[], 12 + HOUR).is_empty());
    assert!(due(&mut sweep, std::slice::from_ref(&b), 11 + 3 * HOUR).is_empty());
    assert_eq!(due(&mut sweep, std::slice::from_ref(&b), 12 + 4 * HOUR), [b]);
}

#[test]
fn more_folders_than_are_remembered_are_swept_in_turn() {
    let (_dir, mut sweep) = sweep();
    let mut all: Vec<_> = (0..SEEN_MAX + 10).map(|n| folder(&format!("file-{n}"))).collect();
    let mut clock = 0;
    let mut rounds = 0;
    while !all.is_empty() {
        let due = sweep.due(all.clone(), LedgerMs(clock));
        all.retain(|folder| !due.contains(folder));
        clock += HOUR + 1;
        rounds += 1;
        assert!(rounds < 10, "{} folders remain", all.len());
    }
}

#[tokio::test]
async fn only_folders_with_the_mark_of_this_cluster_are_found_and_removed_whole() {
    let (dir, sweep) = sweep();
    let (own, foreign) = (folder("file-a"), ("default".into(), "fedcba9876543210-file-a".into()));
    for text in ["one", "two"] {
        put(&sweep.store, &own, text).await;
    }
    put(&sweep.store, &foreign, "other").await;
    assert_eq!(sweep.marked("default").await.expect("listed"), std::slice::from_ref(&own));
    assert_eq!(sweep.id_in(&own.1), "file-a");
    let (gone, failed) = remove_folders(&sweep.store, vec![own.clone(), folder("none")]).await;
    assert!(failed.is_none(), "{failed:?}");
    assert_eq!(gone["default"].len(), 2, "a folder without objects is gone too");
    assert!(!dir.path().join("files/default").join(&own.1).exists());
    assert_eq!(sweep.store.list(CONTENT_ROOT).await.expect("listed").len(), 1);
}
