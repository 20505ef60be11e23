//! The ledger's image: atomic batches, snapshots, and installation that a crash cannot tear.

use std::fs;
use std::path::Path;

use rollout_storage::{ImageBatch, ImageStore, Manifest, Reclaim, Snapshot, Staged, StorageError};

fn put(image: &ImageStore, key: &str, value: &str) {
    let puts = vec![(key.as_bytes().to_vec(), value.as_bytes().to_vec())];
    image.write(ImageBatch { puts, ..ImageBatch::default() }).unwrap();
}

fn content(image: &ImageStore) -> Result<Vec<(String, String)>, StorageError> {
    let mut found = Vec::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    image.for_each(|key, value| {
        found.push((text(key), text(value)));
        Ok::<_, StorageError>(())
    })?;
    Ok(found)
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// Sends a snapshot to another store, up to the step before its installation.
fn transfer(snapshot: &Snapshot, to: &ImageStore) -> Staged {
    let manifest = snapshot.manifest().unwrap();
    let staging = to.stage().unwrap();
    for file in &manifest.files {
        let bytes = fs::read(snapshot.dir().join(&file.name)).unwrap();
        let middle = bytes.len() / 2;
        // Pieces may arrive in any order.
        staging.write_file(&file.name, middle as u64, &bytes[middle..]).unwrap();
        staging.write_file(&file.name, 0, &bytes[..middle]).unwrap();
    }
    staging.finish(&manifest).unwrap()
}

#[test]
fn a_batch_deletes_before_it_puts_and_survives_a_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    for key in ["a/1", "a/2", "b/1", "c"] {
        put(&image, key, "old");
    }
    let batch = ImageBatch {
        puts: vec![(b"a/3".to_vec(), b"new".to_vec()), (b"c".to_vec(), b"new".to_vec())],
        deletes: vec![b"b/1".to_vec(), b"c".to_vec()],
        delete_prefixes: vec![b"a/".to_vec()],
    };
    image.write(batch).unwrap();
    let expected = pairs(&[("a/3", "new"), ("c", "new")]);
    assert_eq!(content(&image).unwrap(), expected);
    drop(image);
    let image = ImageStore::open(dir.path()).unwrap();
    assert_eq!(content(&image).unwrap(), expected);
    assert_eq!(image.get(b"c").unwrap(), Some(b"new".to_vec()));
    assert_eq!(image.get(b"b/1").unwrap(), None);
    let mut keys = Vec::new();
    image
        .for_each_prefix(b"a", |key, _| {
            keys.push(key.to_vec());
            Ok::<_, StorageError>(())
        })
        .unwrap();
    assert_eq!(keys, [b"a/3"]);
}

#[test]
fn prefixes_without_a_successor_are_deleted_too() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    let key = |bytes: &[u8]| (bytes.to_vec(), b"x".to_vec());
    let puts = vec![key(&[1]), key(&[0xfe, 0xff]), key(&[0xff, 0xff, 1]), key(&[0xff, 0xff, 0xff])];
    image.write(ImageBatch { puts, ..ImageBatch::default() }).unwrap();
    let delete = |prefix: &[u8]| ImageBatch {
        delete_prefixes: vec![prefix.to_vec()],
        ..ImageBatch::default()
    };
    image.write(delete(&[0xff, 0xff])).unwrap();
    assert_eq!(content(&image).unwrap().len(), 2);
    image.write(delete(&[0xfe, 0xff])).unwrap();
    assert_eq!(content(&image).unwrap().len(), 1);
    image.write(delete(&[])).unwrap();
    assert!(content(&image).unwrap().is_empty());
}

