//! What bad input gets: a sentence that names the place and says what to do, and nothing lost.

use anyhow::{Context, Result};
use rollout_tests::{Batch, Fleet, FleetOptions, Process, WorkerOptions, eventually, output};
use serde_json::Value;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// A row that a mock engine never finishes.
const HANGS: &str = r#"{"prompt":"MOCK_HANG"}"#;

/// How a command ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ended {
    /// Fails unless the exit status is `code` and stderr contains all of `said`.
    #[track_caller]
    fn expect(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        for words in said {
            assert!(self.err.contains(words), "{words:?} is not said: {self:?}");
        }
    }
}

fn ended(command: Command) -> Result<Ended> {
    let out = output(command, Duration::from_secs(120))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Ended { code: out.status.code(), out: text(&out.stdout), err: text(&out.stderr) })
}

fn ctl(fleet: &Fleet, args: &[&str]) -> Result<Ended> {
    let mut command = fleet.program("rolloutctl");
    command.arg("--context").arg(fleet.path("operator.toml")).args(args);
    ended(command)
}

/// Writes a batch file and its input; the lines of the input are given.
fn job(fleet: &Fleet, name: &str, input: &str, more: &str) -> Result<String> {
    let (path, out) = (fleet.path(&format!("{name}.jsonl")), fleet.path(&format!("{name}-out")));
    std::fs::write(&path, input)?;
    let config = fleet.path(&format!("{name}.batch.toml"));
    let text = format!(
        "[model]\nuri = \"mock/tiny\"\n[sampling]\nmax_tokens = 16\n[input]\nglob = {path:?}\n\
         [output]\ndir = {out:?}\n{more}"
    );
    std::fs::write(&config, text)?;
    Ok(config.to_string_lossy().into_owned())
}

fn batch(fleet: &Fleet, config: &str, more: &[&str]) -> Result<Ended> {
    let mut args = vec!["infer", "batch", "--config", config];
    args.extend(more);
    ended(fleet.rollout(&args))
}

fn runs(fleet: &Fleet) -> Result<usize> {
    let list = fleet.ctl_json(&["run", "list"])?;
    let runs = list.get("runs").unwrap_or(&list);
    Ok(runs.as_array().with_context(|| list.to_string())?.len())
}

fn run_state(fleet: &Fleet, name: &str) -> Option<(String, String)> {
    let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", name]).ok()?;
    let text = |key: &str| Some(run.get("run")?.get(key)?.as_str()?.to_owned());
    Some((text("state")?, text("reason").unwrap_or_default()))
}

/// Whether the run counts so many of its rows so.
fn counts(fleet: &Fleet, name: &str, what: &str, rows: &str) -> Option<()> {
    let run = fleet.ctl_json(&["--timeout", "5s", "run", "describe", name]).ok()?;
    (run["run"]["counts"][what] == rows).then_some(())
}

fn until_state(fleet: &Fleet, name: &str, state: &str) -> String {
    let what = format!("run {name} is {state}");
    eventually(&what, PATIENCE, || run_state(fleet, name).filter(|s| s.0 == state)).1
}

fn until_said(what: &str, process: &Process, words: &[&str]) -> String {
    eventually(what, PATIENCE, || {
        let log = std::fs::read_to_string(&process.log).unwrap_or_default();
        words.iter().all(|w| log.contains(w)).then_some(log)
    })
}

fn rows(name: &str, count: u64) -> String {
    (0..count).map(|n| format!("{{\"id\":\"{name}-{n}\",\"prompt\":\"say {n}\"}}\n")).collect()
}

