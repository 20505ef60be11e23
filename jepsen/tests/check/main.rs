//! Tests of `rollout-jepsen check` from the outside: files in; verdicts and an exit status out.

mod histories;

use histories::{EDN, JEPSEN_LOG, JSONL, JudgedHistory, UNREADABLE};
use serde_json::Value;
use std::path::PathBuf;
use std::process::{Command, Output};
use tempfile::TempDir;

fn check(arguments: &[&str]) -> Output {
    let binary = env!("CARGO_BIN_EXE_rollout-jepsen");
    Command::new(binary).arg("check").args(arguments).output().expect("the binary runs")
}

fn file(dir: &TempDir, name: &str, content: &str) -> String {
    let path: PathBuf = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    path.to_str().unwrap().to_owned()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn judges(format: &str, histories: &[JudgedHistory]) {
    let dir = TempDir::new().unwrap();
    for (index, JudgedHistory { why, model, history, verdict }) in histories.iter().enumerate() {
        let path = file(&dir, &format!("{index}.txt"), history);
        let output = check(&["--model", model, "--format", format, &path]);
        assert_eq!(stdout(&output), format!("{path} {verdict}\n"), "{why}: {}", stderr(&output));
        let status = i32::from(*verdict == "violation");
        assert_eq!(output.status.code(), Some(status), "{why}");
    }
}

#[test]
fn jepsen_logs_are_judged_as_known() {
    judges("jepsen-log", JEPSEN_LOG);
}

#[test]
fn edn_histories_are_judged_as_known() {
    judges("edn", EDN);
}

#[test]
fn recorded_histories_are_judged_as_known() {
    judges("jsonl", JSONL);
}

#[test]
fn an_unreadable_history_is_an_error_with_its_line_and_no_verdict() {
    let dir = TempDir::new().unwrap();
    for (format, model, history, why) in UNREADABLE {
        let path = file(&dir, "h", history);
        let output = check(&["--model", model, "--format", format, &path]);
        let said = stderr(&output);
        assert!(said.contains(why) && said.starts_with(&path), "{history}: {said}");
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(65), ""), "{history}");
    }
    let output = check(&["--model", "kv", "--format", "edn", "/nonexistent/history"]);
    assert_eq!(output.status.code(), Some(66));
    for wrong in [
        &["--model", "kv", "--format", "edn"][..],
        &["--model", "set", "--format", "edn", "h"],
        &["--model", "kv", "--format", "edn", "--budget", "1", "h"],
    ] {
        assert_eq!(check(wrong).status.code(), Some(64), "{wrong:?}");
    }
}

#[test]
fn a_violation_outweighs_an_unreadable_file_and_that_an_unknown_verdict() {
    let dir = TempDir::new().unwrap();
    let [good, violation] = ["linearizable", "violation"].map(|verdict| {
        let known = JEPSEN_LOG.iter().find(|k| k.verdict == verdict).unwrap();
        file(&dir, verdict, known.history)
    });
    let broken = file(&dir, "broken", "");
    let status = |more: &[&str], files: &[&String]| {
        let mut arguments = vec!["--model", "cas-register", "--format", "jepsen-log"];
        arguments.extend_from_slice(more);
        arguments.extend(files.iter().map(|f| f.as_str()));
        let output = check(&arguments);
        (output.status.code().unwrap(), stdout(&output).lines().count())
    };
    assert_eq!(status(&[], &[&good, &good]), (0, 2));
    assert_eq!(status(&[], &[&good, &broken, &violation]), (1, 2));
    assert_eq!(status(&["--budget-configs", "0"], &[&broken, &good]), (65, 1));
    assert_eq!(status(&["--budget-configs", "0"], &[&good]), (2, 1));
    assert_eq!(status(&["--time-limit-ms", "0"], &[&good]), (2, 1));
}

#[test]
fn a_budget_that_ends_is_unknown_and_says_which() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "h", JEPSEN_LOG[0].history);
    for (flag, limit) in [("--budget-configs", "configurations"), ("--time-limit-ms", "time")] {
        let output =
            check(&["--model=cas-register", "--format=jepsen-log", "-ojson", flag, "0", &path]);
        let line: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(line["verdict"], "unknown", "{line}");
        assert_eq!(line["limit"], limit, "{line}");
        assert_eq!(output.status.code(), Some(2));
    }
}

