//! The owner of an output directory: no other output or file is replaced silently.

use std::path::Path;

use super::cluster::TestCluster;
use super::command::{CommandOutcome, Job};

const INPUT: &str = "{\"prompt\":\"a\"}\n{\"prompt\":\"b\"}\n";
const OTHER: &str = "{\"prompt\":\"c\"}\n";
const RECORD: &str = "out/.rollout.json";

/// A job with a second batch file, with another input and the same output directory.
fn two<'a>(cluster: &'a TestCluster, name: &str) -> Job<'a> {
    let job = Job::new(cluster, name, INPUT);
    job.write("other.jsonl", OTHER);
    let config = job.read("batch.toml").replace("in*.jsonl", "other.jsonl");
    job.write("other.toml", &config);
    job
}

fn other(job: &Job<'_>, more: &[&str]) -> CommandOutcome {
    job.run(&[&["infer", "batch", "--config", "other.toml"], more].concat())
}

fn runs(cluster: &TestCluster) -> usize {
    cluster.state.lock().runs.len()
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[track_caller]
fn refused(ended: &CommandOutcome, said: &[&str]) {
    assert_eq!(ended.code, 5, "{ended:?}");
    for words in said.iter().chain(&["add --overwrite"]) {
        assert!(ended.stderr.contains(words), "{words}: {ended:?}");
    }
}

#[test]
fn a_second_batch_file_never_replaces_the_output_of_the_first_without_a_word() {
    for named in [false, true] {
        let cluster = TestCluster::start();
        let job = two(&cluster, "job");
        if named {
            for (file, name) in [("batch.toml", "first"), ("other.toml", "second")] {
                job.write(file, &(job.read(file) + &format!("[run]\nname = \"{name}\"\n")));
            }
        }
        assert_eq!(job.batch(&[]).code, 0);
        let (name, whole) = (job.run_name(), job.read("out/completions.jsonl"));
        let said = [format!("it belongs to run {name:?}"), "(batch file ../batch.toml)".to_owned()];
        let said = said.each_ref().map(String::as_str);
        refused(&other(&job, &[]), &said);
        let tried = other(&job, &["--dry-run"]);
        refused(&tried, &said);
        assert!(tried.stdout.contains("rows       1\n"), "the plan comes first: {tried:?}");
        assert_eq!((runs(&cluster), job.run_name()), (1, name));
        assert_eq!(job.read("out/completions.jsonl"), whole);
        // The first one may continue.
        assert_eq!(job.batch(&[]).code, 0);

        let ended = other(&job, &["--overwrite"]);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(job.lines("out/completions.jsonl")[0]["completion"], "MOCK:c");
        assert_eq!(other(&job, &[]).code, 0, "it is its directory now");
        refused(&job.batch(&[]), &["(batch file ../other.toml)"]);
    }
}

#[test]
fn a_name_that_is_another_runs_does_not_replace_the_output() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    assert_eq!(job.batch(&["--name", "first"]).code, 0);
    let whole = job.read("out/completions.jsonl");
    let named = job.batch(&["--name", "second"]);
    refused(&named, &["run \"first\" of namespace default", "and this is run \"second\""]);
    // A run that is resumed or exported is refused too.
    job.write("in.jsonl", OTHER);
    let config = job.read("batch.toml").replace("\"out\"", "\"out2\"");
    job.write("second.toml", &config);
    let second = ["infer", "batch", "--config", "second.toml", "--name", "second"];
    assert_eq!(job.run(&second).code, 0);
    refused(&job.batch(&["--resume", "second"]), &["and this is run \"second\""]);
    let export = ["export", "second", "--output", "out"];
    refused(&job.run(&export), &["and this is run \"second\""]);
    assert_eq!((runs(&cluster), job.read("out/completions.jsonl")), (2, whole));
    // Another revision belongs to the same directory, for its batch file.
    assert_eq!(job.batch(&[]).code, 0);
    assert_eq!(
        (job.run_name().as_str(), job.lines("out/completions.jsonl").len()),
        ("first.r2", 1)
    );
    refused(&job.run(&["export", "first", "--output", "out"]), &["it belongs to run \"first.r2\""]);
    assert_eq!(job.run(&["export", "first.r2", "--output", "out"]).code, 0);
    assert_eq!(job.run(&[&export[..], &["--overwrite"]].concat()).code, 0);
}