fn lines(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    text.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn slow_worker() -> WorkerOptions {
    let engine = "kind = \"mock\"\nslots = 1\nconcurrency = 8\nlatency_ms_min = 20\n\
                  latency_ms_max = 40\n";
    WorkerOptions { engine: engine.into(), head: "[part]\nlinger_ms = 100\n".into() }
}

#[test]
fn a_broken_input_is_told_by_file_line_and_column_before_anything_is_submitted() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let good = rows("good", 3);
    let broken = format!("{good}{{\"prompt\": 7}}\n{good}not json\n").replacen("good-0", "x", 1);
    let broken = broken.replacen("good-1", "y", 1).replacen("good-2", "z", 1);
    let config = job(&fleet, "broken", &broken, "")?;
    let said = ["broken.jsonl:4:12: ", "broken.jsonl:8:", "nothing was submitted"];
    batch(&fleet, &config, &["--name", "broken"])?.expect(2, &said);

    // A dry run lists every one.
    let config = job(&fleet, "many", &"{\"prompt\": 7}\n".repeat(60), "")?;
    let dry = batch(&fleet, &config, &["--dry-run"])?;
    dry.expect(2, &["many.jsonl:1:12: ", "many.jsonl:60:12: "]);
    assert_eq!(dry.err.lines().filter(|l| l.contains("many.jsonl:")).count(), 60, "{dry:?}");

    let config = job(&fleet, "url", &rows("a", 1), "[store]\nurl = \"ftp://host/dir\"\n")?;
    batch(&fleet, &config, &["--dry-run"])?.expect(2, &["object store ftp://host/dir"]);

    // A store that is neither the cluster's nor listed by the members: they write nothing there.
    let own = format!("[store]\nurl = \"file://{}\"\n", fleet.path("elsewhere").display());
    let config = job(&fleet, "own", &rows("a", 5), &own)?;
    let out = batch(&fleet, &config, &["--name", "own"])?;
    assert!(out.err.contains("[store] urls"), "{out:?}");
    assert_eq!(runs(&fleet)?, 0, "a run exists");

    let twice = format!("{}{}", rows("a", 5), "{\"id\":\"a-2\",\"prompt\":\"other\"}\n");
    let config = job(&fleet, "twice", &twice, "")?;
    let said = ["twice.jsonl:6:", "twice.jsonl:3\n", "nothing was submitted"];
    batch(&fleet, &config, &["--name", "twice"])?.expect(2, &said);

    // A store that refuses the input: a file in the place of the run's directory.
    std::fs::create_dir_all(fleet.path("store/runs/default"))?;
    std::fs::write(fleet.path("store/runs/default/refused"), "")?;
    let config = job(&fleet, "refused", &rows("a", 5), "")?;
    let said = ["object store", &fleet.store_url(), "nothing was submitted"];
    batch(&fleet, &config, &["--name", "refused"])?.expect(1, &said);

    assert_eq!(runs(&fleet)?, 0, "a run exists");
    fleet.passed()
}

#[test]
fn an_unknown_key_is_refused_with_the_nearest_known_one() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let more = "[run]\nfailure_max = 3\n";
    let config = job(&fleet, "key", &rows("a", 1), more)?;
    let said = ["key.batch.toml:", "\"failure_max\"", "\"failures_max\""];
    batch(&fleet, &config, &["--dry-run"])?.expect(2, &said);

    fleet.start_worker("w1", &WorkerOptions::default())?;
    for (program, file, key, wrong, code) in [
        ("rollout-worker", "worker-w1.toml", "data_dir", "data_dri", 2),
        ("rollout-worker", "worker-w1.toml", "concurrency", "concurency", 2),
        ("rollout-coordinator", "c1.toml", "data_dir", "data_dri", 78),
        ("rollout-coordinator", "c1.toml", "cert_file", "certfile", 78),
    ] {
        let text = std::fs::read_to_string(fleet.path(file))?;
        let path = fleet.path("wrong.toml");
        std::fs::write(&path, text.replacen(key, wrong, 1))?;
        let mut command = fleet.program(program);
        command.arg("--config").arg(&path).arg("--check-config");
        let refused = ended(command)?;
        refused.expect(code, &["wrong.toml", wrong, "did you mean", key]);
        let mut command = fleet.program(program);
        command.arg("--config").arg(fleet.path(file)).arg("--check-config");
        assert_eq!(ended(command)?.code, Some(0), "{program} refuses its own file");
    }
    fleet.passed()
}