#[test]
fn a_snapshot_keeps_what_was_there_and_lives_as_long_as_its_handle() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    assert!(image.current_snapshot().is_none());
    put(&image, "k", "first");
    let first = image.snapshot().unwrap();
    put(&image, "k", "second");
    let second = image.snapshot().unwrap();
    let value = |snapshot: &Snapshot| snapshot.open_image().unwrap().get(b"k").unwrap().unwrap();
    assert_eq!(value(&first), b"first");
    assert_eq!(value(&second), b"second");
    assert!(first.manifest().unwrap().total_bytes() > 0);
    assert_eq!(first.manifest().unwrap(), Manifest { files: first.manifest().unwrap().files });
    let old = first.dir().to_owned();
    assert!(old.exists());
    drop(first);
    assert!(!old.exists());
    let manifest = second.manifest().unwrap();
    drop((second, image));
    let image = ImageStore::open(dir.path()).unwrap();
    let again = image.current_snapshot().unwrap();
    assert_eq!(value(&again), b"second");
    assert_eq!(again.manifest().unwrap(), manifest);
}

#[test]
fn an_installed_image_replaces_the_old_one_for_every_clone() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = ImageStore::open(from.path()).unwrap();
    put(&source, "meta", "42");
    for number in 0..100 {
        put(&source, &format!("row/{number:03}"), "value");
    }
    let target = ImageStore::open(to.path()).unwrap();
    let clone = target.clone();
    put(&target, "stale", "x");
    let staged = transfer(&source.snapshot().unwrap(), &target);
    assert_eq!(staged.get(b"meta").unwrap(), Some(b"42".to_vec()));
    assert_eq!(target.get(b"stale").unwrap(), Some(b"x".to_vec()));
    target.install(staged).unwrap();
    assert_eq!(content(&clone).unwrap(), content(&source).unwrap());
    put(&clone, "after", "y");
    drop((target, clone));
    let target = ImageStore::open(to.path()).unwrap();
    assert_eq!(content(&target).unwrap().len(), 102);
    assert_eq!(image_dirs(to.path()), 1);
}

#[test]
fn a_received_image_that_differs_from_its_manifest_is_refused() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = ImageStore::open(from.path()).unwrap();
    put(&source, "k", "v");
    let snapshot = source.snapshot().unwrap();
    let manifest = snapshot.manifest().unwrap();
    let target = ImageStore::open(to.path()).unwrap();
    let receive = |skip: usize, flip: usize| {
        let staging = target.stage().unwrap();
        for (number, file) in manifest.files.iter().enumerate() {
            let mut bytes = fs::read(snapshot.dir().join(&file.name)).unwrap();
            if number == flip {
                bytes[0] ^= 1;
            }
            if number != skip {
                staging.write_file(&file.name, 0, &bytes).unwrap();
            }
        }
        staging
    };
    let never = usize::MAX;
    for (number, file) in manifest.files.iter().enumerate() {
        if file.len == 0 {
            // A sender sends no piece of an empty file.
            receive(number, never).finish(&manifest).unwrap();
            continue;
        }
        for (skip, flip) in [(number, never), (never, number)] {
            let refused = receive(skip, flip).finish(&manifest);
            assert!(matches!(refused, Err(StorageError::Refused { .. })), "{}", file.name);
        }
    }
    let extra = receive(never, never);
    extra.write_file("999999.sst", 0, b"more").unwrap();
    assert!(extra.finish(&manifest).is_err());
    for name in ["../CURRENT", "/etc/passwd", "", ".", "x.sst", "LOCK", "1.sst/..", "IDENTITY"] {
        assert!(target.stage().unwrap().write_file(name, 0, b"x").is_err(), "{name:?}");
    }
    assert!(
        fs::read_dir(to.path())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with("staging") })
    );
}