#[test]
fn an_explanation_names_the_first_answer_that_no_order_explains() {
    let dir = TempDir::new().unwrap();
    let history = r#"{:process 0, :type :invoke, :f :append, :key "a", :value "x"}
{:process 0, :type :ok, :f :append, :key "a", :value "x"}
{:process 1, :type :invoke, :f :get, :key "b", :value nil}
{:process 1, :type :ok, :f :get, :key "b", :value ""}
{:process 2, :type :invoke, :f :append, :key "a", :value "y"}
{:process 1, :type :invoke, :f :get, :key "a", :value nil}
{:process 1, :type :ok, :f :get, :key "a", :value "xy"}
{:process 1, :type :invoke, :f :get, :key "a", :value nil}
{:process 1, :type :ok, :f :get, :key "a", :value "x"}
{:process 1, :type :invoke, :f :get, :key "a", :value nil}
{:process 1, :type :ok, :f :get, :key "a", :value "xy"}
"#;
    let path = file(&dir, "h", history);
    let arguments = ["--model", "kv", "--format", "edn", "--explain", &path];
    let output = check(&arguments);
    let expected = r#" violation
  key "a":
  no order explains the first 3 of its 4 answers; without the last of them there is one
  the answer that none explains:
    line 8-9: process 1 get -> "x"
  an order of what was answered before:
    line 1-2: process 0 append "x"
    line 5-…: process 2 append "y" -> ?
    line 6-7: process 1 get -> "xy"
    which leaves "xy"
  in flight or never answered at that time:
    line 5-…: process 2 append "y" -> ?
"#;
    assert_eq!(stdout(&output), format!("{path}{expected}"));
    let output = check(&[&arguments[..], &["-o", "json"]].concat());
    let line: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(line["violated_key"], "a");
    assert_eq!(line["witness"]["refused"]["called"], 8);
    assert_eq!(line["operations"], 6);
    assert_eq!(line["unanswered"], 1);
}

/// If several answers have the same time, the correct ones are not blamed.
#[test]
fn the_wrong_one_of_simultaneous_answers_is_blamed() {
    let dir = TempDir::new().unwrap();
    for wrong in [0, 1, 2] {
        let mut history = String::new();
        for (time, kind) in [(1, "invoke"), (5, "ok")] {
            for process in 0..3 {
                let value = if process == wrong && kind == "ok" { "3" } else { "null" };
                let record = format!(
                    r#"{{"time_ns":{time},"process":{process},"type":"{kind}","f":"read","value":{value}}}"#
                );
                history.push_str(&(record + "\n"));
            }
        }
        let path = file(&dir, "h", &history);
        let arguments = ["--model=cas-register", "--format=jsonl", "--explain", "-ojson", &path];
        let line: Value = serde_json::from_str(&stdout(&check(&arguments))).unwrap();
        let witness = &line["witness"];
        assert_eq!(witness["refused"]["process"], wrong, "{line}");
        assert_eq!(witness["answers"], wrong + 1, "{line}");
        assert_eq!(witness["shortest"], true, "{line}");
        assert_eq!(witness["before"].as_array().unwrap().len(), wrong, "{line}");
    }
}

#[test]
fn a_history_of_no_operation_says_so() {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "h", "[{:process :nemesis, :type :info, :f :start}]");
    let output = check(&["--model", "cas-register", "--format", "edn", &path]);
    assert_eq!(stdout(&output), format!("{path} linearizable\n"));
    assert_eq!(stderr(&output), format!("{path}: it has 0 operations\n"));
}

#[test]
fn every_key_that_no_order_explains_is_reported() {
    let dir = TempDir::new().unwrap();
    let mut history = String::new();
    for (key, seen) in [("a", "x"), ("b", ""), ("c", "y")] {
        for kind in ["invoke", "ok"] {
            let get =
                format!("{{:process 1, :type :{kind}, :f :get, :key {key:?}, :value {seen:?}}}\n");
            history.push_str(&get);
        }
    }
    let path = file(&dir, "h", &history);
    let arguments = ["--model", "kv", "--format", "edn", "--explain", &path];
    let text = stdout(&check(&arguments));
    assert!(text.contains("key \"a\":") && text.contains("key \"c\":"), "{text}");
    let output = check(&[&arguments[..], &["-o", "json"]].concat());
    let line: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(line["violated_keys"], serde_json::json!(["a", "c"]));
    assert_eq!(line["violated_key"], "a");
}