#[test]
fn files_of_other_owners_are_neither_replaced_nor_treated_as_output() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    for (file, said) in [
        ("completions.jsonl", "completions.jsonl there was not written by rollout"),
        ("notes.txt", "it holds other files (notes.txt)"),
    ] {
        let _ = std::fs::remove_dir_all(job.out());
        std::fs::create_dir(job.out()).unwrap();
        job.write(&format!("out/{file}"), "mine");
        refused(&job.batch(&["--name", "r"]), &[said]);
        refused(&job.batch(&["--name", "r", "--dry-run"]), &[said]);
        assert_eq!((runs(&cluster), names(&job.out())), (0, vec![file.to_owned()]));
        assert_eq!(job.read(&format!("out/{file}")), "mine");
    }
    // An error in the input decides the exit status; the dry run reports the directory as well.
    job.write("in.jsonl", "{}\n");
    let tried = job.batch(&["--dry-run"]);
    assert_eq!(tried.code, 2, "{tried:?}");
    assert!(tried.stderr.contains("it holds other files (notes.txt)"), "{tried:?}");
    job.write("in.jsonl", INPUT);

    // With --overwrite, files that are not output stay, and repeating the command needs no flag.
    job.write("out/completions.jsonl", "mine");
    let begun = job.batch(&["--name", "r", "--overwrite", "--detach"]);
    assert_eq!(begun.code, 0, "{begun:?}");
    let ended = job.batch(&["--resume", "r"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(job.lines("out/completions.jsonl").len(), 2);
    assert_eq!(job.read("out/notes.txt"), "mine");

    // A file that was changed since may be a user's work.
    job.write("out/completions.jsonl", "mine again");
    refused(&job.batch(&[]), &["or was changed since"]);
    refused(&job.run(&["export", "r", "--output", "out"]), &["or was changed since"]);
    assert_eq!(job.read("out/completions.jsonl"), "mine again");
}

#[test]
fn one_of_two_batch_files_wins_a_fresh_directory() {
    let cluster = TestCluster::start();
    cluster.state.lock().behavior.together = 2;
    let job = two(&cluster, "job");
    let children =
        ["batch.toml", "other.toml"].map(|file| job.spawn(&["infer", "batch", "--config", file]));
    let ended = children.map(|child| CommandOutcome::from(child.wait_with_output().unwrap()));
    let mut codes = ended.each_ref().map(|ended| ended.code);
    codes.sort_unstable();
    assert_eq!(codes, [0, 5], "{ended:?}");
    assert_eq!(runs(&cluster), 1);
    let rows = if ended[0].code == 0 { 2 } else { 1 };
    assert_eq!(job.lines("out/completions.jsonl").len(), rows);
}

#[test]
fn the_directory_of_an_earlier_version_goes_on() {
    let cluster = TestCluster::start();
    let job = two(&cluster, "job");
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    std::fs::remove_file(job.dir.join(RECORD)).unwrap();
    refused(&job.batch(&["--name", "q"]), &["it belongs to run \"r\", and this is run \"q\""]);
    job.write("in.jsonl", OTHER);
    let ended = job.batch(&[]);
    assert_eq!((ended.code, job.run_name().as_str()), (0, "r.r2"), "{ended:?}");
    assert_eq!(job.lines("out/completions.jsonl").len(), 1);
    refused(&other(&job, &[]), &["(batch file ../batch.toml)"]);
}

#[test]
fn a_writer_that_is_killed_before_it_says_what_it_wrote_is_followed_by_the_same_command() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    assert_eq!(job.batch(&["--name", "r"]).code, 0);
    // The state between the last rename and the record.
    let mut record: serde_json::Value = serde_json::from_str(&job.read(RECORD)).unwrap();
    record["next"] = record["files"].take();
    record["files"] = serde_json::json!([]);
    assert_eq!(record["next"][0]["name"], "completions.jsonl");
    job.write(RECORD, &record.to_string());
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
}

#[test]
fn a_batch_file_and_its_input_may_be_in_the_output_directory() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", INPUT);
    std::fs::create_dir(job.out()).unwrap();
    job.write("out/in.jsonl", INPUT);
    job.write("out/batch.toml", &job.read("batch.toml").replace("\"out\"", "\".\""));
    let command = ["infer", "batch", "--config", "out/batch.toml"];
    for _ in 0..2 {
        let ended = job.run(&command);
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert_eq!((runs(&cluster), job.lines("out/completions.jsonl").len()), (1, 2));
}