#[test]
fn who_cannot_be_reached_and_who_may_not_call_is_told_with_the_reason() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    fleet.start_worker("w2", &WorkerOptions::default())?;
    eventually("the workers are there", PATIENCE, || {
        fleet.rows_done_by("w1").and(fleet.rows_done_by("w2"))
    });

    // Nobody listens; somebody listens who speaks no TLS; a name that does not exist.
    let closed = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let mute = TcpListener::bind("127.0.0.1:0")?;
    let no_tls = mute.local_addr()?.to_string();
    std::thread::spawn(move || {
        for stream in mute.incoming().flatten() {
            let _ = std::io::Write::write_all(&mut &stream, b"220 not TLS at all\r\n");
        }
    });
    let nowhere = "no-such-host.invalid:7420".to_owned();
    for (endpoint, phase, code) in [(closed, "tcp", 3), (no_tls, "tls", 7), (nowhere, "dns", 3)] {
        let said = [endpoint.as_str(), &format!("at {phase}")];
        ctl(&fleet, &["-e", &endpoint, "--timeout", "1s", "run", "list"])?.expect(code, &said);
    }

    // A worker's certificate calls nothing of users, and speaks for its own name alone.
    let tls = |file: &str| fleet.path("tls").join(file).to_string_lossy().into_owned();
    let (cert, key) = (tls("worker-w1.pem"), tls("worker-w1.key"));
    let refused = ctl(&fleet, &["--cert", &cert, "--key", &key, "run", "list"])?;
    refused.expect(7, &["w1", "Runs/", "a client or an admin"]);
    let member = format!("x={0},{0},z", fleet.client_addr("c1"));
    let args = ["cluster", "bootstrap", "--member", &member, "--store", "file:///nowhere"];
    let mut command = fleet.program("rolloutctl");
    command.arg("--context").arg(fleet.path("user.toml")).args(args);
    ended(command)?.expect(7, &["user", "Cluster/Bootstrap", "admin"]);
    let impostor = fleet.start_impostor("impostor", "w2", "w1", "")?;
    until_said("an impostor is refused", &impostor, &["the certificate is w1's, not w2's"]);

    fleet.passed()
}

#[test]
fn a_second_process_under_a_live_name_is_refused_with_both_addresses() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let head = "address = \"host-one:1\"\n".to_owned();
    let options = WorkerOptions { head, ..WorkerOptions::default() };
    fleet.start_worker("w1", &options)?;
    eventually("the worker is there", PATIENCE, || fleet.rows_done_by("w1"));
    let mut second = fleet.start_impostor("second", "w1", "w1", "address = \"host-two:2\"")?;
    until_said("it is refused", &second, &["host-one:1", "host-two:2", "RO-"]);
    let mut batch = Batch::submit(&fleet, "mine", 100, "")?;
    batch.finish(&fleet)?;
    assert_eq!(fleet.rows_done_by("w1"), Some(100), "the first goes on");
    second.kill();
    fleet.passed()
}

#[test]
fn without_a_leader_a_command_says_so_and_tries_until_its_time_out() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    for name in ["c2", "c3"] {
        fleet.member_process(name).kill();
    }
    eventually("the last member knows that it leads nobody", PATIENCE, || {
        fleet.ctl_json(&["--timeout", "2s", "status"]).ok()?["leader"].is_null().then_some(())
    });
    let config = job(&fleet, "late", &rows("late", 50), "")?;
    let begun = Instant::now();
    let gave_up = batch(&fleet, &config, &["--name", "late", "--timeout", "3s"])?;
    gave_up.expect(3, &["no leader"]);
    assert!(begun.elapsed() >= Duration::from_secs(3), "it gave up early: {gave_up:?}");
    ctl(&fleet, &["--timeout", "1s", "run", "list"])?
        .expect(3, &["there is no leader", "not confirmed"]);
    // The status needs no quorum.
    let status = ctl(&fleet, &["--timeout", "2s", "status"])?;
    assert!(status.out.contains("c1") && status.out.contains("c3"), "{status:?}");

    let input = fleet.path("late.jsonl");
    let rows = String::from_utf8(std::fs::read(&input)?)?;
    assert_eq!(rows.lines().count(), 50);
    let args = ["infer", "batch", "--config", &config, "--name", "late", "--timeout", "60s"];
    let mut waits = Process::start(fleet.rollout(&args), &fleet.path("late.log"))?;
    until_said("it says what it waits for", &waits, &["waiting: ", "no leader"]);
    fleet.start_member("c2")?;
    let status = waits.wait(PATIENCE)?;
    assert!(status.success(), "{status}{}", fleet.logs());
    assert_eq!(lines(&fleet.path("late-out/completions.jsonl"))?.len(), 50);

    // The same of a run that is under way: the command gives up, the run does not.
    let config = job(&fleet, "under-way", &format!("{HANGS}\n"), "")?;
    let args = ["infer", "batch", "--config", &config, "--name", "under-way", "--timeout", "3s"];
    let mut watches = Process::start(fleet.rollout(&args), &fleet.path("under-way.log"))?;
    eventually("its row runs", PATIENCE, || counts(&fleet, "under-way", "running", "1"));
    // While it still submits, what became of its last request would be unknown.
    until_said("it watches", &watches, &["0 / 1 row "]);
    fleet.member_process("c1").kill();
    assert_eq!(watches.wait(PATIENCE)?.code(), Some(3), "{}", fleet.logs());
    until_said("it says how to come back", &watches, &["no leader", "--resume under-way\n"]);
    fleet.start_member("c1")?;
    until_state(&fleet, "under-way", "running");
    fleet.passed()
}