/// Every state that a crash can leave between the steps of an installation.
#[test]
fn a_crash_between_the_steps_of_an_installation_leaves_the_old_or_the_new_image() {
    let (from, base) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = ImageStore::open(from.path()).unwrap();
    put(&source, "k", "new");
    let old = base.path().join("old");
    {
        let image = ImageStore::open(&old).unwrap();
        put(&image, "k", "old");
        // Not dropped, so that the staged directory stays, as after an interrupted installation.
        let staged = transfer(&source.snapshot().unwrap(), &image);
        std::mem::forget(staged);
    }
    let name = |prefix: &str| {
        let entries = fs::read_dir(&old).unwrap();
        let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.find(|name| name.starts_with(prefix)).unwrap()
    };
    let (staging, live) = (name("staging"), name("image"));
    let new = base.path().join("new");
    copy_dir(&old, &new);
    {
        let image = ImageStore::open(&new).unwrap();
        image.install(transfer(&source.snapshot().unwrap(), &image)).unwrap();
    }
    let installed = fs::read_dir(&new)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.starts_with("image"))
        .unwrap();
    let state = |step: usize| {
        let root = base.path().join(format!("step-{step}"));
        copy_dir(&old, &root);
        match step {
            // While files arrive.
            0 => fs::remove_file(root.join(&staging).join("SYNCED")).unwrap(),
            // Complete, not renamed.
            1 => {}
            // Renamed, perhaps opened once, the pointer not written.
            2 => fs::rename(root.join(&staging), root.join(&installed)).unwrap(),
            // The pointer half written beside its place.
            3 => {
                fs::rename(root.join(&staging), root.join(&installed)).unwrap();
                fs::write(root.join("CURRENT.tmp"), b"ima").unwrap();
            }
            // The pointer moved, the old image still there.
            4 => {
                fs::rename(root.join(&staging), root.join(&installed)).unwrap();
                fs::copy(new.join("CURRENT"), root.join("CURRENT")).unwrap();
            }
            // The old image half removed.
            _ => {
                fs::rename(root.join(&staging), root.join(&installed)).unwrap();
                fs::copy(new.join("CURRENT"), root.join("CURRENT")).unwrap();
                fs::remove_dir_all(root.join(&live).join("db")).unwrap();
            }
        }
        root
    };
    for step in 0..6 {
        let root = state(step);
        let expected = if step < 4 { "old" } else { "new" };
        for _ in 0..2 {
            let image = ImageStore::open(&root).unwrap();
            assert_eq!(content(&image).unwrap(), pairs(&[("k", expected)]), "step {step}");
            drop(image);
            assert_eq!(image_dirs(&root), 1, "step {step}");
        }
        let image = ImageStore::open(&root).unwrap();
        image.install(transfer(&source.snapshot().unwrap(), &image)).unwrap();
        assert_eq!(content(&image).unwrap(), pairs(&[("k", "new")]), "step {step}");
    }
}

#[test]
fn an_interrupted_first_creation_is_done_again_but_a_lost_pointer_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(ImageStore::open(dir.path()).unwrap());
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    assert_eq!(image_dirs(dir.path()), 1);
    put(&image, "k", "v");
    drop(image);
    let pointer = fs::read(dir.path().join("CURRENT")).unwrap();
    fs::remove_file(dir.path().join("CURRENT")).unwrap();
    assert!(ImageStore::open(dir.path()).unwrap_err().is_corrupt());
    for at in 0..pointer.len() {
        let mut bad = pointer.clone();
        bad[at] ^= 4;
        fs::write(dir.path().join("CURRENT"), bad).unwrap();
        assert!(ImageStore::open(dir.path()).unwrap_err().is_corrupt(), "byte {at}");
    }
    fs::write(dir.path().join("CURRENT"), pointer).unwrap();
    assert_eq!(content(&ImageStore::open(dir.path()).unwrap()).unwrap(), pairs(&[("k", "v")]));
}

#[test]
fn leftovers_of_an_interrupted_snapshot_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    drop(ImageStore::open(dir.path()).unwrap());
    for name in ["tmp-000009", "tmp-000009.tmp"] {
        fs::create_dir(dir.path().join("snapshots").join(name)).unwrap();
    }
    let image = ImageStore::open(dir.path()).unwrap();
    assert!(image.current_snapshot().is_none());
    assert_eq!(fs::read_dir(dir.path().join("snapshots")).unwrap().count(), 0);
    put(&image, "k", "v");
    image.snapshot().unwrap();
}

