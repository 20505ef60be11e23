//! What an agent guarantees, shown with a cluster that the test plays.

mod fake;

use std::path::Path;
use std::time::{Duration, Instant};

use fake::{Fake, Outcome, list};
use rollout_proto::v1;
use rollout_proto::v1::leader_message::Kind;
use rollout_worker::{AgentError, Config, DrainOrder, Drained, Drains, EngineConfig, EngineKind};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// An agent on a runtime of its own, so that it can end as by SIGKILL.
struct Agent {
    runtime: Option<Runtime>,
    drains: Drains,
    drain: Duration,
    ended: Option<JoinHandle<Result<Drained, AgentError>>>,
}

impl Agent {
    fn start(config: Config) -> Self {
        config.check().unwrap();
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let drains = Drains::default();
        let drain = Duration::from_millis(config.timing.drain_ms);
        let ended = runtime.spawn(rollout_worker::run(config, drains.clone()));
        Self { runtime: Some(runtime), drains, drain, ended: Some(ended) }
    }

    async fn drain(mut self) -> Drained {
        self.drains.ask(DrainOrder::rows_for(self.drain, "the test is over"));
        self.ended.take().unwrap().await.unwrap().unwrap()
    }

    async fn kill(mut self) {
        let runtime = self.runtime.take().unwrap();
        tokio::task::spawn_blocking(move || runtime.shutdown_timeout(Duration::from_secs(10)))
            .await
            .unwrap();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn config(dir: &Path, fake: &Fake, engine: impl FnOnce(&mut EngineConfig)) -> Config {
    let mut mock = EngineConfig::new(EngineKind::Mock);
    mock.side_file = Some(dir.join("side"));
    engine(&mut mock);
    let mut config = Config {
        name: "w1".into(),
        data_dir: dir.join("w1"),
        endpoints: fake.state.lock().addrs.clone(),
        engine: vec![mock],
        ..Config::default()
    };
    config.tls.insecure_plaintext = true;
    config.part.linger_ms = 50;
    config
}

fn prompts(count: usize) -> Vec<String> {
    (0..count).map(|row| format!(r#"{{"prompt":"prompt {row}"}}"#)).collect()
}

/// The rows of the side file's lines of one kind, in their order.
fn side(dir: &Path, kind: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(dir.join("side")).unwrap_or_default();
    let words = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    words.filter(|words| words[3] == kind).map(|words| words[1].parse().unwrap()).collect()
}

fn assert_all_answered(fake: &Fake) {
    for (row, state) in fake.state.lock().rows.iter().enumerate() {
        let expected = Outcome::Done(format!("MOCK:prompt {row}"));
        assert_eq!(state.outcome.as_ref(), Some(&expected), "row {row}");
    }
}

#[tokio::test]
async fn every_granted_row_is_executed_once_and_its_result_committed() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(3, dir.path(), &prompts(1000)).await;
    let agent = Agent::start(config(dir.path(), &fake, |mock| {
        mock.slots = 2;
        mock.concurrency = 16;
        mock.latency_ms_max = 5;
    }));
    fake.until("all rows are done", |state| state.done() == 1000).await;
    assert_all_answered(&fake);
    let mut started = side(dir.path(), "started");
    started.sort_unstable();
    assert_eq!(started, (0..1000).collect::<Vec<_>>());
    assert!(fake.state.lock().exchanges.iter().all(|(_, e)| e.credit_rows <= 32));
    assert_eq!(agent.drain().await, Drained { everything_answered: true });
    assert_eq!(fake.state.lock().deregistered.len(), 1);
}

#[tokio::test]
async fn an_unanswered_exchange_goes_to_the_next_leader_unchanged() {
    let dir = tempfile::tempdir().unwrap();
    let mut fake = Fake::start(3, dir.path(), &prompts(40)).await;
    let agent = Agent::start(config(dir.path(), &fake, |mock| {
        mock.concurrency = 8;
        mock.latency_ms_max = 20;
    }));
    fake.until("some rows are done", |state| state.done() > 0).await;
    fake.state.lock().mute_exchanges = true;
    let unanswered = |state: &fake::State| {
        state.exchanges.iter().rev().find(|(_, e)| !e.parts.is_empty()).map(|(_, e)| e.clone())
    };
    let before = fake.state.lock().exchanges.len();
    fake.until("an exchange with results stays unanswered", |state| {
        state.exchanges[before..].iter().any(|(_, e)| !e.parts.is_empty())
    })
    .await;
    let lost = unanswered(&fake.state.lock()).unwrap();
    fake.kill(0);
    fake.elect(1);
    fake.state.lock().mute_exchanges = false;
    fake.until("all rows are done", |state| state.done() == 40).await;
    assert_all_answered(&fake);
    let state = fake.state.lock();
    let again = state.exchanges.iter().find(|(member, e)| *member == 1 && e.seq == lost.seq);
    assert_eq!(again.unwrap().1, lost);
    assert!(state.rows.iter().all(|row| row.grants == 1), "no second attempt");
    assert_eq!(state.registers.len(), 1, "the session went on");
    drop(state);
    assert_eq!(side(dir.path(), "started").len(), 40);
    drop(agent);
}

fn spooled(dir: &Path) -> usize {
    let spool = dir.join("w1/spool/slot-0");
    let copy = dir.join("copy");
    let Ok(files) = std::fs::read_dir(spool) else { return 0 };
    let mut rows = 0;
    for file in files {
        if std::fs::copy(file.unwrap().path(), &copy).is_ok() {
            rows += rollout_storage::Spool::open(&copy).map_or(0, |(_, rows)| rows.len());
        }
    }
    rows
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn finished_rows_survive_a_kill_and_are_not_executed_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut bodies = prompts(10);
    bodies.push(r#"{"prompt":"MOCK_HANG"}"#.into());
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |_| {});
    config.part.linger_ms = 60_000;
    let agent = Agent::start(config.clone());
    until("ten rows are spooled", || spooled(dir.path()) == 10).await;
    agent.kill().await;
    assert_eq!(fake.state.lock().done(), 0);
    {
        let mut state = fake.state.lock();
        state.hold_grants = true;
        state.drop_held = vec![3];
    }
    config.part.linger_ms = 50;
    let agent = Agent::start(config);
    fake.until("the held rows are done", |state| state.done() == 9).await;
    {
        let state = fake.state.lock();
        assert_eq!(state.registers.len(), 2);
        let (first, second) = (&state.registers[0], &state.registers[1]);
        assert_eq!(first.resume_session, 0);
        assert!(state.sessions.contains(&second.resume_session));
        assert_eq!(second.coord_epoch_seen, 5);
        assert_ne!(first.instance, second.instance);
        let held: Vec<u64> = second.held.iter().flat_map(|h| list(h.rows.as_ref())).collect();
        assert_eq!(held, (0..10).collect::<Vec<_>>());
        assert_eq!(state.rows[3].outcome, None, "dropped, so not reported");
    }
    assert_eq!(side(dir.path(), "started").len(), 11);
    until("the spool is empty", || spooled(dir.path()) == 0).await;
    drop(agent);
}

#[tokio::test]
async fn revoked_rows_are_stopped_and_their_results_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = ["a", "b", "MOCK_HANG", "d"].map(|text| format!(r#"{{"prompt":"{text}"}}"#));
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 3);
    config.part.linger_ms = 60_000;
    let agent = Agent::start(config);
    until("three rows are finished", || spooled(dir.path()) == 3).await;
    {
        let mut state = fake.state.lock();
        state.hold_grants = true;
        let attempt = state.rows[0].attempt;
        for row in [0, 2] {
            (state.rows[row].attempt, state.rows[row].running) = (0, false);
        }
        let rows = Some(v1::Rows { starts: vec![0, 2], lens: vec![1, 1] });
        let rows = vec![v1::HeldRows { run: 1, attempt, rows }];
        state.post(Kind::Revoke(v1::Revoke { rows, reason: "test".into() }));
        state.heartbeats.clear();
    }
    fake.until("the heartbeat names the others only", |state| {
        let started = |heartbeat: &v1::Heartbeat| {
            heartbeat.started.iter().flat_map(|h| list(h.rows.as_ref())).collect::<Vec<_>>()
        };
        state.heartbeats.iter().any(|heartbeat| started(heartbeat) == [1, 3])
    })
    .await;
    // Also waits for the hanging row, were it not stopped.
    assert_eq!(agent.drain().await, Drained { everything_answered: true });
    let state = fake.state.lock();
    let reported: Vec<u64> = state
        .exchanges
        .iter()
        .flat_map(|(_, e)| &e.parts)
        .flat_map(|part| &part.sets)
        .flat_map(|set| list(set.rows.as_ref()))
        .collect();
    assert_eq!(reported, [1, 3]);
    assert!(state.exchanges.iter().all(|(_, e)| e.nacks.is_empty() && e.failures.is_empty()));
}

#[tokio::test]
async fn heartbeats_name_what_waits_from_the_first_of_a_stream_on_and_what_is_revoked_never_starts()
{
    let dir = tempfile::tempdir().unwrap();
    let bodies = ["MOCK_HANG", "b", "c", "d"].map(|text| format!(r#"{{"prompt":"{text}"}}"#));
    let mut fake = Fake::start(3, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 1);
    config.credit.rows = Some(4);
    let agent = Agent::start(config);
    let rows = |held: &[v1::HeldRows]| -> Vec<u64> {
        held.iter().flat_map(|held| list(held.rows.as_ref())).collect()
    };
    fake.until("one row runs and the others wait", |state| {
        let said = |h: &v1::Heartbeat| (rows(&h.started), rows(&h.unfinished));
        state.heartbeats.iter().any(|h| said(h) == (vec![0], vec![0, 1, 2, 3]))
    })
    .await;
    fake.kill(0);
    {
        let mut state = fake.state.lock();
        state.heartbeats.clear();
        state.out = None;
    }
    fake.elect(1);
    let speaks = |state: &fake::State| state.out.is_some() && !state.heartbeats.is_empty();
    fake.until("it has another stream", speaks).await;
    {
        // What such a leader does that finds two of them to be nobody's any more.
        let mut state = fake.state.lock();
        assert_eq!(rows(&state.heartbeats[0].unfinished), [0, 1, 2, 3]);
        state.hold_grants = true;
        let attempt = state.rows[0].attempt;
        for row in [0, 2] {
            (state.rows[row].attempt, state.rows[row].running) = (0, false);
        }
        let rows = Some(v1::Rows { starts: vec![0, 2], lens: vec![1, 1] });
        let rows = vec![v1::HeldRows { run: 1, attempt, rows }];
        state.post(Kind::Revoke(v1::Revoke { rows, reason: "test".into() }));
    }
    fake.until("the others are done", |state| state.done() == 2).await;
    assert_eq!(side(dir.path(), "started"), [0, 1, 3]);
    drop(agent);
}

#[tokio::test]
async fn without_answered_heartbeats_no_row_starts() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(400)).await;
    let mut config = config(dir.path(), &fake, |mock| {
        mock.concurrency = 2;
        (mock.latency_ms_min, mock.latency_ms_max) = (10, 10);
    });
    config.credit.rows = Some(400);
    config.timing.self_fence_ms = 300;
    config.timing.leader_silent_ms = 100;
    let agent = Agent::start(config);
    fake.until("rows are done", |state| state.done() > 10).await;
    fake.state.lock().mute_heartbeats = true;
    let mut last = (0, Instant::now());
    until("no row has started for half a second", || {
        let started = side(dir.path(), "started").len();
        if started != last.0 {
            last = (started, Instant::now());
        }
        last.1.elapsed() > Duration::from_millis(500)
    })
    .await;
    assert!(last.0 < 400, "the fence came too late to show anything");
    assert_eq!(side(dir.path(), "finished").len(), last.0, "what ran was finished");
    fake.state.lock().mute_heartbeats = false;
    fake.until("all rows are done", |state| state.done() == 400).await;
    assert_all_answered(&fake);
    assert_eq!(side(dir.path(), "started").len(), 400);
    drop(agent);
}

#[tokio::test]
async fn rows_of_a_corrupt_segment_fail_with_their_own_class_and_the_others_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(200)).await;
    let key = fake.state.lock().segments[1].blob.clone().unwrap().key;
    let path = dir.path().join("store").join(key);
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let agent = Agent::start(config(dir.path(), &fake, |_| {}));
    fake.until("all rows are decided", |state| state.done() == 200).await;
    let state = fake.state.lock();
    let corrupt = Outcome::Failed(v1::FailureClass::InputUnreadable, "SEGMENT_CORRUPT".to_owned());
    assert!(state.rows[100..].iter().all(|row| row.outcome == Some(corrupt.clone())));
    assert!(state.rows[..100].iter().all(|row| matches!(row.outcome, Some(Outcome::Done(_)))));
    drop(state);
    drop(agent);
}

#[tokio::test]
async fn an_unknown_session_is_registered_anew_and_nothing_is_executed_twice() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(300)).await;
    let agent = Agent::start(config(dir.path(), &fake, |mock| {
        mock.concurrency = 4;
        (mock.latency_ms_min, mock.latency_ms_max) = (5, 10);
    }));
    fake.until("rows are done", |state| state.done() > 10).await;
    fake.state.lock().sessions.clear();
    fake.until("all rows are done", |state| state.done() == 300).await;
    assert_all_answered(&fake);
    assert_eq!(fake.state.lock().registers.len(), 2);
    assert_eq!(agent.drain().await, Drained { everything_answered: true });
}

