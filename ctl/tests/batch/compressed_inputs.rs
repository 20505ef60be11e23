//! Compressed inputs and remote inputs.

use std::io::Write;
use std::sync::atomic::Ordering;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::cluster::TestCluster;
use super::command::Job;
use super::s3::S3;

fn rows(from: usize, to: usize) -> Vec<u8> {
    (from..to).flat_map(|n| format!("{{\"id\":{n},\"prompt\":\"p{n}\"}}\n").into_bytes()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    zstd::encode_all(bytes, 1).unwrap()
}

fn job<'a>(cluster: &'a TestCluster, globs: &str) -> Job<'a> {
    let job = Job::new(cluster, "job", "");
    std::fs::remove_file(job.dir.join("in.jsonl")).unwrap();
    let config = job.read("batch.toml").replace("\"in*.jsonl\"", globs);
    job.write("batch.toml", &config);
    job
}

fn ids(job: &Job<'_>) -> Vec<u64> {
    let lines = job.lines("out/completions.jsonl");
    lines.iter().map(|line| line["id"].as_u64().unwrap()).collect()
}

#[test]
fn packed_files_are_the_rows_that_are_in_them() {
    let cluster = TestCluster::start();
    let job = job(&cluster, "\"in*\"");
    let file = |name: &str, bytes: &[u8]| std::fs::write(job.dir.join(name), bytes).unwrap();
    file("in1.jsonl.gz", &[gzip(&rows(0, 10)), gzip(&rows(10, 5000))].concat());
    file("in2.jsonl.zst", &[zstd(&rows(5000, 5001)), zstd(&rows(5001, 6000))].concat());
    file("in3.jsonl", &rows(6000, 6010));
    let ended = job.batch(&["--name", "r"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ids(&job), (0..6010).collect::<Vec<_>>());
    // Decompressed, it is the same input.
    for (name, rows) in [("in1.jsonl.gz", rows(0, 5000)), ("in2.jsonl.zst", rows(5000, 6000))] {
        std::fs::remove_file(job.dir.join(name)).unwrap();
        file(name.rsplit_once('.').unwrap().0, &rows);
    }
    assert!(job.batch(&[]).stderr.contains("run r already exists"));
}

#[test]
fn a_packed_file_that_is_cut_off_is_named_and_nothing_is_submitted() {
    let cluster = TestCluster::start();
    let job = job(&cluster, "\"in*\"");
    for (name, kind, bytes) in [
        ("in.jsonl.gz", "gzip", gzip(&rows(0, 5000))),
        ("in.jsonl.zst", "zstd", zstd(&rows(0, 5000))),
    ] {
        std::fs::write(job.dir.join(name), &bytes[..bytes.len() * 2 / 3]).unwrap();
        let ended = job.batch(&[]);
        assert_eq!(ended.code, 1, "{ended:?}");
        let expected = format!("{name}: the {kind} file is cut off");
        assert!(ended.stderr.contains(&expected), "{ended:?}");
        std::fs::remove_file(job.dir.join(name)).unwrap();
    }
    std::fs::write(job.dir.join("in.jsonl.gz"), [gzip(&rows(0, 3)), gzip(b"broken\n")].concat())
        .unwrap();
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("in.jsonl.gz:4:1:"), "a line of the text: {ended:?}");
    assert!(cluster.state.lock().runs.is_empty());
}

#[test]
fn objects_are_read_in_pieces_through_broken_connections() {
    let (cluster, s3) = (TestCluster::start(), S3::start());
    let mut job =
        job(&cluster, "[\"s3://data/in/**/*.jsonl*\", \"s3://data/one.jsonl\", \"local.jsonl\"]");
    job.env = s3.env();
    // More than one piece: rows with text that does not compress.
    let text = |n: u64| {
        let part = |at: u64| blake3::hash(&(8 * n + at).to_le_bytes()).to_hex().to_string();
        (0..8).map(part).collect::<String>()
    };
    let large: String =
        (10..20_010).map(|n| format!("{{\"id\":{n},\"prompt\":\"{}\"}}\n", text(n))).collect();
    assert!(large.len() > 4 << 20);
    s3.put("in/a/b/1.jsonl", rows(0, 10));
    s3.put("in/a/2.jsonl.gz", gzip(large.as_bytes()));
    s3.put("in/a/.hidden.jsonl", "broken\n");
    s3.put("in/other", "broken\n");
    s3.put("one.jsonl", rows(20_010, 20_011));
    std::fs::write(job.dir.join("local.jsonl"), rows(20_011, 20_012)).unwrap();
    s3.breaks_every.store(3, Ordering::SeqCst);
    let ended = job.batch(&["--name", "r"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let mut found = ids(&job);
    found.sort_unstable();
    assert_eq!(found, (0..20_012).collect::<Vec<_>>());
    assert!(s3.bodies() > 6, "{} bodies", s3.bodies());
    let missing = job.read("batch.toml").replace("one.jsonl", "none.jsonl");
    job.write("batch.toml", &missing);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("\"s3://data/none.jsonl\" matches no file"), "{ended:?}");
}

#[test]
fn an_object_is_found_by_its_key_whatever_is_in_it() {
    let (cluster, s3) = (TestCluster::start(), S3::start());
    let keys = ["in/a~b%20c.jsonl", "in/d#{1}^é.jsonl"];
    let mut job = job(&cluster, &format!("[\"s3://data/{}\", \"s3://data/{}\"]", keys[0], keys[1]));
    job.env = s3.env();
    s3.put(keys[0], rows(0, 3));
    s3.put(keys[1], rows(3, 5));
    let ended = job.batch(&["--name", "r"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(ids(&job), [0, 1, 2, 3, 4]);
}

#[test]
fn an_object_that_is_changed_while_it_is_read_is_an_error() {
    let (cluster, s3) = (TestCluster::start(), S3::start());
    let mut job = job(&cluster, "\"s3://data/in.jsonl\"");
    job.env = s3.env();
    s3.put("in.jsonl", rows(0, 300_000));
    // Otherwise the first row would be read first.
    let config = job.read("batch.toml").replace("[sampling]", "task = \"generate\"\n[sampling]");
    job.write("batch.toml", &config);
    s3.changes_after.store(2, Ordering::SeqCst);
    let ended = job.batch(&["--name", "r"]);
    assert_eq!(ended.code, 1, "{ended:?}");
    let expected = "input s3://data/in.jsonl: s3://data/in.jsonl was changed while it was read";
    assert!(ended.stderr.contains(expected), "{ended:?}");
    assert!(cluster.state.lock().runs.is_empty());
}
