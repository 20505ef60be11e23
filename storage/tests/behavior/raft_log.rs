//! The Raft log: order, bounds, and damage that is never skipped.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use proptest::prelude::*;
use rollout_storage::{LogBounds, LogOptions, RaftLog, StorageError};

fn small() -> LogOptions {
    LogOptions { write_buffer_bytes: 64 << 10, ..LogOptions::default() }
}

fn open(dir: &Path) -> RaftLog {
    RaftLog::open(dir, small()).unwrap()
}

fn payload(index: u64) -> Vec<u8> {
    format!("entry {index} {}", "x".repeat(index as usize % 90)).into_bytes()
}

fn fill(log: &RaftLog, first: u64, last: u64) {
    let entries: Vec<_> = (first..=last).map(payload).collect();
    log.append(first, &entries).unwrap();
    sync(log);
}

/// Entries 0 to 99, of which the one at `large` fills what an opening checks: it checks none before.
fn fill_around(log: &RaftLog, large: u64) {
    fill(log, 0, large - 1);
    log.append(large, &[vec![7; (1 << 20) + 1]]).unwrap();
    fill(log, large + 1, 99);
}

fn sync(log: &RaftLog) {
    let (sender, receiver) = channel();
    log.sync(Box::new(move |result| sender.send(result).unwrap()));
    receiver.recv_timeout(Duration::from_secs(60)).unwrap().unwrap();
}

fn indexes(log: &RaftLog) -> Vec<u64> {
    let found = log.read(0, u64::MAX, usize::MAX).unwrap();
    found
        .into_iter()
        .map(|(index, bytes)| (bytes == payload(index)).then_some(index).unwrap())
        .collect()
}

#[test]
fn entries_survive_a_reopening_and_bounds_agree() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    assert_eq!(log.bounds(), LogBounds::default());
    fill(&log, 0, 99);
    log.close();
    let log = open(dir.path());
    assert_eq!(indexes(&log), (0..100).collect::<Vec<_>>());
    assert_eq!(log.bounds().last, Some((99, payload(99))));
    log.truncate_after(Some(49)).unwrap();
    log.purge(19, b"mark").unwrap();
    let expected =
        LogBounds { purged: Some((19, b"mark".to_vec())), last: Some((49, payload(49))) };
    assert_eq!(log.bounds(), expected);
    fill(&log, 50, 60);
    drop(log);
    let log = open(dir.path());
    assert_eq!(indexes(&log), (20..=60).collect::<Vec<_>>());
    assert_eq!(log.bounds().purged, expected.purged);
}

#[test]
fn an_emptied_log_continues_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 5, 9);
    log.truncate_after(None).unwrap();
    assert_eq!(log.bounds().last, None);
    fill(&log, 7, 9);
    log.purge(30, b"beyond the last").unwrap();
    assert_eq!(log.bounds().last, None);
    assert!(log.append(30, &[payload(30)]).is_err());
    sync(&log);
    drop(log);
    let log = open(dir.path());
    assert_eq!(log.bounds().purged, Some((30, b"beyond the last".to_vec())));
    assert!(log.append(32, &[payload(32)]).is_err());
    fill(&log, 31, 32);
    log.purge(20, b"older").unwrap();
    assert_eq!(indexes(&log), [31, 32]);
}

#[test]
fn an_append_out_of_order_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 0, 9);
    for index in [0, 9, 11, u64::MAX] {
        let refused = log.append(index, &[payload(index % 100)]);
        assert!(matches!(refused, Err(StorageError::OutOfOrder { expected: 10, .. })), "{index}");
    }
    log.purge(3, b"m").unwrap();
    assert!(log.truncate_after(Some(2)).is_err());
    log.truncate_after(Some(100)).unwrap();
    assert_eq!(indexes(&log), (4..10).collect::<Vec<_>>());
}