#[tokio::test]
async fn a_hung_leader_is_left_for_one_that_answers() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(3, dir.path(), &prompts(200)).await;
    let mut config = config(dir.path(), &fake, |mock| {
        mock.concurrency = 4;
        (mock.latency_ms_min, mock.latency_ms_max) = (5, 10);
    });
    config.timing.leader_silent_ms = 200;
    let agent = Agent::start(config);
    fake.until("rows are done", |state| state.done() > 10).await;
    fake.state.lock().hung.insert(0);
    fake.elect(2);
    let start = Instant::now();
    fake.until("the new leader is spoken to", |state| state.exchanges.iter().any(|(m, _)| *m == 2))
        .await;
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    fake.until("all rows are done", |state| state.done() == 200).await;
    assert_all_answered(&fake);
    drop(agent);
}

#[tokio::test]
async fn an_answer_of_an_older_epoch_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(10)).await;
    fake.state.lock().hold_grants = true;
    let agent = Agent::start(config(dir.path(), &fake, |_| {}));
    fake.until("a pull waits", |state| !state.exchanges.is_empty()).await;
    {
        let mut state = fake.state.lock();
        state.epoch = 4;
        state.hold_grants = false;
        state.wake();
        state.heartbeats.clear();
    }
    assert!(fake.state.lock().rows.iter().all(|row| row.running), "they were granted");
    fake.state.lock().epoch = 5;
    // The stale grant was thrown away with its stream; the repeated pull brings it back.
    fake.until("all rows are done", |state| state.done() == 10).await;
    assert!(fake.state.lock().exchanges.iter().filter(|(_, e)| e.seq == 1).count() >= 2);
    drop(agent);
}

