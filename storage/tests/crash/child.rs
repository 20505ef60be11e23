//! Owns: the process that is killed: it writes without end and prints each promise after it was given.
//!
//! Invariant: the child announces a removal before it begins, so that the parent knows what may be missing.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_storage::{
    BlobStore, ImageBatch, ImageStore, LogOptions, PartRow, PartRowKind, RaftLog, Spool,
};

pub(crate) const TASK_ENV: &str = "ROLLOUT_CRASH_TASK";
pub(crate) const ROOT_ENV: &str = "ROLLOUT_CRASH_ROOT";
pub(crate) const SEED_ENV: &str = "ROLLOUT_CRASH_SEED";
pub(crate) const NO_FSYNC_ENV: &str = "ROLLOUT_CRASH_NO_FSYNC";

/// What a child writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Log,
    Image,
    Spool,
    Blob,
}

impl Task {
    const ALL: [Self; 4] = [Self::Log, Self::Image, Self::Spool, Self::Blob];

    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }
}

/// Small memtables, so that a round sees flushes, new log files and reads from table files.
pub(crate) fn log_options(unsafe_no_fsync: bool) -> LogOptions {
    LogOptions { write_buffer_bytes: 128 << 10, unsafe_no_fsync, ..LogOptions::default() }
}

/// An entry's payload: its index and generation, then a pattern that depends on both.
pub(crate) fn payload(index: u64, generation: u64, len: usize) -> Vec<u8> {
    let mut payload = index.to_le_bytes().to_vec();
    payload.extend_from_slice(&generation.to_le_bytes());
    payload.extend((0..len).map(|at| (index as usize + generation as usize * 7 + at) as u8));
    payload
}

pub(crate) fn run() {
    let Ok(name) = std::env::var(TASK_ENV) else { return };
    let task = Task::ALL.into_iter().find(|task| task.name() == name).unwrap();
    let root = PathBuf::from(std::env::var_os(ROOT_ENV).unwrap());
    let seed = std::env::var(SEED_ENV).unwrap().parse().unwrap();
    let dice = StdRng::seed_from_u64(seed);
    match task {
        Task::Log => write_log(&root, dice, seed),
        Task::Image => write_image(&root, dice),
        Task::Spool => write_spool(&root, dice),
        Task::Blob => write_blobs(&root, seed),
    }
}

fn print(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

fn write_log(root: &Path, mut dice: StdRng, seed: u64) {
    let unsafe_no_fsync = std::env::var_os(NO_FSYNC_ENV).is_some();
    let log = RaftLog::open(&root.join("log"), log_options(unsafe_no_fsync)).unwrap();
    let bounds = log.bounds();
    let mut purged = bounds.purged.map_or(0, |(index, _)| index);
    let mut next = bounds.last.map_or(purged, |(index, _)| index) + 1;
    let mut vote = log.meta("vote").unwrap().map_or(0, number);
    // Generations must not repeat, or an old entry would pass for its replacement.
    let mut generation = seed << 32;
    let (acknowledged, backlog) = channel();
    let mut in_flight = 0;
    print(format_args!("ready"));
    loop {
        match dice.random_range(0..100) {
            0..3 if next > purged + 20 => {
                let kept = next - dice.random_range(2..8);
                generation += 1;
                print(format_args!("truncate {kept} {generation}"));
                log.truncate_after(Some(kept)).unwrap();
                next = kept + 1;
            }
            3..5 if next > purged + 400 => {
                purged = next - dice.random_range(100..300);
                print(format_args!("purge {purged}"));
                log.purge(purged, b"mark").unwrap();
            }
            5..10 => {
                vote += 1;
                let vote = vote;
                let done = Box::new(move |result: std::io::Result<()>| {
                    result.unwrap();
                    print(format_args!("vote {vote}"));
                });
                log.put_meta_durable("vote", &u64::to_le_bytes(vote), done).unwrap();
            }
            _ => {
                let count = dice.random_range(1..8);
                let entries: Vec<_> = (next..next + count)
                    .map(|index| payload(index, generation, dice.random_range(0..2000)))
                    .collect();
                log.append(next, &entries).unwrap();
                let (first, last) = (next, next + count - 1);
                next += count;
                let acknowledged = acknowledged.clone();
                log.sync(Box::new(move |result| {
                    result.unwrap();
                    print(format_args!("acked {first} {last} {generation}"));
                    acknowledged.send(()).unwrap();
                }));
                in_flight += 1;
            }
        }
        // Continue while syncs are in flight, as a leader does, but with a bound.
        while in_flight > 8 {
            backlog.recv().unwrap();
            in_flight -= 1;
        }
    }
}

fn write_image(root: &Path, mut dice: StdRng) {
    let image = ImageStore::open(&root.join("image")).unwrap();
    let mut counter = image.get(b"counter").unwrap().map_or(0, number);
    print(format_args!("ready"));
    loop {
        counter += 1;
        let mut batch =
            ImageBatch { delete_prefixes: vec![b"row/".to_vec()], ..Default::default() };
        batch.puts.push((b"counter".to_vec(), counter.to_le_bytes().to_vec()));
        for row in 0..counter % 50 {
            batch.puts.push((format!("row/{row:03}").into_bytes(), counter.to_le_bytes().to_vec()));
        }
        image.write(batch).unwrap();
        print(format_args!("image {counter}"));
        match dice.random_range(0..20) {
            0 => drop(image.snapshot().unwrap()),
            1 => {
                let snapshot = image.snapshot().unwrap();
                let staging = image.stage().unwrap();
                let manifest = snapshot.manifest().unwrap();
                for file in &manifest.files {
                    let bytes = std::fs::read(snapshot.dir().join(&file.name)).unwrap();
                    staging.write_file(&file.name, 0, &bytes).unwrap();
                }
                image.install(staging.finish(&manifest).unwrap()).unwrap();
                print(format_args!("image {counter}"));
            }
            _ => {}
        }
    }
}

fn write_spool(root: &Path, mut dice: StdRng) {
    let (mut spool, rows) = Spool::open(&root.join("spool/open")).unwrap();
    let mut next = rows.last().map_or(0, |row| row.row + 1);
    print(format_args!("ready"));
    loop {
        for _ in 0..dice.random_range(1..20) {
            let body = payload(next, 0, dice.random_range(0..500));
            let kind = PartRowKind::Completed;
            spool.append(PartRow { row: next, attempt: next, kind, body: &body }).unwrap();
            next += 1;
        }
        spool.sync().unwrap();
        print(format_args!("spooled {}", next - 1));
        if spool.len_bytes() > 200_000 {
            print(format_args!("clear {}", next - 1));
            spool.clear().unwrap();
        }
    }
}

fn write_blobs(root: &Path, seed: u64) {
    let store = BlobStore::open(&format!("file://{}/blobs", root.display())).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    print(format_args!("ready"));
    for number in 0u64.. {
        let body = payload(number, seed, 3000);
        let key = format!("runs/{seed}/parts/{number}");
        let put = runtime.block_on(store.put(&key, body.into())).unwrap();
        print(format_args!("blob {key} {}", blake3::Hash::from_bytes(put.digest)));
    }
}

fn number(bytes: Vec<u8>) -> u64 {
    u64::from_le_bytes(bytes.try_into().unwrap())
}