#[test]
fn a_store_that_refuses_a_write_pauses_the_run_and_loses_nothing() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &slow_worker())?;
    fleet.start_worker("w2", &slow_worker())?;
    let mut batch = Batch::submit(&fleet, "full", 1500, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    // A file in the place of the directory of the run's parts.
    let parts = fleet.objects_of("full").join("parts");
    let away = fleet.path("parts-away");
    std::fs::rename(&parts, &away)?;
    std::fs::write(&parts, "")?;
    let reason = until_state(&fleet, "full", "paused");
    assert!(reason.contains("the store refuses: "), "{reason}");
    assert!(reason.contains("full/") && reason.contains("/parts"), "{reason}");
    let said = ["is paused: the store refuses", "rolloutctl run resume full"];
    until_said("the user is told", batch.process(), &said);
    // What was finished meanwhile is in the workers' spools, through their death too.
    fleet.worker_process("w1").kill();
    fleet.start_worker("w1", &slow_worker())?;
    std::fs::remove_file(&parts)?;
    std::fs::rename(&away, &parts)?;
    // Once is enough: a refusal that a worker met before the repair and tells later pauses nothing.
    ctl(&fleet, &["run", "resume", "full"])?.expect(0, &[]);
    batch.finish(&fleet)?;
    let output = batch.output.to_string_lossy().into_owned();
    ended(fleet.rollout(&["verify", "full", "--output", &output]))?.expect(0, &[]);
    fleet.verify()?;
    fleet.passed()
}

/// The object of the run's segment that contains this text.
fn segment_with(fleet: &Fleet, run: &str, text: &str) -> Result<PathBuf> {
    let dir = fleet.objects_of(run).join("segments");
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let bytes = std::fs::read(&path)?;
        if bytes.windows(text.len()).any(|w| w == text.as_bytes()) {
            return Ok(path);
        }
    }
    anyhow::bail!("no segment of {run} has {text}")
}

#[test]
fn a_missing_and_a_corrupt_segment_fail_their_rows_with_their_own_codes() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let more = "[run]\nattempts_max = 2\nfailures_max = 10000\n";
    let config = job(&fleet, "bad", &rows("bad", 9000), more)?;
    let detached = batch(&fleet, &config, &["--name", "bad", "--detach"])?;
    detached.expect(0, &[]);
    let missing = segment_with(&fleet, "bad", "\"bad-0\"")?;
    std::fs::remove_file(&missing)?;
    let corrupt = segment_with(&fleet, "bad", "\"bad-8999\"")?;
    let mut bytes = std::fs::read(&corrupt)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&corrupt, bytes)?;
    fleet.start_worker("w1", &WorkerOptions::default())?;

    let resumed = batch(&fleet, &config, &["--resume", "bad"])?;
    resumed.expect(10, &["4,096 completions", "4,904 rows failed for good", "errors.jsonl"]);
    let errors = lines(&fleet.path("bad-out/errors.jsonl"))?;
    assert_eq!(errors.len(), 4904);
    for (at, code) in [(0, "SEGMENT_MISSING"), (4095, "SEGMENT_MISSING"), (4903, "SEGMENT_CORRUPT")]
    {
        let error = &errors[at]["error"];
        assert_eq!((&error["code"], &error["attempts"]), (&code.into(), &2.into()), "{error}");
    }
    let done = lines(&fleet.path("bad-out/completions.jsonl"))?;
    assert_eq!(done.len(), 4096);
    assert_eq!(done[0]["id"], "bad-4096");
    // The proof says that the input is not what it was.
    let verdict = ended(fleet.rollout(&["verify", "bad"]))?;
    assert_eq!(verdict.code, Some(1), "{verdict:?}");
    assert!(verdict.err.contains("is missing"), "{verdict:?}");
    fleet.passed()
}

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

    // Another spec under that very name.
    let other = std::fs::read_to_string(&config)?.replace("max_tokens = 16", "max_tokens = 17");
    std::fs::write(&config, other)?;
    batch(&fleet, &config, &["--resume", "mix"])?.expect(5, &["another model, sampling"]);
    batch(&fleet, &config, &["--resume", "none"])?.expect(4, &["RO-2001"]);

    // The same again from the parts, and the proof of it.
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

    // A part that is not what was written.
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

    // Paused: nothing more is granted, what runs is finished; a part of the output can be had.
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

    // Ctrl-C never cancels, however often it comes; a command does.
    let mut batch = Batch::submit(&fleet, "go", 3000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 50);
    batch.process().signal(libc::SIGINT)?;
    batch.process().signal(libc::SIGINT)?;
    assert_eq!(batch.process().wait(PATIENCE)?.code(), Some(130));
    until_said("it says how to cancel", batch.process(), &["rollout run cancel go"]);
    assert_eq!(run_state(&fleet, "go").map(|s| s.0).as_deref(), Some("running"));
    ended(fleet.rollout(&["run", "cancel", "go"]))?.expect(0, &["run go is cancelled"]);
    until_state(&fleet, "go", "cancelled");

    // So does the operator; the user's command says so and fails.
    let mut batch = Batch::submit(&fleet, "end", 3000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 50);
    ctl(&fleet, &["run", "cancel", "end", "--reason", "too dear"])?.expect(0, &[]);
    assert_eq!(batch.process().wait(PATIENCE)?.code(), Some(1));
    until_said("it says why", batch.process(), &["was cancelled: too dear"]);
    let idle = |name| counts(&fleet, name, "running", "0");
    eventually("no row of a cancelled run is held", PATIENCE, || idle("go").and(idle("end")));
    fleet.passed()
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => files_below(&path, found),
            false => found.push(path),
        }
    }
}

