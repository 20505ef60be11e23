//! Parquet, in and out.

use std::path::PathBuf;
use std::time::Duration;

use rollout_proto::v1::RunState;
use serde_json::json;

use super::cluster::{FakeBehavior, TestCluster};
use super::command::{CommandOutcome, Job, files_below, interrupt};
use super::s3::S3;

/// A job that writes tables.
fn writing(cluster: &TestCluster, rows: usize) -> Job<'_> {
    let input: String =
        (0..rows).map(|n| format!("{{\"id\":{n},\"prompt\":\"p{n}\",\"n\":1.50}}\n")).collect();
    let job = Job::new(cluster, "first", &input);
    let output = "dir = \"out\"\nformat = \"parquet\"";
    let config = job.read("batch.toml").replace("dir = \"out\"", output);
    job.write("batch.toml", &config);
    job
}

/// A finished job that writes tables.
fn written(cluster: &TestCluster, rows: usize) -> Job<'_> {
    cluster.set_behavior(FakeBehavior { fails: vec![1], ..FakeBehavior::default() });
    let job = writing(cluster, rows);
    let ended = job.batch(&["--name", "first"]);
    assert_eq!(ended.code, 10, "{ended:?}");
    assert!(ended.stderr.contains("completions in out/completions.parquet"), "{ended:?}");
    job
}

/// A job whose input is a table of the first one's completions.
fn reading<'a>(cluster: &'a TestCluster, glob: &str, columns: &str) -> Job<'a> {
    let job = Job::new(cluster, "second", "");
    let input = format!("\"{glob}\"\n{columns}");
    let config = job.read("batch.toml").replace("\"in*.jsonl\"", &input);
    job.write("batch.toml", &config);
    job
}