#[test]
fn a_byte_cap_never_makes_an_existing_range_empty() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 0, 200);
    for from in [0, 100, 199, 200] {
        let found = log.read(from, 201, 0).unwrap();
        assert_eq!(found, [(from, payload(from))]);
    }
    assert!(log.read(201, 300, 1000).unwrap().is_empty());
    assert!(log.read(10, 10, 1000).unwrap().is_empty());
    let some = log.read(150, 201, 500).unwrap();
    assert!(some.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() <= 500);
    assert_eq!(some[0].0, 150);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn a_read_returns_exactly_what_was_neither_cut_nor_purged(
        ranges in prop::collection::vec((0u64..300, 0u64..300, 0usize..3000), 40),
        cut in 150u64..250,
        purged in 0u64..100,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let log = open(dir.path());
        fill(&log, 0, 249);
        log.truncate_after(Some(cut)).unwrap();
        log.purge(purged, b"m").unwrap();
        fill(&log, cut + 1, cut + 20);
        let bounds = log.bounds();
        for (from, end, bytes) in ranges {
            let mut expected = Vec::new();
            let mut total = 0;
            for index in from.max(purged + 1)..end.min(cut + 21) {
                total += payload(index).len();
                if total > bytes && !expected.is_empty() {
                    break;
                }
                expected.push((index, payload(index)));
            }
            prop_assert_eq!(log.read(from, end, bytes).unwrap(), expected);
        }
        drop(log);
        let log = open(dir.path());
        prop_assert_eq!(log.bounds(), bounds);
        prop_assert_eq!(indexes(&log), (purged + 1..=cut + 20).collect::<Vec<_>>());
    }
}

#[test]
fn callbacks_run_in_order_and_cover_votes_and_entries() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let (sender, receiver) = channel();
    for number in 0..200u64 {
        let sender = sender.clone();
        let done = Box::new(move |result: std::io::Result<()>| {
            result.unwrap();
            sender.send(number).unwrap();
        });
        if number % 3 == 0 {
            log.put_meta_durable("vote", &number.to_le_bytes(), done).unwrap();
        } else {
            log.append(log.bounds().last.map_or(0, |(index, _)| index + 1), &[payload(1)]).unwrap();
            log.sync(done);
        }
    }
    log.put_meta("committed", b"7").unwrap();
    let order: Vec<u64> =
        (0..200).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    assert_eq!(order, (0..200).collect::<Vec<_>>());
    let stats = log.stats();
    assert!(stats.fsyncs > 0 && stats.fsyncs <= 200 && stats.in_flight_since.is_none());
    assert_eq!(stats.fsync_us.count, stats.fsyncs);
    assert_eq!(stats.appended_entries, 133);
    log.close();
    let log = open(dir.path());
    assert_eq!(log.meta("vote").unwrap(), Some(198u64.to_le_bytes().to_vec()));
    assert_eq!(log.meta("committed").unwrap(), Some(b"7".to_vec()));
    assert_eq!(log.meta("nothing").unwrap(), None);
}

#[test]
fn a_closed_log_refuses_to_acknowledge() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    log.clone().close();
    let (sender, receiver) = channel();
    log.sync(Box::new(move |result| sender.send(result.is_err()).unwrap()));
    assert!(receiver.recv_timeout(Duration::from_secs(60)).unwrap());
}

#[test]
fn a_read_during_purges_and_truncations_sees_no_hole() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 0, 3000);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while log.bounds().purged.is_none_or(|(index, _)| index < 2400) {
                let found = log.read(0, u64::MAX, usize::MAX).unwrap();
                assert!(found.windows(2).all(|pair| pair[0].0 + 1 == pair[1].0));
                reads += 1;
            }
            reads
        });
        for step in 0..=240u64 {
            log.purge(step * 10, b"m").unwrap();
            log.truncate_after(Some(2995)).unwrap();
            fill(&log, 2996, 3000);
        }
        assert!(reader.join().unwrap() > 0);
    });
}

/// Opens the log's database without the log, and removes or changes one entry.
fn tamper(dir: &Path, change: impl FnOnce(&rocksdb::DB)) {
    let db = rocksdb::DB::open_cf(
        &rocksdb::Options::default(),
        dir.join("db"),
        ["default", "logs", "meta"],
    );
    change(&db.unwrap());
}

#[test]
fn a_hole_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill_around(&log, 70);
    log.purge(9, b"m").unwrap();
    sync(&log);
    log.close();
    for (missing, found_at_opening) in [(98u64, true), (40, false), (10, true)] {
        let copy = tempfile::tempdir().unwrap();
        copy_dir(dir.path(), copy.path());
        tamper(copy.path(), |db| {
            db.delete_cf(db.cf_handle("logs").unwrap(), missing.to_be_bytes()).unwrap();
        });
        let opened = RaftLog::open(copy.path(), small());
        assert_eq!(opened.is_err(), found_at_opening, "entry {missing}");
        if let Ok(log) = opened {
            assert!(log.read(0, 100, usize::MAX).unwrap_err().is_corrupt());
            assert_eq!(log.read(missing + 1, 100, usize::MAX).unwrap().len(), 59);
        }
    }
}