/// The time limit of a file also applies while the search is prepared.
#[test]
fn forty_thousand_operations_on_one_key_end_at_their_time_limit() {
    let dir = TempDir::new().unwrap();
    let mut history = String::new();
    for number in 0..20_000 {
        for f in ["write", "read"] {
            for kind in ["invoke", "ok"] {
                let op = format!("{{:process 1, :type :{kind}, :f :{f}, :value {number}}}\n");
                history.push_str(&op);
            }
        }
    }
    let path = file(&dir, "h", &history);
    let limited = |limit_ms: &str| -> Value {
        let arguments = ["--model=cas-register", "--format=edn", "-ojson", "--time-limit-ms"];
        let arguments = [&arguments[..], &[limit_ms, &path]].concat();
        serde_json::from_str(&stdout(&check(&arguments))).unwrap()
    };
    let line = limited("100");
    assert_eq!((line["verdict"].as_str(), line["limit"].as_str()), (Some("unknown"), Some("time")));
    // Compared with the whole search, because a busy machine takes more than the limit to notice it.
    let elapsed_ms = |line: &Value| line["elapsed_ms"].as_u64().unwrap();
    let whole = limited("600000");
    assert_eq!(whole["verdict"], "linearizable");
    assert!(elapsed_ms(&line) * 2 < elapsed_ms(&whole), "{line} {whole}");
}

fn entry(history: &mut String, process: usize, kind: &str, f: &str, value: &str) {
    let entry = format!("{{:process {process}, :type :{kind}, :f :{f}, :value {value}}}\n");
    history.push_str(&entry);
}

/// This many concurrent writes, each read by some client; before they are answered, one client reads nil repeatedly.
fn called_together(writes: usize, nils: usize) -> String {
    let mut history = String::new();
    let numbers: Vec<String> = (1..=writes).map(|number| number.to_string()).collect();
    let with_numbers = || numbers.iter().enumerate();
    with_numbers().for_each(|(at, n)| entry(&mut history, at, "invoke", "write", n));
    for _ in 0..nils {
        entry(&mut history, writes, "invoke", "read", "nil");
        entry(&mut history, writes, "ok", "read", "nil");
    }
    let reader = |at| writes + 1 + at;
    with_numbers().for_each(|(at, _)| entry(&mut history, reader(at), "invoke", "read", "nil"));
    with_numbers().for_each(|(at, n)| entry(&mut history, at, "ok", "write", n));
    with_numbers().for_each(|(at, n)| entry(&mut history, reader(at), "ok", "read", n));
    history
}

fn checked(history: &str, model: &str, limit_ms: &str) -> Value {
    let dir = TempDir::new().unwrap();
    let path = file(&dir, "h", history);
    let arguments =
        ["--model", model, "--format=edn", "-ojson", "--time-limit-ms", limit_ms, &path];
    serde_json::from_str(&stdout(&check(&arguments))).unwrap()
}

/// One step of the search may visit every operation in flight, once for each operation that is answered.
#[test]
fn thousands_of_operations_in_flight_end_at_their_time_limit() {
    let line = checked(&called_together(8_000, 8_000), "cas-register", "500");
    assert!(line["verdict"] != "violation", "{line}");
    assert!(line["elapsed_ms"].as_u64().unwrap() < 1_500, "{line}");
}

#[test]
fn thousands_of_writes_that_are_called_together_are_judged() {
    for (writes, nils) in [(8_000, 0), (3_000, 3_000)] {
        let line = checked(&called_together(writes, nils), "cas-register", "30000");
        assert_eq!(line["verdict"], "linearizable", "{line}");
    }
}

/// A text that grows by many appends is not copied for each.
#[test]
fn one_client_that_appends_twelve_thousand_times_is_judged() {
    let (mut history, mut all) = (String::new(), String::new());
    let mut entries = |f: &str, given: &str, answer: &str| {
        for (kind, value) in [("invoke", given), ("ok", answer)] {
            let entry =
                format!("{{:process 0, :type :{kind}, :f :{f}, :key \"0\", :value \"{value}\"}}\n");
            history.push_str(&entry);
        }
    };
    for number in 0..12_000 {
        let more = format!("{number:020}");
        entries("append", &more, &more);
        all.push_str(&more);
    }
    entries("get", "", &all);
    let line = checked(&history, "kv", "60000");
    assert_eq!((line["verdict"].as_str(), line["limit"].as_str()), (Some("linearizable"), None));
}