#[test]
fn a_flipped_bit_anywhere_in_the_image_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    for number in 0..200 {
        put(&image, &format!("row/{number:03}"), &"value ".repeat(number % 20));
    }
    // A snapshot moves data to sorted files; the rest stays in the write-ahead log.
    image.snapshot().unwrap();
    put(&image, "row/200", "last");
    let expected = content(&image).unwrap();
    drop(image);
    let live = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .find(|name| name.starts_with("image"))
        .unwrap();
    let (mut flipped, mut detected) = (0, 0);
    for entry in fs::read_dir(dir.path().join(&live).join("db")).unwrap() {
        let path = entry.unwrap().path();
        let len = fs::metadata(&path).unwrap().len() as usize;
        if len == 0 || !["log", "sst"].iter().any(|end| path.extension() == Some(end.as_ref())) {
            continue;
        }
        for at in (0..len).step_by((len / 30).max(1)).chain([len - 1]) {
            flipped += 1;
            let copy = tempfile::tempdir().unwrap();
            copy_dir(dir.path(), copy.path());
            let file = copy.path().join(&live).join("db").join(path.file_name().unwrap());
            let mut bytes = fs::read(&file).unwrap();
            bytes[at] ^= 0x20;
            fs::write(&file, bytes).unwrap();
            match ImageStore::open(copy.path()).and_then(|image| content(&image)) {
                // A byte without content (padding, statistics) may change without effect.
                Ok(found) => assert_eq!(found, expected, "{} at {at}", path.display()),
                Err(_) => detected += 1,
            }
        }
    }
    assert!(flipped > 50 && detected * 10 > flipped * 4, "{detected} of {flipped}");
}

#[test]
fn a_record_under_the_wrong_key_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    put(&image, "a", "1");
    let live = dir.path().join(format!("image-{:06}", 1)).join("db");
    drop(image);
    let db = rocksdb::DB::open_default(&live).unwrap();
    db.put("b", db.get("a").unwrap().unwrap()).unwrap();
    drop(db);
    let image = ImageStore::open(dir.path()).unwrap();
    let error = content(&image).unwrap_err();
    assert!(error.is_corrupt() && error.to_string().contains("record b"), "{error}");
    assert!(image.get(b"b").unwrap_err().is_corrupt());
    assert_eq!(image.get(b"a").unwrap(), Some(b"1".to_vec()));
}

fn image_dirs(root: &Path) -> usize {
    let entries = fs::read_dir(root).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("image-") || name.starts_with("staging-")).count()
}

fn copy_dir(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_dir(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// Bytes of the tables below `dir`, counting each file once however many names it has.
fn table_bytes(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut tables = std::collections::BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
            let (path, meta) = (entry.path(), entry.metadata().unwrap());
            if meta.is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|extension| extension == "sst") {
                tables.insert(meta.ino(), meta.len());
            }
        }
    }
    tables.into_values().sum()
}

/// 2,000 rows of one incompressible kilobyte, in tables, as a snapshot has them.
fn run_of_two_megabytes(image: &ImageStore, prefix: &str) {
    let mut random = 7_u64;
    let mut value = || {
        let bytes = std::iter::repeat_with(|| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        });
        bytes.take(1024).collect::<Vec<_>>()
    };
    let puts = (0..2000).map(|row| (format!("{prefix}{row:04}").into_bytes(), value())).collect();
    image.write(ImageBatch { puts, ..ImageBatch::default() }).unwrap();
    image.snapshot().unwrap();
}

