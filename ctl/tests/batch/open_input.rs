//! Open inputs: appended rows, rows that exist already, and closing.

use super::cluster::TestCluster;
use super::command::Job;

fn rows(prompts: &[&str]) -> String {
    prompts.iter().map(|prompt| format!("{{\"prompt\":\"{prompt}\"}}\n")).collect()
}

fn completions(job: &Job<'_>) -> Vec<String> {
    let lines = job.lines("out/completions.jsonl");
    lines.iter().map(|line| line["completion"].as_str().unwrap().to_owned()).collect()
}

fn count(cluster: &TestCluster, run: &str) -> usize {
    cluster.run(run).unwrap().outcomes.len()
}

#[test]
fn an_open_run_takes_rows_that_it_lacks_until_it_is_closed() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &rows(&["a", "b"]));
    let ended = job.batch(&["--name", "r", "--keep-open", "--detach"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "r"), "{ended:?}");
    assert!(ended.stderr.contains("--resume r --keep-open\n"), "{ended:?}");
    assert!(!cluster.run("r").unwrap().closed);
    // One row exists already; c occurs twice, which is the same prompt twice.
    job.write("more.jsonl", &rows(&["c", "b", "c"]));
    let ended = job.run(&["run", "append", "r", "more.jsonl"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("2 rows appended, 1 was there already; it has 4"), "{ended:?}");
    let ended = job.run(&["run", "append", "r", "more.jsonl"]);
    assert!(ended.stderr.contains("0 rows appended, 3 were there already"), "{ended:?}");
    assert_eq!((ended.code, count(&cluster, "r")), (0, 4));
    let ended = job.run(&["run", "close", "r"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stderr.contains("its input is closed, with 4 rows"), "{ended:?}");
    let ended = job.run(&["run", "close", "r"]);
    assert!(ended.code == 0 && ended.stderr.contains("was closed already"), "{ended:?}");
    // Closed: rows that it has are not an error; rows that it lacks are, and are counted.
    assert_eq!(job.run(&["run", "append", "r", "more.jsonl"]).code, 0);
    job.write("more.jsonl", &rows(&["c", "d", "e"]));
    let ended = job.run(&["run", "append", "r", "more.jsonl"]);
    assert_eq!(ended.code, 5, "{ended:?}");
    assert!(ended.stderr.contains("lacks 2 of these 3"), "{ended:?}");
    let ended = job.batch(&["--resume", "r"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(completions(&job), ["MOCK:a", "MOCK:b", "MOCK:c", "MOCK:c"]);
    let verified = job.run(&["verify", "r", "--output", "out"]);
    assert_eq!(verified.code, 0, "{verified:?}");
}

#[test]
fn the_same_command_appends_what_its_files_have_gained() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &rows(&["a"]));
    assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
    job.write("in2.jsonl", &rows(&["b", "c"]));
    let ended = job.batch(&["--keep-open", "--detach"]);
    assert_eq!((ended.code, ended.stdout.trim()), (0, "r"), "{ended:?}");
    assert!(ended.stderr.contains("2 rows appended, 1 was there already; it has 3"), "{ended:?}");
    // Another client's row, which these files lack: this command may not decide to close.
    job.write("more.jsonl", &rows(&["d"]));
    assert_eq!(job.run(&["run", "append", "r", "more.jsonl"]).code, 0);
    for resume in [&["--detach"][..], &["--resume", "r", "--detach"]] {
        let ended = job.batch(resume);
        assert_eq!(ended.code, 5, "{ended:?}");
        assert!(ended.stderr.contains("rollout run close r"), "{ended:?}");
    }
    let run = cluster.run("r").unwrap();
    assert_eq!((run.outcomes.len(), run.closed, cluster.state.lock().runs.len()), (4, false, 1));
    // Waits for more rows and for the end.
    let child = job.spawn_batch(&["--resume", "r", "--keep-open"]);
    assert_eq!(job.run(&["run", "close", "r"]).code, 0);
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(0));
    assert_eq!(completions(&job), ["MOCK:a", "MOCK:b", "MOCK:c", "MOCK:d"]);
    job.write("in3.jsonl", &rows(&["z"]));
    let ended = job.batch(&["--resume", "r", "--keep-open"]);
    assert_eq!(ended.code, 5, "{ended:?}");
    assert!(ended.stderr.contains("closed for more rows; it lacks 1 of these 4"), "{ended:?}");
}

#[test]
fn an_input_that_was_whole_after_all_is_closed_by_the_command_without_the_flag() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &rows(&["a", "b"]));
    assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
    let ended = job.batch(&[]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(completions(&job), ["MOCK:a", "MOCK:b"]);
}