#[test]
fn a_damaged_entry_in_the_middle_is_found_when_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill_around(&log, 70);
    log.close();
    tamper(dir.path(), |db| {
        let logs = db.cf_handle("logs").unwrap();
        let mut value = db.get_cf(logs, 50u64.to_be_bytes()).unwrap().unwrap();
        *value.last_mut().unwrap() ^= 1;
        db.put_cf(logs, 50u64.to_be_bytes(), value).unwrap();
    });
    let log = open(dir.path());
    let error = log.read(45, 60, usize::MAX).unwrap_err();
    assert!(error.is_corrupt());
    let text = error.to_string();
    assert!(text.contains("entry 50") && text.contains("docs/operating/rebuild.md"), "{text}");
}

#[test]
fn a_flipped_bit_anywhere_in_the_log_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 0, 800);
    log.put_meta("vote", b"a vote").unwrap();
    sync(&log);
    log.close();
    // Reopening moved some entries to sorted files; the rest and a vote stay in the write-ahead log.
    let log = open(dir.path());
    fill(&log, 801, 820);
    log.put_meta("vote", b"newer vote").unwrap();
    sync(&log);
    log.close();
    let (mut flipped, mut detected) = (0, 0);
    for file in database_files(&dir.path().join("db"), &["log", "sst"]) {
        let len = fs::metadata(&file).unwrap().len() as usize;
        let step = (len / 40).max(1);
        for at in (0..len).step_by(step).chain([len - 1]) {
            flipped += 1;
            let copy = tempfile::tempdir().unwrap();
            copy_dir(dir.path(), copy.path());
            flip(&copy.path().join("db").join(file.file_name().unwrap()), at);
            let Ok(log) = RaftLog::open(copy.path(), small()) else {
                detected += 1;
                continue;
            };
            match (log.read(0, u64::MAX, usize::MAX), log.meta("vote")) {
                (Ok(found), Ok(vote)) => {
                    // A byte without content (padding, statistics) may change without effect.
                    assert_eq!(found.len(), 821, "{} at {at}", file.display());
                    assert!(found.iter().all(|(index, bytes)| *bytes == payload(*index)));
                    assert_eq!(vote, Some(b"newer vote".to_vec()), "{} at {at}", file.display());
                }
                _ => detected += 1,
            }
        }
    }
    assert!(flipped > 50 && detected * 10 > flipped * 6, "{detected} of {flipped}");
}

#[test]
fn a_shortened_write_ahead_log_is_detected_and_stays_detected() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 0, 20);
    log.close();
    let wal = database_files(&dir.path().join("db"), &["log"]).pop().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&wal).unwrap();
    file.set_len(file.metadata().unwrap().len() - 3).unwrap();
    for _ in 0..2 {
        let error = RaftLog::open(dir.path(), small()).unwrap_err();
        assert!(error.is_corrupt() && error.to_string().contains("acknowledged"), "{error}");
    }
}

#[test]
fn a_missing_database_is_not_replaced_by_an_empty_one() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    fill(&log, 0, 20);
    log.close();
    let synced = fs::read(dir.path().join("SYNCED")).unwrap();
    fs::remove_file(dir.path().join("SYNCED")).unwrap();
    assert!(RaftLog::open(dir.path(), small()).unwrap_err().is_corrupt());
    fs::write(dir.path().join("SYNCED"), &synced[..10]).unwrap();
    assert!(RaftLog::open(dir.path(), small()).unwrap_err().is_corrupt());
    fs::write(dir.path().join("SYNCED"), synced).unwrap();
    fs::remove_dir_all(dir.path().join("db")).unwrap();
    assert!(RaftLog::open(dir.path(), small()).unwrap_err().is_corrupt());
}

#[test]
fn purged_space_is_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let log = open(dir.path());
    let blob = vec![7u8; 8 << 10];
    for round in 0..40u64 {
        log.append(round * 100, &vec![blob.clone(); 100]).unwrap();
        sync(&log);
        log.purge(round * 100 + 98, b"m").unwrap();
    }
    log.close();
    drop(open(dir.path()));
    let size: u64 = database_files(&dir.path().join("db"), &["log", "sst"])
        .iter()
        .map(|file| fs::metadata(file).unwrap().len())
        .sum();
    assert!(size < 16 << 20, "32 MiB were purged, {size} bytes are left");
}

fn database_files(dir: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| {
        let extension = path.extension().map(|extension| extension.to_string_lossy().into_owned());
        extensions.iter().any(|wanted| extension.as_deref() == Some(wanted))
            && fs::metadata(path).unwrap().len() > 0
    });
    files.sort();
    files
}

fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at] ^= 0x10;
    fs::write(file, bytes).unwrap();
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