/// Flips a bit in the middle of the largest file of a member's records.
fn damage(dir: &Path) -> Result<()> {
    let mut files = Vec::new();
    files_below(dir, &mut files);
    files.retain(|p| p.extension().is_some_and(|e| e == "sst" || e == "log"));
    files.sort_by_key(|p| std::fs::metadata(p).map(|m| m.len()).unwrap_or(0));
    let path = files.pop().context("there are records")?;
    let mut bytes = std::fs::read(&path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    Ok(std::fs::write(&path, bytes)?)
}

#[test]
fn a_member_with_foreign_or_damaged_data_stops_and_says_what_to_do() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    Batch::submit(&fleet, "first", 3000, "")?.finish(&fleet)?;
    fleet.verify()?;
    let leader = fleet.leader();
    let mut others = fleet.member_names();
    others.retain(|name| *name != leader);
    let (one, two) = (others[0].clone(), others[1].clone());

    // Flags that contradict the directory.
    fleet.member_process(&one).kill();
    let config = fleet.path(&format!("{one}.toml"));
    let start = |flag: &str, value: &str| -> Result<Ended> {
        let mut command = fleet.program("rollout-coordinator");
        command.arg("--config").arg(&config).arg(flag).arg(value);
        ended(command)
    };
    let name = start("--name", "c9")?;
    assert!(name.code.is_some_and(|c| c != 0), "{name:?}");
    for words in [&one, "c9", "name", &fleet.data_dir(&one).display().to_string()] {
        assert!(name.err.contains(words), "{words} is not said: {name:?}");
    }
    let status = fleet.ctl_json(&["status"])?;
    let id = status["clusterId"].as_str().with_context(|| status.to_string())?.to_owned();
    let other = "00000000000000000000000000000001";
    let cluster = start("--cluster-id", other)?;
    assert!(cluster.code.is_some_and(|c| c != 0), "{cluster:?}");
    for words in [id.as_str(), other, "cluster id"] {
        assert!(cluster.err.contains(words), "{words} is not said: {cluster:?}");
    }

    // An identity that somebody wrote by hand.
    let identity = fleet.data_dir(&one).join("IDENTITY");
    let text = std::fs::read_to_string(&identity)?;
    std::fs::write(&identity, text.replace(&id, other))?;
    let changed = start("--name", &one)?;
    changed.expect(1, &[&identity.display().to_string(), "corrupt", "replace it under a new id"]);
    std::fs::write(&identity, text)?;

    // A bit in the middle of its log, and one in the other's image.
    fleet.member_process(&two).terminate(Duration::from_secs(20))?;
    for (name, part) in [(&one, "log"), (&two, "image")] {
        let dir = fleet.data_dir(name).join(part);
        damage(&dir)?;
        fleet.start_member(name)?;
        let status = fleet.member_process(name).wait(PATIENCE)?;
        let log = std::fs::read_to_string(fleet.path(&format!("{name}.log")))?;
        assert!(!status.success(), "{part}: {status}: {log}");
        let last = log.lines().rfind(|l| l.starts_with("error: ")).context("an error")?;
        for words in [&dir.display().to_string(), "corrupt", "replace it under a new id"] {
            assert!(last.contains(words), "{part}: {words} is not said: {last}");
        }
    }
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

    // Fields are carried as they were written, however deep, long or like our own names.
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