#[test]
fn an_open_run_continues_with_its_deadline_and_weight_whatever_the_batch_file_says() {
    for (setting, line, flag) in [
        ("deadline", "deadline_s = 3600", "--deadline 3600000ms"),
        ("weight", "weight = 3", "--weight 3"),
    ] {
        let cluster = TestCluster::start();
        let job = Job::new(&cluster, "job", &rows(&["a", "b"]));
        assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
        let config = job.read("batch.toml");
        job.write("batch.toml", &format!("{config}[run]\n{line}\n"));
        let note = format!("`rolloutctl run set-{setting} r {flag}` changes it");
        let resumed = ["--resume", "r", "--keep-open", "--detach"];
        for more in [&["--keep-open", "--detach"][..], &resumed, &[]] {
            let ended = job.batch(more);
            assert_eq!(ended.code, 0, "{line} {more:?}: {ended:?}");
            let notes = ended.stderr.matches(note.as_str()).count();
            assert_eq!(notes, 1, "{line} {more:?}: {ended:?}");
        }
        // That of a run that has ended cannot be changed.
        for more in [&["--resume", "r"][..], &[]] {
            let ended = job.batch(more);
            assert_eq!(ended.code, 0, "{line} {more:?}: {ended:?}");
            assert!(!ended.stderr.contains("keeps its"), "{line} {more:?}: {ended:?}");
        }
        assert_eq!(cluster.state.lock().runs.len(), 1);
    }
}

#[test]
fn a_cancelled_run_that_is_resumed_with_another_weight_or_deadline_is_reported_as_cancelled() {
    for line in ["deadline_s = 3600", "weight = 3"] {
        let cluster = TestCluster::start();
        let job = Job::new(&cluster, "job", &rows(&["a"]));
        assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
        let cancelled = rollout_proto::v1::RunState::Cancelled as i32;
        cluster.state.lock().runs.values_mut().for_each(|run| run.state = cancelled);
        let config = job.read("batch.toml");
        job.write("batch.toml", &format!("{config}[run]\n{line}\n"));
        let ended = job.batch(&["--resume", "r"]);
        assert_ne!(ended.code, 0, "{line}: {ended:?}");
        assert!(ended.stderr.contains("cancelled"), "{line}: {ended:?}");
        assert!(!ended.stderr.contains("RO-2002"), "{line}: {ended:?}");
    }
}

#[test]
fn an_append_with_an_invalid_row_appends_none() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", "{\"id\":\"x\",\"prompt\":\"a\"}\n");
    assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
    let before = super::command::files_below(&cluster.dir.path().join("store"));
    for (text, said) in [
        (
            "{\"prompt\":\"b\"}\n{\"id\":\"x\",\"prompt\":\"c\"}\n",
            "more.jsonl:2:1: the run has this \"id\"",
        ),
        ("{\"prompt\":\"b\"}\n{\"prompt\":7}\n", "more.jsonl:2:"),
        (
            "{\"id\":1,\"prompt\":\"b\"}\n{\"id\":1,\"prompt\":\"b\"}\n",
            "more.jsonl:2:1: this row has",
        ),
        ("\n", "has no rows"),
    ] {
        job.write("more.jsonl", text);
        let ended = job.run(&["run", "append", "r", "more.jsonl"]);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(said), "{ended:?}");
    }
    assert_eq!(count(&cluster, "r"), 1);
    assert_eq!(super::command::files_below(&cluster.dir.path().join("store")), before);
    assert_eq!(job.run(&["run", "append", "nobody", "more.jsonl"]).code, 4);
    assert_eq!(job.run(&["run", "append", "r", "nothing*.jsonl"]).code, 2);
    assert_eq!(job.run(&["run", "append", "r"]).code, 2);
}

#[test]
fn several_that_append_at_once_add_each_row_once() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &rows(&["0"]));
    assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
    let children: Vec<_> = (0..4)
        .map(|from: u32| {
            let file = format!("more{from}.jsonl");
            let prompts: Vec<_> = (from * 10..from * 10 + 20).map(|n| n.to_string()).collect();
            job.write(&file, &rows(&prompts.iter().map(String::as_str).collect::<Vec<_>>()));
            job.spawn(&["run", "append", "r", &file])
        })
        .collect();
    for child in children {
        let ended = super::command::CommandOutcome::from(child.wait_with_output().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    assert_eq!(count(&cluster, "r"), 50);
    assert_eq!(job.run(&["run", "close", "r"]).code, 0);
    assert_eq!(job.batch(&["--resume", "r"]).code, 0);
    let mut found = completions(&job);
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 50);
}

#[test]
fn rows_may_come_from_standard_input() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &rows(&["a"]));
    assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
    let ended = job.run_with_input(&["run", "append", "r", "-"], &rows(&["b", "a"]));
    assert_eq!(ended.code, 0, "{ended:?}");
    assert_eq!(count(&cluster, "r"), 2);
}

#[test]
fn a_cancelled_run_takes_no_rows_and_is_not_closed() {
    let cluster = TestCluster::start();
    let job = Job::new(&cluster, "job", &rows(&["a"]));
    assert_eq!(job.batch(&["--name", "r", "--keep-open", "--detach"]).code, 0);
    let cancelled = rollout_proto::v1::RunState::Cancelled as i32;
    cluster.state.lock().runs.values_mut().for_each(|run| run.state = cancelled);
    job.write("more.jsonl", &rows(&["b"]));
    for args in [&["run", "append", "r", "more.jsonl"][..], &["run", "close", "r"]] {
        let ended = job.run(args);
        assert_eq!(ended.code, 5, "{ended:?}");
        assert!(ended.stderr.contains("was cancelled"), "{ended:?}");
    }
    assert_eq!(count(&cluster, "r"), 1);
}