#[test]
fn records_removed_by_prefix_free_their_space_when_reclaimed() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    put(&image, "kept", "value");
    run_of_two_megabytes(&image, "run/");
    assert!(!image.reclaim_due(), "what is only written needs no reclaiming");
    let delete_prefixes = vec![b"run/".to_vec()];
    image.write(ImageBatch { delete_prefixes, ..ImageBatch::default() }).unwrap();
    assert!(image.reclaim_due());
    image.snapshot().unwrap();
    assert!(table_bytes(dir.path()) > 2_000_000, "a snapshot alone gives nothing back");
    drop(image);
    let image = ImageStore::open(dir.path()).unwrap();
    assert!(image.reclaim_due(), "it is known after an opening too");
    let reclaimed = image.reclaim().unwrap();
    let Reclaim::Done { before_bytes, after_bytes } = reclaimed else { panic!("{reclaimed:?}") };
    assert!(before_bytes > 2_000_000 && after_bytes < 4096, "{reclaimed:?}");
    assert_eq!(image.reclaim().unwrap(), Reclaim::Nothing);
    assert!(!image.reclaim_due());
    image.snapshot().unwrap();
    assert!(table_bytes(dir.path()) < 8192, "{}", table_bytes(dir.path()));
    assert_eq!(content(&image).unwrap(), pairs(&[("kept", "value")]));
    drop(image);
    let image = ImageStore::open(dir.path()).unwrap();
    assert_eq!(content(&image).unwrap(), pairs(&[("kept", "value")]));
    assert!(!image.reclaim_due(), "and where nothing is left to do, nothing is done");
}

#[test]
fn only_tables_with_removed_records_are_rewritten() {
    let dir = tempfile::tempdir().unwrap();
    let image = ImageStore::open(dir.path()).unwrap();
    let remove = |prefix: &str| {
        let delete_prefixes = vec![prefix.as_bytes().to_vec()];
        image.write(ImageBatch { delete_prefixes, ..ImageBatch::default() }).unwrap();
    };
    let tables = || -> std::collections::BTreeSet<String> {
        let files = image.snapshot().unwrap().manifest().unwrap().files;
        files.into_iter().map(|file| file.name).filter(|name| name.ends_with(".sst")).collect()
    };
    run_of_two_megabytes(&image, "run1/");
    remove("gone/");
    image.reclaim().unwrap();
    let settled = tables();
    run_of_two_megabytes(&image, "run2/");
    remove("run2/");
    assert!(matches!(image.reclaim().unwrap(), Reclaim::Done { .. }));
    assert_eq!(
        tables(),
        settled,
        "the first run's are as they were, and of the second there are none"
    );
    for run in 0..100 {
        remove(&format!("none{run}/"));
    }
    assert!(matches!(image.reclaim().unwrap(), Reclaim::Done { .. }), "however many there are");
    assert_eq!(content(&image).unwrap().len(), 2000);
}

#[test]
fn an_image_is_installed_while_the_old_one_is_reclaimed() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let source = ImageStore::open(from.path()).unwrap();
    put(&source, "new", "image");
    let target = ImageStore::open(to.path()).unwrap();
    for run in 0..8 {
        run_of_two_megabytes(&target, &format!("run{run}/"));
    }
    let staged = transfer(&source.snapshot().unwrap(), &target);
    let delete_prefixes = (0..8).map(|run| format!("run{run}/").into_bytes()).collect();
    target.write(ImageBatch { delete_prefixes, ..ImageBatch::default() }).unwrap();
    let reclaiming = target.clone();
    let reclaim =
        std::thread::spawn(move || while reclaiming.reclaim().unwrap() != Reclaim::Nothing {});
    target.install(staged).unwrap();
    reclaim.join().unwrap();
    assert_eq!(content(&target).unwrap(), pairs(&[("new", "image")]));
    put(&target, "after", "it");
    drop(target);
    let target = ImageStore::open(to.path()).unwrap();
    assert_eq!(content(&target).unwrap(), pairs(&[("after", "it"), ("new", "image")]));
    assert_eq!(image_dirs(to.path()), 1);
}
