use std::fs;
use std::path::Path;

use super::*;
use crate::submission::name;

impl Claim {
    /// A claim of an export into `dir`.
    pub(in crate::export) fn for_test(dir: &Path, run: &str) -> Self {
        Self {
            dir: dir.to_owned(),
            layout: Layout::default(),
            namespace: Some("default".to_owned()),
            run: run.to_owned(),
            batch: None,
            overwrite: false,
        }
    }

    /// The same for a batch file beside `dir`.
    fn of(&self, file: &str) -> Self {
        let base = self.dir.parent().unwrap().to_owned();
        let batch = BatchFile { path: base.join(file), input: vec!["out/in.jsonl".into()], base };
        Self { batch: Some(batch), ..self.clone() }
    }

    fn refusal(&self) -> String {
        match self.check() {
            Err(error @ BatchError::OutputTaken { .. }) => {
                assert_eq!(error.exit_code(), 5);
                error.to_string()
            }
            other => panic!("it is not refused: {other:?}"),
        }
    }
}

/// A directory `out` in a temporary one.
fn out() -> (tempfile::TempDir, Claim) {
    let root = tempfile::tempdir().unwrap();
    let claim = Claim::for_test(&root.path().join("out"), "a");
    (root, claim)
}

fn write(claim: &Claim, name: &str, text: &str) {
    fs::create_dir_all(&claim.dir).unwrap();
    fs::write(claim.dir.join(name), text).unwrap();
}

fn entry(name: &str, bytes: u64) -> Entry {
    Entry { name: name.to_owned(), bytes }
}

#[test]
fn a_directory_is_of_one_batch_file_and_one_family_of_runs() {
    let (_root, claim) = out();
    let first = claim.of("a.toml");
    first.reserve().unwrap();
    let second = claim.of("b.toml");
    let said = second.refusal();
    assert!(said.contains("it belongs to run \"a\" of namespace default"), "{said}");
    assert!(said.contains("(batch file ../a.toml), and this is batch file ../b.toml"), "{said}");
    assert!(said.contains("--overwrite"), "{said}");
    // Reserved is not settled: the same file may still give its run another name.
    let named = |run: &str, of: &Claim| Claim { run: run.to_owned(), ..of.clone() };
    named("other", &first).check().unwrap();
    first.settle().unwrap();
    assert!(first.had_run());
    let said = named("other", &first).refusal();
    assert!(said.contains("and this is run \"other\""), "{said}");
    named("a.r2", &first).check().unwrap();
    let elsewhere = Claim { namespace: Some("team".into()), ..first.clone() };
    let said = elsewhere.refusal();
    assert!(said.contains("this is run \"a\" of namespace team"), "{said}");
    Claim { namespace: None, ..first.clone() }.check().unwrap();
    // An export has one run, which may come from any batch file.
    claim.check().unwrap();
    named("a.r2", &claim).refusal();
    // Another owner may take it after all.
    Claim { overwrite: true, ..second.clone() }.settle().unwrap();
    first.refusal();
    second.check().unwrap();
}

#[test]
fn a_directory_that_moves_with_its_batch_file_stays_ours() {
    let (root, claim) = out();
    let batch = claim.of("a.toml");
    batch.settle().unwrap();
    let moved = root.path().join("moved");
    fs::create_dir(&moved).unwrap();
    fs::rename(&claim.dir, moved.join("out")).unwrap();
    Claim { dir: moved.join("out"), ..claim }.of("a.toml").check().unwrap();
}

#[test]
fn other_files_are_refused_and_a_batch_file_with_its_input_is_not() {
    let (_root, claim) = out();
    let batch = claim.of("out/a.toml");
    for name in ["a.toml", "in.jsonl", ".hidden"] {
        write(&claim, name, "x");
    }
    batch.check().unwrap();
    for name in ["d", "c", "b", "notes.txt"] {
        write(&claim, name, "x");
    }
    assert!(batch.refusal().contains("it holds other files (b, c, d and 1 more)"));
    // Reserving a directory makes no file part of this output.
    let overwriting = Claim { overwrite: true, ..batch.clone() };
    overwriting.reserve().unwrap();
    batch.refusal();
    overwriting.settle().unwrap();
    batch.check().unwrap();
    // For an existing output, only names that it replaces matter.
    write(&claim, "completions.parquet", "x");
    batch.check().unwrap();
    write(&claim, "errors-00000.jsonl", "x");
    assert!(batch.refusal().contains("errors-00000.jsonl there was not written by rollout"));
}

#[test]
fn an_input_with_the_name_of_an_output_is_refused() {
    let (_root, claim) = out();
    let mut batch = claim.of("a.toml");
    batch.batch.as_mut().unwrap().input = vec!["out/completions.jsonl".into()];
    write(&claim, "completions.jsonl", "{}");
    assert!(batch.refusal().contains("completions.jsonl there was not written by rollout"));
}

#[test]
fn a_writer_that_is_killed_between_its_files_and_the_record_refuses_nothing_afterward() {
    let (_root, claim) = out();
    claim.begin(vec![entry("completions.jsonl", 3)]).unwrap();
    write(&claim, "completions.jsonl", "{}\n");
    claim.check().unwrap();
    let record = claim.begin(vec![entry("completions.jsonl", 6)]).unwrap();
    claim.check().unwrap();
    write(&claim, "completions.jsonl", "{}\n{}\n");
    claim.check().unwrap();
    claim.end(record);
    // Changed by another process.
    write(&claim, "completions.jsonl", "{}\n{}\n{}\n");
    assert!(claim.refusal().contains("or was changed since"));
    let overwriting = Claim { overwrite: true, ..claim.clone() };
    overwriting.settle().unwrap();
    claim.check().unwrap();
}

#[test]
fn files_of_another_format_stay_ours() {
    let (_root, claim) = out();
    let record = claim.begin(vec![entry("completions.jsonl", 3)]).unwrap();
    write(&claim, "completions.jsonl", "{}\n");
    claim.end(record);
    let layout = Layout { format: OutputFormat::Parquet, shard_rows: 0 };
    let table = Claim { layout, ..claim.clone() };
    let record = table.begin(vec![entry("completions.parquet", 1)]).unwrap();
    write(&claim, "completions.parquet", "x");
    table.end(record);
    claim.check().unwrap();
}

#[test]
fn the_output_of_a_version_without_records_is_adopted() {
    let (_root, claim) = out();
    name::settle(&claim.dir, "a.r2").unwrap();
    write(&claim, "completions.jsonl", "{}\n");
    let batch = claim.of("a.toml");
    batch.check().unwrap();
    let other = Claim { run: "b".into(), ..batch.clone() };
    assert!(other.refusal().contains("it belongs to run \"a.r2\", and this is run \"b\""));
    claim.refusal();
    batch.reserve().unwrap();
    batch.settle().unwrap();
    batch.check().unwrap();
    claim.of("b.toml").refusal();
    write(&claim, "completions.jsonl", "mine");
    batch.refusal();
}

#[test]
fn a_record_that_cannot_be_read_is_refused_with_the_reason() {
    let (_root, claim) = out();
    claim.settle().unwrap();
    let kept = fs::read_to_string(claim.dir.join(RECORD)).unwrap();
    let later = kept.replace("\"version\": 1", "\"version\": 2");
    for (text, why) in [("{", "EOF"), (later.as_str(), "from a later rollout")] {
        write(&claim, RECORD, text);
        let said = claim.refusal();
        assert!(said.contains(RECORD) && said.contains(why), "{said}");
    }
    Claim { overwrite: true, ..claim.clone() }.settle().unwrap();
    claim.check().unwrap();
}
