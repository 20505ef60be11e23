//! What a user finds in the output, and what a user may do with a run.

use crate::bad_input::setup::{
    HANGS, PATIENCE, batch, counts, ctl, ended, job, lines, rows, run_state, runs, slow_worker,
    until_said, until_state,
};
use anyhow::{Context, Result};
use rollout_tests::{Batch, Fleet, FleetOptions, Process, WorkerOptions, eventually};
use serde_json::Value;

#[test]
fn rows_that_fail_for_good_are_errors_of_the_same_shape_and_a_changed_output_is_found() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut input = rows("mix", 40);
    input.push_str("{\"id\":\"worse\",\"prompt\":\"MOCK_FAIL_INVALID\",\"tag\":[1,{}]}\n");
    input.push_str("{\"id\":\"bad\",\"prompt\":\"MOCK_FAIL_TRANSIENT\"}\n");
    let config = job(&fleet, "mix", &input, "[run]\nattempts_max = 2\n")?;
    batch(&fleet, &config, &["--name", "mix"])?.expect(10, &["2 rows failed for good"]);
    let done = lines(&fleet.path("mix-out/completions.jsonl"))?;
    let errors = lines(&fleet.path("mix-out/errors.jsonl"))?;
    assert_eq!((done.len(), errors.len()), (40, 2));
    let keys = |v: &Value| -> Vec<String> {
        v.as_object().into_iter().flat_map(|o| o.keys().cloned()).collect()
    };
    let mut same = keys(&done[0]);
    same.push("error".into());
    assert_eq!(keys(&errors[1]), same);
    assert_eq!(errors[0]["tag"], serde_json::json!([1, {}]));
    let code = |row: &Value| (row["error"]["code"].clone(), row["error"]["attempts"].clone());
    assert_eq!(code(&errors[0]), ("MOCK_INVALID".into(), 1.into()));
    assert_eq!(code(&errors[1]), ("MOCK_TRANSIENT".into(), 2.into()));

    // Another spec under the same name.
    let other = std::fs::read_to_string(&config)?.replace("max_tokens = 16", "max_tokens = 17");
    std::fs::write(&config, other)?;
    batch(&fleet, &config, &["--resume", "mix"])?.expect(5, &["another model, sampling"]);
    batch(&fleet, &config, &["--resume", "none"])?.expect(4, &["RO-2001"]);

    // Export the same again from the parts, and verify it.
    let dir = fleet.path("again").to_string_lossy().into_owned();
    ended(fleet.rollout(&["export", "mix", "--output", &dir]))?;
    for file in ["completions.jsonl", "errors.jsonl"] {
        let (a, b) = (fleet.path("mix-out").join(file), fleet.path("again").join(file));
        assert_eq!(std::fs::read(a)?, std::fs::read(b)?, "{file}");
    }
    ended(fleet.rollout(&["verify", "mix", "--output", &dir]))?.expect(0, &[]);

    let path = fleet.path("again/completions.jsonl");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replacen("MOCK:say 6\"", "MOCK:say 7\"", 1))?;
    let verdict = ended(fleet.rollout(&["verify", "mix", "--output", &dir]))?;
    verdict.expect(1, &["completions.jsonl:7 "]);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.remove(11);
    std::fs::write(&path, lines.join("\n") + "\n")?;
    let verdict = ended(fleet.rollout(&["verify", "mix", "--output", &dir]))?;
    verdict.expect(1, &["completions.jsonl:12 "]);

    // Damage a part.
    let parts = fleet.objects_of("mix").join("parts");
    let part = std::fs::read_dir(parts)?.next().context("a part")??.path();
    std::fs::write(&part, "something else")?;
    let name = part.file_name().context("a name")?.to_string_lossy().into_owned();
    ended(fleet.rollout(&["verify", "mix"]))?.expect(1, &[&name, "corrupt"]);
    fleet.passed()
}

#[test]
fn two_batch_files_with_one_output_directory_do_not_overwrite_each_other() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let (one, two) =
        (job(&fleet, "one", &rows("one", 40), "")?, job(&fleet, "two", &rows("two", 30), "")?);
    let config = std::fs::read_to_string(&two)?.replace("two-out", "one-out");
    std::fs::write(&two, config)?;
    batch(&fleet, &one, &[])?.expect(0, &[]);
    let completions = fleet.path("one-out/completions.jsonl");
    let before = std::fs::read(&completions)?;
    let said = ["one-out: it belongs to run ", "(batch file ../one.batch.toml)", "add --overwrite"];
    for more in [&[][..], &["--name", "two"], &["--dry-run"]] {
        batch(&fleet, &two, more)?.expect(5, &said);
    }
    assert_eq!((std::fs::read(&completions)?, runs(&fleet)?), (before, 1));
    batch(&fleet, &two, &["--name", "two", "--overwrite"])?.expect(0, &[]);
    assert_eq!(lines(&completions)?.len(), 30);
    batch(&fleet, &one, &[])?.expect(5, &["it belongs to run \"two\""]);
    fleet.passed()
}