#[tokio::test]
async fn a_drain_gives_back_what_it_cannot_finish() {
    let dir = tempfile::tempdir().unwrap();
    let bodies: Vec<String> = prompts(3)
        .into_iter()
        .chain((0..5).map(|_| r#"{"prompt":"MOCK_HANG"}"#.to_owned()))
        .collect();
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 5);
    config.part.linger_ms = 60_000;
    config.timing.drain_ms = 200;
    let agent = Agent::start(config);
    until("three rows are finished and five hang", || {
        spooled(dir.path()) == 3 && side(dir.path(), "started").len() == 8
    })
    .await;
    fake.state.lock().hold_grants = true;
    assert_eq!(agent.drain().await, Drained { everything_answered: true });
    let state = fake.state.lock();
    assert_eq!(state.done(), 3);
    assert!(state.rows[3..].iter().all(|row| row.attempt == 0 && !row.running), "all given back");
    assert_eq!(state.deregistered.len(), 1);
}

#[tokio::test]
async fn a_store_that_refuses_costs_one_row_and_the_rest_is_committed_when_it_heals() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(20)).await;
    // A file where the folder of the parts must be: no identity can write through it, root included.
    let parts = dir.path().join("store/runs/default/r/parts");
    std::fs::write(&parts, b"in the way").unwrap();
    std::fs::set_permissions(&parts, std::fs::Permissions::from_mode(0o644)).unwrap();
    let agent = Agent::start(config(dir.path(), &fake, |_| {}));
    fake.until("the refusal is reported", |state| state.done() == 1).await;
    let refused = |outcome: &Option<Outcome>| {
        matches!(outcome, Some(Outcome::Failed(v1::FailureClass::StoreRefused, _)))
    };
    assert_eq!(fake.state.lock().count(|row| refused(&row.outcome)), 1);
    std::fs::remove_file(&parts).unwrap();
    fake.until("the others are committed", |state| state.done() == 20).await;
    assert_eq!(side(dir.path(), "started").len(), 20);
    drop(agent);
}

