//! Submitting the same batch again: after edits, concurrently, and after everything was killed. Nothing that is
//! finished runs again, and no prompt gets another's completion.

mod several_segments;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Executions, Fleet, FleetOptions, Process, WorkerOptions, eventually};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

/// Rows that two workers of two slots may run at once.
const IN_ENGINES: u64 = 2 * 2 * 16;
const PATIENCE: Duration = Duration::from_secs(120);

fn worker(fleet: &Fleet, name: &str, latency_ms: (u64, u64)) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let (min, max) = latency_ms;
    let engine = format!(
        "kind = \"mock\"\nslots = 2\nconcurrency = 16\nlatency_ms_min = {min}\nlatency_ms_max = {max}\n\
         side_file = {side:?}\n"
    );
    WorkerOptions { engine, head: String::new() }
}

/// A batch file whose input and settings change from one command to the next.
struct Job<'a> {
    fleet: &'a Fleet,
    name: &'static str,
    /// Whether the file sets that name; otherwise the run gets a generated one.
    named: bool,
    sides: Vec<PathBuf>,
    model: &'static str,
    max_tokens: u32,
    priority: u32,
    rows: Vec<String>,
    /// Executions up to the last command.
    executed: u64,
}

impl<'a> Job<'a> {
    fn new(fleet: &'a Fleet, name: &'static str, workers: &[&str], rows: Vec<String>) -> Self {
        let sides = workers.iter().map(|w| fleet.path(&format!("{w}.side"))).collect();
        let (model, max_tokens, priority, executed) = ("mock/tiny", 16, 5, 0);
        let named = true;
        Self { fleet, name, named, sides, model, max_tokens, priority, rows, executed }
    }

    fn out(&self) -> PathBuf {
        self.fleet.path(&format!("{}-out", self.name))
    }

    fn run_id(&self) -> Result<String> {
        Ok(std::fs::read_to_string(self.out().join("run-id"))?.trim().to_owned())
    }

    /// Writes both files.
    fn write(&self) -> Result<()> {
        let input = self.fleet.path(&format!("{}.jsonl", self.name));
        std::fs::write(&input, self.rows.join("\n") + "\n")?;
        let config = self.fleet.path(&format!("{}.batch.toml", self.name));
        let name = if self.named { format!("name = {:?}\n", self.name) } else { String::new() };
        let text = format!(
            "[model]\nuri = {:?}\n[sampling]\nmax_tokens = {}\n[input]\nglob = {input:?}\n[output]\ndir = {:?}\n\
             [run]\npriority = {}\n{name}",
            self.model,
            self.max_tokens,
            self.out(),
            self.priority
        );
        Ok(std::fs::write(&config, text)?)
    }

    /// Starts the command.
    fn spawn(&self, more: &[&str]) -> Result<Process> {
        let config = self.fleet.path(&format!("{}.batch.toml", self.name));
        let config = config.to_string_lossy().into_owned();
        let args = ["infer", "batch", "--config", &config, "--timeout", "90s"];
        let log = self.fleet.path(&format!("{}.batch.log", self.name));
        Process::start(self.fleet.rollout(&[&args, more].concat()), &log)
    }

    fn start(&self, more: &[&str]) -> Result<Process> {
        self.write()?;
        self.spawn(more)
    }

    /// Runs the command to its end and returns how many executions it took.
    fn run(&mut self, more: &[&str]) -> Result<u64> {
        let status = self.start(more)?.wait(PATIENCE).with_context(|| self.fleet.logs())?;
        ensure!(status.success(), "{}: {status}{}", self.name, self.printed());
        self.check()?;
        let now = Executions::read(&self.sides)?.started;
        Ok(now - std::mem::replace(&mut self.executed, now))
    }

    fn printed(&self) -> String {
        let log = self.fleet.path(&format!("{}.batch.log", self.name));
        std::fs::read_to_string(log).unwrap_or_default()
    }

    /// Checks that every row is there once, in order, with the mock's answer to its own prompt, and verifies the run.
    fn check(&self) -> Result<()> {
        let text = std::fs::read_to_string(self.out().join("completions.jsonl"))?;
        let got: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        ensure!(got.len() == self.rows.len(), "{} rows of {}", got.len(), self.rows.len());
        for (number, (row, got)) in self.rows.iter().zip(&got).enumerate() {
            let row: Value = serde_json::from_str(row)?;
            let expected = format!("MOCK:{}", row["prompt"].as_str().unwrap_or_default());
            ensure!(got["completion"] == expected, "row {number}: {got} for {row}");
            ensure!(got["prompt"] == row["prompt"], "row {number} has another prompt");
            ensure!(row.get("id").is_none_or(|id| *id == got["id"]), "row {number} has another id");
        }
        let (run, out) = (self.run_id()?, self.out().to_string_lossy().into_owned());
        let proof = self.fleet.rollout(&["verify", &run, "--output", &out]).output()?;
        ensure!(proof.status.success(), "{}", String::from_utf8_lossy(&proof.stderr));
        Ok(())
    }
}

