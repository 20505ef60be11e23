//! Objects: durable, verified, and with errors that say whether to retry.

use bytes::Bytes;
use rollout_storage::{BlobError, BlobStore, part_key, segment_key};

/// One store of each kind that needs no network.
fn stores() -> Vec<(BlobStore, Option<tempfile::TempDir>)> {
    let dir = tempfile::tempdir().unwrap();
    let file = BlobStore::open(&format!("file://{}/deep/below", dir.path().display())).unwrap();
    let unique = format!("memory://{}/prefix", dir.path().file_name().unwrap().to_string_lossy());
    vec![(file, Some(dir)), (BlobStore::open(&unique.replace('.', "x")).unwrap(), None)]
}

#[tokio::test]
async fn an_object_comes_back_as_it_was_and_puts_are_idempotent() {
    for (store, _dir) in stores() {
        let bytes = Bytes::from_static(b"some rows");
        let digest = *blake3::hash(&bytes).as_bytes();
        let key = part_key("default", "run-7", &digest);
        for _ in 0..2 {
            let put = store.put(&key, bytes.clone()).await.unwrap();
            assert_eq!((put.key.as_str(), put.digest, put.len), (key.as_str(), digest, 9));
            assert_eq!(store.get(&key, &digest).await.unwrap(), bytes);
        }
        let same = BlobStore::open(store.url()).unwrap();
        assert_eq!(same.get(&key, &digest).await.unwrap(), bytes);
        let empty = store.put("runs/7/empty", Bytes::new()).await.unwrap();
        assert!(store.get("runs/7/empty", &empty.digest).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_missing_and_a_changed_object_have_different_errors() {
    for (store, _dir) in stores() {
        let put = store.put("runs/1/parts/a", Bytes::from_static(b"right")).await.unwrap();
        let missing = store.get("runs/1/parts/b", &put.digest).await.unwrap_err();
        assert!(matches!(missing, BlobError::Missing { .. }) && !missing.retryable());
        store.put("runs/1/parts/a", Bytes::from_static(b"wrong")).await.unwrap();
        let corrupt = store.get("runs/1/parts/a", &put.digest).await.unwrap_err();
        assert!(matches!(corrupt, BlobError::Corrupt { .. }) && !corrupt.retryable());
        assert!(corrupt.to_string().contains("runs/1/parts/a"));
        // Writing the right bytes again repairs it.
        store.put("runs/1/parts/a", Bytes::from_static(b"right")).await.unwrap();
        assert_eq!(store.get("runs/1/parts/a", &put.digest).await.unwrap(), "right");
    }
}

#[tokio::test]
async fn a_flipped_byte_in_a_file_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let store = BlobStore::open(&format!("file://{}", dir.path().display())).unwrap();
    let put = store.put("runs/1/parts/a", Bytes::from_static(b"twelve bytes")).await.unwrap();
    for at in 0..12 {
        let mut bytes = b"twelve bytes".to_vec();
        bytes[at] ^= 1;
        std::fs::write(dir.path().join("runs/1/parts/a"), bytes).unwrap();
        let found = store.get("runs/1/parts/a", &put.digest).await;
        assert!(matches!(found, Err(BlobError::Corrupt { .. })), "byte {at}");
    }
    std::fs::write(dir.path().join("runs/1/parts/a"), b"twelve").unwrap();
    assert!(store.get("runs/1/parts/a", &put.digest).await.is_err());
}

#[tokio::test]
async fn a_listing_shows_objects_only_and_deleting_twice_is_no_error() {
    for (store, dir) in stores() {
        assert!(store.list("runs/3").await.unwrap().is_empty(), "{}", store.url());
        for key in ["runs/3/parts/b", "runs/3/parts/a", "runs/3/segments/x", "runs/33/parts/c"] {
            store.put(key, Bytes::from_static(b"x")).await.unwrap();
        }
        if let Some(dir) = &dir {
            // The leftover of a writer that died.
            std::fs::write(dir.path().join("deep/below/runs/3/parts/.tmp-1"), b"half").unwrap();
        }
        assert_eq!(store.folders("runs").await.unwrap(), ["3", "33"], "{}", store.url());
        assert_eq!(store.folders("runs/3").await.unwrap(), ["parts", "segments"]);
        assert!(store.folders("runs/4").await.unwrap().is_empty());
        let found = store.list("runs/3/").await.unwrap();
        assert_eq!(
            found,
            ["runs/3/parts/a", "runs/3/parts/b", "runs/3/segments/x"],
            "{}",
            store.url()
        );
        for _ in 0..2 {
            store.delete("runs/3/parts/a").await.unwrap();
        }
        assert_eq!(store.list("runs/3/parts").await.unwrap(), ["runs/3/parts/b"]);
    }
}

#[tokio::test]
async fn lasting_errors_are_not_called_retryable() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("runs"), b"a file where a folder should be").unwrap();
    let store = BlobStore::open(&format!("file://{}", dir.path().display())).unwrap();
    let error = store.put("runs/1/parts/a", Bytes::from_static(b"x")).await.unwrap_err();
    assert!(!error.retryable(), "{error}");
    for key in ["../up", "/abs", "a//b", ""] {
        let refused = store.put(key, Bytes::new()).await;
        assert!(matches!(refused, Err(BlobError::Key { .. })), "{key:?}");
    }
}

#[test]
fn urls_that_cannot_work_are_refused() {
    for url in [
        "nonsense",
        "ftp://host/dir",
        "file://host/dir",
        "s3://key:secret@bucket/prefix",
        "s3://bucket/prefix?token=x",
    ] {
        let refused = BlobStore::open(url);
        assert!(matches!(refused, Err(BlobError::Url { .. })), "{url}");
    }
}

#[test]
fn keys_of_different_contents_differ() {
    let (a, b) = ([0; 32], [1; 32]);
    assert_ne!(segment_key("default", "r", &a), segment_key("default", "r", &b));
    assert_ne!(part_key("default", "r", &a), part_key("default", "s", &a));
    assert_ne!(part_key("default", "r", &a), segment_key("default", "r", &a));
}

/// Concurrent writers of one object leave one complete object.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_puts_of_one_object_all_succeed() {
    for (store, _dir) in stores() {
        let bytes = Bytes::from(vec![7u8; 100_000]);
        let digest = *blake3::hash(&bytes).as_bytes();
        let puts: Vec<_> = (0..16)
            .map(|_| {
                let (store, bytes) = (store.clone(), bytes.clone());
                tokio::spawn(async move { store.put("runs/1/parts/same", bytes).await })
            })
            .collect();
        for put in puts {
            put.await.unwrap().unwrap();
        }
        assert_eq!(store.get("runs/1/parts/same", &digest).await.unwrap(), bytes);
        assert_eq!(store.list("runs").await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn an_object_that_goes_up_in_parts_is_whole() {
    let store = BlobStore::open("memory://parts/prefix").unwrap();
    let bytes: Vec<u8> = (0..(40 << 20) + 3u32).map(|n| (n / 1000) as u8).collect();
    let blob = store.put("training/x", bytes.clone().into()).await.unwrap();
    assert_eq!(blob.len, bytes.len() as u64);
    assert_eq!(store.get("training/x", &blob.digest).await.unwrap(), bytes);
    assert_eq!(store.list("training").await.unwrap(), ["training/x"]);
}
