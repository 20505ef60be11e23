//! Commands that are refused because of the input, a key, a certificate, a name, or a cluster without a leader.

use crate::bad_input::setup::{
    HANGS, PATIENCE, batch, counts, ctl, ended, job, lines, rows, runs, until_said, until_state,
};
use anyhow::Result;
use rollout_tests::{Batch, Fleet, FleetOptions, Process, WorkerOptions, eventually};
use std::net::TcpListener;
use std::time::{Duration, Instant};

#[test]
fn a_broken_input_is_reported_by_file_line_and_column_before_anything_is_submitted() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let good = rows("good", 3);
    let broken = format!("{good}{{\"prompt\": 7}}\n{good}not json\n").replacen("good-0", "x", 1);
    let broken = broken.replacen("good-1", "y", 1).replacen("good-2", "z", 1);
    let config = job(&fleet, "broken", &broken, "")?;
    let said = ["broken.jsonl:4:12: ", "broken.jsonl:8:", "nothing was submitted"];
    batch(&fleet, &config, &["--name", "broken"])?.expect(2, &said);

    // A dry run lists every error.
    let config = job(&fleet, "many", &"{\"prompt\": 7}\n".repeat(60), "")?;
    let dry = batch(&fleet, &config, &["--dry-run"])?;
    dry.expect(2, &["many.jsonl:1:12: ", "many.jsonl:60:12: "]);
    assert_eq!(dry.err.lines().filter(|l| l.contains("many.jsonl:")).count(), 60, "{dry:?}");

    let config = job(&fleet, "url", &rows("a", 1), "[store]\nurl = \"ftp://host/dir\"\n")?;
    batch(&fleet, &config, &["--dry-run"])?.expect(2, &["object store ftp://host/dir"]);

    // A store that is neither the cluster's nor in the members' list: members write nothing there.
    let own = format!("[store]\nurl = \"file://{}\"\n", fleet.path("elsewhere").display());
    let config = job(&fleet, "own", &rows("a", 5), &own)?;
    let out = batch(&fleet, &config, &["--name", "own"])?;
    assert!(out.err.contains("[store] urls"), "{out:?}");
    assert_eq!(runs(&fleet)?, 0, "a run exists");

    let twice = format!("{}{}", rows("a", 5), "{\"id\":\"a-2\",\"prompt\":\"other\"}\n");
    let config = job(&fleet, "twice", &twice, "")?;
    let said = ["twice.jsonl:6:", "twice.jsonl:3\n", "nothing was submitted"];
    batch(&fleet, &config, &["--name", "twice"])?.expect(2, &said);

    // A store that refuses the input: a file in place of the run's directory.
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
fn unreachable_members_and_refused_callers_are_reported_with_the_reason() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    fleet.start_worker("w2", &WorkerOptions::default())?;
    eventually("the workers are there", PATIENCE, || {
        fleet.rows_done_by("w1").and(fleet.rows_done_by("w2"))
    });

    // A closed port; a port without TLS; a name that does not exist.
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

    // A worker's certificate may not call users' methods, and is valid only for its own name.
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
fn a_command_without_a_leader_says_so_and_retries_until_its_time_out() -> Result<()> {
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

    // The same for a run in progress: the command gives up, the run continues.
    let config = job(&fleet, "under-way", &format!("{HANGS}\n"), "")?;
    let args = ["infer", "batch", "--config", &config, "--name", "under-way", "--timeout", "3s"];
    let mut watches = Process::start(fleet.rollout(&args), &fleet.path("under-way.log"))?;
    eventually("its row runs", PATIENCE, || counts(&fleet, "under-way", "running", "1"));
    // Wait until it has submitted; before that, the outcome of its last request would be unknown.
    until_said("it watches", &watches, &["0 / 1 row "]);
    fleet.member_process("c1").kill();
    assert_eq!(watches.wait(PATIENCE)?.code(), Some(3), "{}", fleet.logs());
    until_said("it says how to come back", &watches, &["no leader", "--resume under-way\n"]);
    fleet.start_member("c1")?;
    until_state(&fleet, "under-way", "running");
    fleet.passed()
}