#[tokio::test]
async fn a_drain_that_the_leader_asks_for_ends_the_agent() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(30)).await;
    let mut agent = Agent::start(config(dir.path(), &fake, |mock| {
        mock.concurrency = 2;
        (mock.latency_ms_min, mock.latency_ms_max) = (5, 10);
    }));
    fake.until("rows are done", |state| state.done() > 0).await;
    fake.state.lock().post(Kind::Drain(v1::Drain { deadline_ms: 5000, reason: "test".into() }));
    let ended = agent.ended.take().unwrap().await.unwrap().unwrap();
    assert_eq!(ended, Drained { everything_answered: true });
    let state = fake.state.lock();
    assert_eq!(state.deregistered.len(), 1);
    assert!(state.rows.iter().all(|row| !row.running), "given back, or done");
}

#[tokio::test]
async fn a_worker_that_is_refused_for_good_ends_and_one_that_is_taken_back_in_time_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(5)).await;
    fake.state.lock().name_taken = true;
    let mut refused = config(dir.path(), &fake, |_| {});
    refused.timing.register_refused_ms = 300;
    let mut agent = Agent::start(refused);
    let error = agent.ended.take().unwrap().await.unwrap().unwrap_err();
    assert!(matches!(error, AgentError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("host-one:pid-1"), "{error}");
    assert_eq!(fake.state.lock().done(), 0);

    let patient = Agent::start(config(dir.path(), &fake, |_| {}));
    fake.state.lock().name_taken = false;
    fake.until("it works once it is registered", |state| state.done() == 5).await;
    drop(patient);
}