#[test]
fn a_user_may_leave_come_back_pause_and_cancel() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow_worker())?;
    let mut batch = Batch::submit(&fleet, "stay", 1500, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 50);
    batch.process().signal(libc::SIGINT)?;
    assert_eq!(batch.process().wait(PATIENCE)?.code(), Some(130));
    let config = fleet.path("stay.batch.toml").to_string_lossy().into_owned();
    let back = format!("rollout infer batch --config {config} --resume stay\n");
    until_said("it says how to come back", batch.process(), &[&back, "rolloutctl run watch stay"]);
    assert_eq!(run_state(&fleet, "stay").map(|s| s.0).as_deref(), Some("running"));

    // While paused, nothing more is granted and running rows finish; a partial output can be exported.
    ctl(&fleet, &["run", "pause", "stay", "--reason", "lunch"])?.expect(0, &[]);
    assert_eq!(until_state(&fleet, "stay", "paused"), "lunch");
    let still = batch.until(&fleet, "nothing runs", |c| c.running == 0);
    assert!(still.done < 1500 && still.pending > 0, "{still:?}");
    let dir = fleet.path("partial").to_string_lossy().into_owned();
    let export = ["export", "stay", "--output", &dir];
    ended(fleet.rollout(&export))?.expect(5, &["--partial"]);
    ended(fleet.rollout(&[&export[..], &["--partial"]].concat()))?.expect(0, &[]);
    let done = lines(&fleet.path("partial/completions.jsonl"))?;
    assert_eq!(done.len() as u64, still.done);
    let number =
        |row: &Value| row["id"].as_str().and_then(|id| id.rsplit('-').next()?.parse::<u64>().ok());
    assert!(done.is_sorted_by_key(number), "out of order");
    assert_eq!(batch.counts(&fleet), Some(still), "a paused run stands still");

    ctl(&fleet, &["run", "resume", "stay"])?.expect(0, &[]);
    let resume = ["infer", "batch", "--config", &config, "--resume", "stay"];
    let mut back = Process::start(fleet.rollout(&resume), &fleet.path("back.log"))?;
    let status = back.wait(PATIENCE)?;
    assert!(status.success(), "{status}{}", fleet.logs());
    batch.check_output()?;

    // Ctrl-C never cancels, however often it is pressed; only a command does.
    let mut batch = Batch::submit(&fleet, "go", 3000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 50);
    batch.process().signal(libc::SIGINT)?;
    batch.process().signal(libc::SIGINT)?;
    assert_eq!(batch.process().wait(PATIENCE)?.code(), Some(130));
    until_said("it says how to cancel", batch.process(), &["rollout run cancel go"]);
    assert_eq!(run_state(&fleet, "go").map(|s| s.0).as_deref(), Some("running"));
    ended(fleet.rollout(&["run", "cancel", "go"]))?.expect(0, &["run go is cancelled"]);
    until_state(&fleet, "go", "cancelled");

    // An operator can cancel too; the user's command says so and fails.
    let mut batch = Batch::submit(&fleet, "end", 3000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 50);
    ctl(&fleet, &["run", "cancel", "end", "--reason", "too dear"])?.expect(0, &[]);
    assert_eq!(batch.process().wait(PATIENCE)?.code(), Some(1));
    until_said("it says why", batch.process(), &["was cancelled: too dear"]);
    let idle = |name| counts(&fleet, name, "running", "0");
    eventually("no row of a cancelled run is held", PATIENCE, || idle("go").and(idle("end")));
    fleet.passed()
}

#[test]
fn a_run_of_which_too_much_fails_is_paused_and_odd_rows_come_back_unchanged() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut input = "{\"prompt\":\"MOCK_FAIL_INVALID\"}\n".repeat(20);
    input.push_str(HANGS);
    let config = job(&fleet, "hopeless", &input, "[run]\nfailures_max = 5\n")?;
    batch(&fleet, &config, &["--name", "hopeless", "--detach"])?.expect(0, &[]);
    let reason = until_state(&fleet, "hopeless", "paused");
    assert!(reason.contains("failed for good, more than failures_max = 5"), "{reason}");

    // Fields are copied as written, however deep or long they are, even if they look like rollout's own names.
    let deep = format!("{}{}", "[".repeat(20_000), "]".repeat(20_000));
    let fields = [
        format!(r#""x":{deep}"#),
        r#""n":123456789012345678901234567890.1234567890"#.into(),
        r#""z":1, "a" : { "b":1.0,"b":2 }"#.into(),
    ];
    let lines: Vec<String> =
        fields.iter().map(|field| format!(r#"{{"prompt":"odd",{field}}}"#)).collect();
    let config = job(&fleet, "odd", &lines.join("\n"), "")?;
    batch(&fleet, &config, &["--name", "odd"])?.expect(0, &[]);
    let text = std::fs::read_to_string(fleet.path("odd-out/completions.jsonl"))?;
    let got: Vec<&str> = text.lines().collect();
    assert_eq!(got.len(), 3);
    for (line, value) in got.iter().zip([&deep, "123456789012345678901234567890.1234567890", "1"]) {
        assert!(line.contains(value), "{value} was changed");
    }
    assert!(got[2].contains(r#""a":{ "b":1.0,"b":2 }"#), "{}", got[2]);
    ended(fleet.rollout(&["verify", "odd"]))?.expect(0, &[]);
    fleet.passed()
}