#[test]
fn an_output_in_tables_is_verified_and_can_be_read_as_input() {
    let cluster = TestCluster::start();
    let first = written(&cluster, 70_000);
    let verified = first.run(&["verify", "first", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
    let table = first.out().join("completions.parquet");
    let mut bytes = std::fs::read(&table).unwrap();
    assert!(bytes.starts_with(b"PAR1"));

    cluster.set_behavior(FakeBehavior::default());
    // Parameters are texts in a table, so that column is not the parameters field.
    let columns = "columns = { sampling_params = \"\" }";
    let second = reading(&cluster, "../first/out/completions.parquet", columns);
    let ended = second.batch(&["--name", "second"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines = second.lines("out/completions.jsonl");
    assert_eq!(lines.len(), 69_999);
    assert_eq!((&lines[1]["id"], &lines[1]["prompt"]), (&json!(2), &json!("p2")));
    assert_eq!(lines[1]["n"], 1.5);
    assert_eq!(lines[1]["input"], json!(null));
    assert_eq!(lines[1]["input_completion"], "MOCK:p2");
    assert_eq!(lines[1]["input_completion_tokens"], 3);
    assert_eq!(second.run(&["verify", "second", "--output", "out"]).code, 0);

    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&table, bytes).unwrap();
    let verified = first.run(&["verify", "first", "--output", "out"]);
    assert_eq!(verified.code, 1, "{verified:?}");
    assert!(verified.stderr.contains("completions.parquet: byte "), "{verified:?}");
}

#[test]
fn ctrl_c_ends_the_writing_of_tables_and_the_same_command_writes_them_later() {
    let cluster = TestCluster::start();
    let job = writing(&cluster, 70_000);
    let mut child = job.spawn_batch(&["--name", "first"]);
    let ended = || {
        let state = cluster.state.lock();
        state.runs.values().any(|run| run.state == RunState::Finished as i32)
    };
    // The output's own files come last: earlier temporary files are gone by then.
    while !ended() || temporary(&job).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it is too fast for this test");
        std::thread::sleep(Duration::from_millis(5));
    }
    interrupt(&child);
    let ended = CommandOutcome::from(child.wait_with_output().unwrap());
    assert_eq!(ended.code, 130, "{ended:?}");
    assert!(ended.stderr.contains("run first has its results; to write them:\n"), "{ended:?}");
    assert!(!job.out().join("completions.parquet").exists());
    assert_eq!(temporary(&job), Vec::<PathBuf>::new());
    let again = job.batch(&["--name", "first"]);
    assert_eq!(again.code, 0, "{again:?}");
    let verified = job.run(&["verify", "first", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

/// Partial files of an output.
fn temporary(job: &Job<'_>) -> Vec<PathBuf> {
    let mut found = files_below(&job.out());
    found.retain(|path| path.file_name().unwrap().to_string_lossy().starts_with(".rollout-"));
    found
}

#[test]
fn a_wrong_row_of_a_table_is_named_by_its_number_and_tables_may_be_objects() {
    let (cluster, s3) = (TestCluster::start(), S3::start());
    let first = written(&cluster, 5);
    s3.put("in.parquet", std::fs::read(first.out().join("completions.parquet")).unwrap());
    let columns = "columns = { prompt = \"prompt_tokens\", sampling_params = \"\" }";
    let mut second = reading(&cluster, "s3://data/in.parquet", columns);
    second.env = s3.env();
    let ended = second.batch(&["--name", "second"]);
    assert_eq!(ended.code, 2, "{ended:?}");
    let message = "s3://data/in.parquet: row 3: \"prompt\" has to be a string";
    assert!(ended.stderr.contains(message), "{ended:?}");
    let config = second.read("batch.toml").replace("prompt_tokens", "completion");
    second.write("batch.toml", &config);
    cluster.set_behavior(FakeBehavior::default());
    let ended = second.batch(&["--name", "second"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(second.lines("out/completions.jsonl")[3]["completion"], "MOCK:MOCK:p4");
    std::fs::write(second.dir.join("in.parquet"), b"PAR1 and nothing else").unwrap();
    let config = config.replace("s3://data/in.parquet", "in.parquet");
    second.write("batch.toml", &config);
    let ended = second.batch(&[]);
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.stderr.contains("in.parquet: it is not a valid Parquet file"), "{ended:?}");
}

#[test]
fn values_keep_their_types_through_tables() {
    let cluster = TestCluster::start();
    let rows = [
        json!({"id": 9_007_199_254_740_993_u64, "prompt": "a", "u": u64::MAX, "i": -1, "f": 0.1, "b": true, "s": "7"}),
        json!({"id": u64::MAX, "prompt": "b", "u": 0, "i": i64::MIN, "f": 2.0, "b": null, "s": "é"}),
    ];
    let own = ["id", "prompt", "u", "i", "f", "b", "s"];
    let input: String = rows.iter().map(|row| format!("{row}\n")).collect();
    let mut job = Job::new(&cluster, "first", &input);
    for (name, from) in [
        ("second", "../first/out/completions.parquet"),
        ("third", "../second/out/completions.parquet"),
    ] {
        let config =
            job.read("batch.toml").replace("dir = \"out\"", "dir = \"out\"\nformat = \"parquet\"");
        job.write("batch.toml", &config);
        let ended = job.batch(&[]);
        assert_eq!(ended.code, 0, "{ended:?}");
        job = Job::new(&cluster, name, "");
        let input = format!("\"{from}\"\ncolumns = {{ sampling_params = \"\" }}");
        let config = job.read("batch.toml").replace("\"in*.jsonl\"", &input);
        job.write("batch.toml", &config);
    }
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines = job.lines("out/completions.jsonl");
    for (line, row) in lines.iter().zip(&rows) {
        for name in own {
            assert_eq!(line[name], row[name], "{name}");
        }
    }
    assert_eq!(lines.len(), rows.len());
}

#[test]
fn a_mapped_column_that_does_not_exist_is_named_with_those_that_do() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", "{\"key\":1,\"prompt\":\"p\"}\n");
    let config = job
        .read("batch.toml")
        .replace("\"in*.jsonl\"", "\"in*.jsonl\"\ncolumns = { id = \"kee\" }");
    job.write("batch.toml", &config);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    let message = "in.jsonl: the rows have no column \"kee\", which [input] columns maps to \"id\" (write id = \"\" to read none); \
                   the columns are \"key\", \"prompt\"; did you mean \"key\"?";
    assert!(ended.stderr.contains(message), "{ended:?}");
    std::fs::write(job.dir.join("in.csv"), "key,question\n1,p\n2,q\n").unwrap();
    let config = config.replace("in*.jsonl", "in.csv");
    job.write("batch.toml", &config);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    assert!(ended.stderr.contains("in.csv: no column \"kee\""), "{ended:?}");
    assert!(
        ended.stderr.contains("the input has 1 error"),
        "one of the file, none of its rows: {ended:?}"
    );
    assert!(cluster.state.lock().runs.is_empty());
}

#[test]
fn rows_of_csv_files_are_run_and_wrong_ones_are_named_by_their_lines() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", "");
    let columns = "\"in.csv\"\ncolumns = { prompt = \"question\" }";
    let config = job.read("batch.toml").replace("\"in*.jsonl\"", columns);
    job.write("batch.toml", &config);
    let csv = "id,question,n\n1,\"a, \"\"b\"\"\nc\",7\n2,d,\n3\n,,1\n";
    std::fs::write(job.dir.join("in.csv"), csv).unwrap();
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 2, "{ended:?}");
    for message in [
        "in.csv: line 5: the row has 1 value, and the header 3",
        "in.csv: line 6: a row needs \"prompt\" or \"messages\"",
    ] {
        assert!(ended.stderr.contains(message), "{message}: {ended:?}");
    }
    std::fs::write(job.dir.join("in.csv"), csv.replace("3\n,,1\n", "")).unwrap();
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    let lines = job.lines("out/completions.jsonl");
    assert_eq!((&lines[0]["id"], &lines[0]["n"]), (&json!("1"), &json!("7")));
    assert_eq!(lines[0]["completion"], "MOCK:a, \"b\"\nc");
    assert_eq!((&lines[1]["id"], &lines[1]["n"]), (&json!("2"), &json!(null)));
}