#[tokio::test]
async fn an_engine_that_comes_late_is_registered_when_it_is_there() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(5)).await;
    let reserved = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = reserved.local_addr().unwrap();
    drop(reserved);
    let mut config = config(dir.path(), &fake, |_| {});
    let mut engine = EngineConfig::new(EngineKind::Openai);
    engine.base_url = format!("http://{address}");
    config.engine = vec![engine];
    config.timing.probe_ms = 50;
    let agent = Agent::start(config);
    fake.until("the slot is registered with a reason", |state| {
        state.registers.iter().any(|r| r.slots[0].ineligible.contains("/v1/models"))
    })
    .await;
    fake.until("a heartbeat has come", |state| !state.heartbeats.is_empty()).await;
    assert!(fake.state.lock().exchanges.iter().all(|(_, e)| e.credit_rows == 0));
    let answer = |axum::Json(body): axum::Json<serde_json::Value>| async move {
        let text = format!("MOCK:{}", body["prompt"].as_str().unwrap_or_default());
        axum::Json(serde_json::json!({"choices": [{"text": text, "finish_reason": "stop"}]}))
    };
    let app = axum::Router::new().route("/v1/completions", axum::routing::post(answer));
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    fake.until("all rows are done", |state| state.done() == 5).await;
    assert_all_answered(&fake);
    assert!(fake.state.lock().registers.last().unwrap().slots[0].ineligible.is_empty());
    drop(agent);
}

fn in_process(config: &mut Config) {
    let mock = &mut config.engine[0];
    mock.process = true;
    mock.program = Some(env!("CARGO_BIN_EXE_rollout-worker").into());
}

/// The processes of engines whose agent keeps its files below a directory.
fn engines(dir: &Path) -> Vec<i32> {
    let marker = dir.to_string_lossy().into_owned();
    let ours = |pid: &i32| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let environ = String::from_utf8_lossy(&read("environ")).into_owned();
        let named = environ.split('\0').find_map(|v| v.strip_prefix("ROLLOUT_CRASH_FILE="));
        named.is_some_and(|path| path.starts_with(&marker))
            && String::from_utf8_lossy(&read("cmdline")).contains("mock-engine")
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(ours).collect()
}