/// Rows, every third without an id of its own.
fn rows(count: u64) -> Vec<String> {
    let row = |n: u64| match n % 3 {
        0 => format!(r#"{{"prompt":"say {n}"}}"#),
        _ => format!(r#"{{"id":"r{n}","prompt":"say {n}"}}"#),
    };
    (0..count).map(row).collect()
}

fn counts(fleet: &Fleet, run: &str) -> Option<(u64, u64, u64)> {
    let described = fleet.ctl_json(&["--timeout", "5s", "run", "describe", run]).ok()?;
    let counts = described.get("run")?.get("counts")?.clone();
    let get = |key: &str| counts.get(key)?.as_str()?.parse().ok();
    Some((get("done")?, get("carried")?, get("running")?))
}

#[test]
fn only_edited_rows_run_again_and_every_prompt_has_its_own_completion() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = worker(&fleet, "w1", (0, 0));
    fleet.start_worker("w1", &options)?;
    let mut job = Job::new(&fleet, "edit", &["w1"], rows(60));
    assert_eq!((job.run(&[])?, job.run_id()?.as_str()), (60, "edit"));
    assert_eq!((job.run(&[])?, job.run_id()?.as_str()), (0, "edit"), "the same again");
    job.rows[7] = r#"{"id":"r7","prompt":"say seven"}"#.into();
    assert_eq!((job.run(&[])?, job.run_id()?.as_str()), (1, "edit.r2"), "one row edited");
    job.rows.insert(20, r#"{"prompt":"in the middle"}"#.into());
    assert_eq!((job.run(&[])?, job.run_id()?.as_str()), (1, "edit.r3"), "one row added");
    job.rows.drain(3..9);
    assert_eq!(job.run(&[])?, 0, "rows removed");
    job.rows.reverse();
    assert_eq!(job.run(&[])?, 0, "rows in another order");
    job.rows.push(r#"{"prompt":"in the middle"}"#.into());
    assert_eq!(job.run(&[])?, 1, "a second sample of a row");
    job.priority = 6;
    assert_eq!(job.run(&[])?, 0, "a bound that alters no result");
    job.max_tokens = 17;
    assert_eq!(job.run(&[])?, job.rows.len() as u64, "another sampling");
    job.max_tokens = 16;
    assert_eq!(job.run(&[])?, 0, "the sampling of before");
    job.model = "mock/other";
    assert_eq!(job.run(&[])?, job.rows.len() as u64, "another model");
    let (done, carried, _) = counts(&fleet, "edit.r8").context("the eighth revision")?;
    assert_eq!((done, carried), (56, 0), "nothing is carried into another sampling");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_resumed_batch_handles_each_state_of_a_row() -> Result<()> {
    let member_lines = vec![("worker", "started_grace_ms = 1000")];
    let mut fleet = Fleet::start(FleetOptions { member_lines, ..FleetOptions::default() })?;
    let options = worker(&fleet, "w1", (0, 0));
    fleet.start_worker("w1", &options)?;
    // (state in the old revision, row, executions in the old one, executions in the new one)
    let row = |id: &str, prompt: &str| format!(r#"{{"id":"{id}","prompt":"{prompt}"}}"#);
    let table = [
        ("done", row("d", "done"), 1, 0),
        ("failed", row("f", "MOCK_FAIL_INVALID"), 1, 1),
        ("running fresh", row("h", "MOCK_HANG"), 1, 1),
        ("absent", row("a", "absent"), 0, 1),
    ];
    let mut job = Job::new(&fleet, "six", &["w1"], Vec::new());
    job.rows = table[..3].iter().map(|(_, row, ..)| row.clone()).collect();
    let mut first = job.start(&[])?;
    eventually("one row hangs and the others are decided", PATIENCE, || {
        counts(&fleet, "six").filter(|c| c.0 == 1 && c.2 == 1)
    });
    // The same command concurrently: the running row has a live owner and is left alone.
    let mut second = job.spawn(&[])?;
    eventually("the second command follows", PATIENCE, || {
        job.printed().contains("already exists").then_some(())
    });
    let executed = || Executions::read(&job.sides).map(|e| e.started);
    assert_eq!(executed()?, table.iter().map(|t| t.2).sum::<u64>());
    // Its worker dies: the running row is stale and goes to another worker.
    fleet.worker_process("w1").kill();
    let options = worker(&fleet, "w2", (0, 0));
    fleet.start_worker("w2", &options)?;
    let other = [fleet.path("w2.side")];
    eventually("the stale row runs elsewhere", PATIENCE, || {
        Executions::read(&other).ok().filter(|e| e.started == 1)
    });
    first.kill();
    second.kill();
    let mut job = Job::new(&fleet, "six", &["w2"], table.iter().map(|t| t.1.clone()).collect());
    job.executed = 1;
    let refused = job.start(&[])?.wait(PATIENCE)?;
    assert_eq!(refused.code(), Some(5), "{}", job.printed());
    assert!(job.printed().contains("run \"six\" is still running"), "{}", job.printed());
    let mut replacing = job.start(&["--replace"])?;
    eventually("all but the hanging row are decided", PATIENCE, || {
        counts(&fleet, "six.r2").filter(|c| *c == (2, 1, 1))
    });
    let again = Executions::read(&job.sides)?.started - job.executed;
    assert_eq!(again, table.iter().map(|t| t.3).sum::<u64>(), "{}", job.printed());
    replacing.kill();
    fleet.passed()
}

#[test]
fn the_same_file_submitted_by_two_clients_at_once_is_one_run_with_every_row_once() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = worker(&fleet, "w1", (1, 5));
    fleet.start_worker("w1", &options)?;
    let job = Job::new(&fleet, "twice", &["w1"], rows(5000));
    job.write()?;
    let (mut one, mut two) = (job.spawn(&[])?, job.spawn(&[])?);
    for client in [&mut one, &mut two] {
        let status = client.wait(PATIENCE).with_context(|| fleet.logs())?;
        assert!(status.success(), "{status}{}", job.printed());
        job.check()?;
    }
    let executions = Executions::read(&job.sides)?;
    assert_eq!((executions.started, executions.attempts.len()), (5000, 5000));
    let mut edited = Job::new(&fleet, "twice", &["w1"], rows(5001));
    // The same edit by both at once makes one revision.
    edited.write()?;
    let (mut one, mut two) = (edited.spawn(&[])?, edited.spawn(&[])?);
    for client in [&mut one, &mut two] {
        let status = client.wait(PATIENCE).with_context(|| fleet.logs())?;
        assert!(status.success(), "{status}{}", edited.printed());
    }
    edited.executed = 5000;
    edited.check()?;
    assert_eq!(Executions::read(&edited.sides)?.started, 5001);
    assert_eq!(edited.run(&[])?, 1, "of both commands");
    assert_eq!(edited.run_id()?, "twice.r2");
    fleet.passed()
}

#[test]
fn a_file_without_a_name_submitted_by_two_clients_at_once_is_one_run() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = worker(&fleet, "w1", (1, 5));
    fleet.start_worker("w1", &options)?;
    let job = Job { named: false, ..Job::new(&fleet, "nameless", &["w1"], rows(2000)) };
    job.write()?;
    let (mut one, mut two) = (job.spawn(&[])?, job.spawn(&[])?);
    for client in [&mut one, &mut two] {
        let status = client.wait(PATIENCE).with_context(|| fleet.logs())?;
        assert!(status.success(), "{status}{}", job.printed());
    }
    job.check()?;
    let executions = Executions::read(&job.sides)?;
    assert_eq!((executions.started, executions.attempts.len()), (2000, 2000));
    fleet.passed()
}

/// A moment of a submission, and how to see that it has come.
type Moment<'a> = (&'static str, &'a dyn Fn(&Job<'_>) -> bool);

#[test]
fn a_submission_that_is_killed_anywhere_is_finished_by_the_same_command() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = worker(&fleet, "w1", (0, 2));
    fleet.start_worker("w1", &options)?;
    let described = |job: &Job<'_>| {
        let run = job.run_id().ok()?;
        job.fleet.ctl_json(&["--timeout", "5s", "run", "describe", &run]).ok()
    };
    let has_rows = |run: Value| run["run"]["counts"]["rows"].as_str() != Some("0");
    let objects = |job: &Job<'_>, run: &str| job.fleet.path(&format!("store/runs/default/{run}"));
    let stored = |job: &Job<'_>| job.run_id().is_ok_and(|run| objects(job, &run).exists());
    let moments: [Moment<'_>; 4] = [
        ("named", &|job: &Job<'_>| job.run_id().is_ok()),
        ("stored", &stored),
        ("created", &|job: &Job<'_>| described(job).is_some()),
        ("declared", &|job: &Job<'_>| described(job).is_some_and(has_rows)),
    ];
    let (mut executed, mut killed) = (0, 0);
    for (moment, reached) in moments {
        let mut job = Job { named: false, ..Job::new(&fleet, moment, &["w1"], rows(2000)) };
        job.executed = executed;
        let mut first = job.start(&[])?;
        // The command may finish before the check.
        eventually(moment, PATIENCE, || (reached(&job) || !first.runs()).then_some(()));
        killed += u32::from(first.runs());
        first.kill();
        assert_eq!(job.run(&[])?, 2000, "killed when it is {moment}");
        executed = job.executed;
    }
    assert!(killed > 1, "only {killed} of 4 commands were still running when they were killed");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn restart_resumes_with_zero_duplicates() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let workers = ["w1", "w2"];
    for name in workers {
        let options = worker(&fleet, name, (5, 40));
        fleet.start_worker(name, &options)?;
    }
    let mut batch = Batch::submit(&fleet, "all", 8000, "")?;
    // Kill at a moment that differs between runs of this test.
    let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.subsec_nanos();
    let moment = 500 + u64::from(nanos) % 5000;
    let before = batch.until(&fleet, "some is done", |c| c.done >= moment);
    batch.process().kill();
    for name in workers {
        fleet.worker_process(name).kill();
    }
    for name in fleet.member_names() {
        fleet.member_process(&name).kill();
    }
    let sides: Vec<PathBuf> = workers.iter().map(|w| fleet.path(&format!("{w}.side"))).collect();
    let open = open_executions(&sides)?;
    for name in fleet.member_names() {
        fleet.start_member(&name)?;
    }
    for name in workers {
        let options = worker(&fleet, name, (5, 40));
        fleet.start_worker(name, &options)?;
    }
    let after = batch.until(&fleet, "the cluster is back", |_| true);
    assert!(after.done >= before.done, "{} rows were lost at {moment}", before.done - after.done);
    let mut again = Batch::submit_file(&fleet, "all", batch.input.clone(), 8000, "")?;
    again.finish(&fleet)?;
    fleet.verify()?;
    let executions = Executions::read(&sides)?;
    assert_eq!(executions.attempts.len(), 8000);
    let twice = executions.started - 8000;
    println!("{twice} rows ran again, {open} were running when all died at {moment}");
    // Lost rows are those in the engines, and those just finished on their way to the spool: fewer than the engines
    // run at once.
    assert!(twice <= 2 * IN_ENGINES, "{twice} rows ran again, {open} were running");
    fleet.passed()
}

#[test]
fn an_edited_input_reuses_finished_rows_after_everything_was_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let workers = ["w1", "w2"];
    for name in workers {
        let options = worker(&fleet, name, (40, 120));
        fleet.start_worker(name, &options)?;
    }
    let job = Job::new(&fleet, "killed", &workers, rows(6000));
    let mut first = job.start(&[])?;
    let before =
        eventually("some is done", PATIENCE, || counts(&fleet, "killed").filter(|c| c.0 >= 1500));
    assert!(before.0 < 5000, "it is far from its end: {before:?}");
    first.kill();
    let mut rows = job.rows.clone();
    drop(job);
    for name in workers {
        fleet.worker_process(name).kill();
    }
    for name in fleet.member_names() {
        fleet.member_process(&name).kill();
    }
    for name in fleet.member_names() {
        fleet.start_member(&name)?;
    }
    for name in workers {
        let options = worker(&fleet, name, (40, 120));
        fleet.start_worker(name, &options)?;
    }
    // Edit, add and remove rows, and reorder all.
    rows[7] = r#"{"id":"r7","prompt":"say seven"}"#.into();
    rows.insert(20, r#"{"prompt":"in the middle"}"#.into());
    rows.drain(100..110);
    rows.reverse();
    let mut job = Job::new(&fleet, "killed", &workers, rows);
    let refused = job.start(&[])?.wait(PATIENCE)?;
    assert_eq!(refused.code(), Some(5), "the one of before goes on: {}", job.printed());
    // Every completion belongs to its own prompt: the job checks it row by row.
    job.run(&["--replace"])?;
    let (done, carried, running) = counts(&fleet, &job.run_id()?).context("the revision")?;
    assert_eq!((done, running), (job.rows.len() as u64, 0));
    // All done rows are reused except, at most, the removed and the edited ones.
    assert!(carried + 11 >= before.0, "{carried} carried of {} that were done", before.0);
    assert_eq!(job.run(&[])?, 0, "and nothing is left to do");
    fleet.verify()?;
    fleet.passed()
}

/// Executions that were started and not finished.
fn open_executions(sides: &[PathBuf]) -> Result<u64> {
    let mut open = 0i64;
    for side in sides {
        for line in std::fs::read_to_string(side)?.lines() {
            open += if line.ends_with("started") { 1 } else { -1 };
        }
    }
    Ok(u64::try_from(open)?)
}