#[tokio::test]
async fn rows_that_kill_their_engine_are_named_with_the_evidence_and_the_others_finish() {
    use v1::FailureClass::{EngineDied, OutOfMemory};
    let dir = tempfile::tempdir().unwrap();
    let deadly = [
        (3, "MOCK_CRASH", EngineDied, "ENGINE_SIGNAL"),
        (11, "MOCK_EXIT_7", EngineDied, "ENGINE_EXIT"),
        (12, "MOCK_OOM_DIE", OutOfMemory, "ENGINE_OUT_OF_MEMORY"),
        (29, "MOCK_KILL", EngineDied, "ENGINE_SIGNAL"),
        (30, "MOCK_HANG", EngineDied, "ENGINE_STALLED"),
    ];
    let mut bodies = prompts(40);
    for (row, text, ..) in deadly {
        bodies[row] = format!(r#"{{"prompt":"{text}"}}"#);
    }
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |mock| {
        mock.concurrency = 4;
        mock.stall_timeout_ms = 1000;
        (mock.latency_ms_min, mock.latency_ms_max) = (5, 20);
    });
    in_process(&mut config);
    let agent = Agent::start(config);
    fake.until("all rows are decided", |state| state.done() == 40).await;
    let state = fake.state.lock();
    for (row, text, class, code) in deadly {
        let expected = Outcome::Failed(class, code.to_owned());
        assert_eq!(state.rows[row].outcome.as_ref(), Some(&expected), "{text}");
    }
    let done = state.count(|row| matches!(row.outcome, Some(Outcome::Done(_))));
    assert_eq!(done, 35, "no other row failed");
    let deaths: Vec<_> = state.exchanges.iter().flat_map(|(_, e)| &e.deaths).collect();
    let evidence = |row: u64| {
        let of_row = |d: &&&v1::EngineDeath| {
            let rows: Vec<u64> = d.started.iter().flat_map(|s| list(s.rows.as_ref())).collect();
            rows == [row]
        };
        deaths.iter().find(of_row).and_then(|d| d.evidence.clone()).unwrap()
    };
    assert_eq!(evidence(3).signal, Some(6));
    assert_eq!(evidence(11).exit_code, Some(7));
    assert_eq!(evidence(12).exception, "rollout.MockOutOfMemory");
    assert_eq!(evidence(29).signal, Some(9));
    drop(state);
    drop(agent);
}

#[tokio::test]
async fn an_engine_killed_from_outside_costs_no_finished_row_and_one_left_alone_ends_too() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(120)).await;
    let mut config = config(dir.path(), &fake, |mock| {
        mock.concurrency = 4;
        (mock.latency_ms_min, mock.latency_ms_max) = (10, 30);
    });
    in_process(&mut config);
    let agent = Agent::start(config);
    fake.until("rows are done", |state| state.done() >= 10).await;
    let [engine] = engines(dir.path())[..] else { panic!("one engine") };
    // SAFETY: a signal to a child of this process's own agent.
    assert_eq!(unsafe { libc::kill(engine, libc::SIGKILL) }, 0);
    fake.until("all rows are done", |state| state.done() == 120).await;
    assert_all_answered(&fake);
    {
        let state = fake.state.lock();
        let deaths = state.exchanges.iter().flat_map(|(_, e)| &e.deaths);
        let named: usize =
            deaths.flat_map(|d| &d.started).map(|s| list(s.rows.as_ref()).len()).sum();
        let again = state.count(|row| row.grants > 1);
        assert!(named <= 4 && again == named, "{named} rows died, {again} were granted again");
    }
    assert_eq!(engines(dir.path()).len(), 1, "another engine runs");
    agent.kill().await;
    until("the engine is gone with its agent", || engines(dir.path()).is_empty()).await;
}

#[tokio::test]
async fn an_engine_that_dies_at_every_start_is_reported_and_gets_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(10)).await;
    let mut config = config(dir.path(), &fake, |mock| mock.exit_at_start = Some(4));
    in_process(&mut config);
    let agent = Agent::start(config);
    fake.until("three deaths are reported", |state| {
        state.exchanges.iter().flat_map(|(_, e)| &e.deaths).count() >= 3
    })
    .await;
    let state = fake.state.lock();
    let mut deaths = state.exchanges.iter().flat_map(|(_, e)| &e.deaths);
    let exited = |d: &v1::EngineDeath| d.evidence.as_ref().and_then(|e| e.exit_code) == Some(4);
    assert!(deaths.all(|d| d.started.is_empty() && exited(d)));
    assert!(state.registers.last().unwrap().slots[0].ineligible.contains("status 4"));
    assert!(state.rows.iter().all(|row| row.grants == 0));
    drop(state);
    drop(agent);
}
