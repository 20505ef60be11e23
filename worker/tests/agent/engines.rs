//! Engines that start late, die with rows, are killed from outside, or die at every start.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollout_proto::v1;
use rollout_worker::{Config, EngineConfig, EngineKind};

use crate::fake::{Fake, Outcome, State, list};
use crate::setup::{Agent, assert_all_answered, config, prompts, until};

#[tokio::test]
async fn an_engine_that_starts_late_is_registered_when_it_is_ready() {
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
    let slot = fake.state.lock().registers.last().unwrap().slots[0].clone();
    assert!(slot.ineligible.is_empty());
    let assumed = "/v1/chat/completions /v1/completions /v1/embeddings";
    assert_eq!(slot.versions["routes"], assumed, "of a server that does not describe itself");
    drop(agent);
}

/// Answers every request with 200 and an empty body, on connections of one request each, until it is dropped.
struct Empty(tokio::task::JoinHandle<()>);

impl Empty {
    fn start(listener: tokio::net::TcpListener) -> Self {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        Self(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 4096]).await;
                let answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}";
                let _ = stream.write_all(answer).await;
            }
        }))
    }

    /// Ends it; the port is then closed.
    async fn end(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

#[tokio::test]
async fn rows_that_never_reached_their_engine_come_back_and_have_not_failed() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(5)).await;
    fake.state.lock().hold_grants = true;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let up = Empty::start(listener);
    let mut config = config(dir.path(), &fake, |_| {});
    let mut engine = EngineConfig::new(EngineKind::Openai);
    engine.base_url = format!("http://{address}");
    config.engine = vec![engine];
    config.timing.probe_ms = 50;
    let agent = Agent::start(config);
    fake.until("the slot can work", |state| {
        state.registers.last().is_some_and(|r| r.slots[0].ineligible.is_empty())
    })
    .await;
    fake.until("a pull waits", |state| state.exchanges.iter().any(|(_, e)| e.credit_rows > 0))
        .await;
    up.end().await;
    {
        let mut state = fake.state.lock();
        state.hold_grants = false;
        state.wake();
    }
    fake.until("what could not be sent is given back", |state| {
        let given_back = state.exchanges.iter().flat_map(|(_, e)| &e.nacks);
        given_back.map(|held| list(held.rows.as_ref()).len()).sum::<usize>() >= 5
    })
    .await;
    let answer = |axum::Json(body): axum::Json<serde_json::Value>| async move {
        let text = format!("MOCK:{}", body["prompt"].as_str().unwrap_or_default());
        axum::Json(serde_json::json!({"choices": [{"text": text, "finish_reason": "stop"}]}))
    };
    let app = axum::Router::new().route("/v1/completions", axum::routing::post(answer));
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    fake.until("all rows are done", |state| state.done() == 5).await;
    let state = fake.state.lock();
    assert!(state.exchanges.iter().all(|(_, e)| e.failures.is_empty()), "a row failed");
    let done = state.count(|row| matches!(row.outcome, Some(Outcome::Done(_))));
    assert_eq!(done, 5);
    drop(state);
    drop(agent);
}

/// Answers completions with 500 while it is `broken`, and always if the prompt says `bad`. Otherwise it works.
async fn flaky_server(broken: Arc<AtomicBool>) -> String {
    let answer = move |axum::Json(body): axum::Json<serde_json::Value>| async move {
        let prompt = body["prompt"].as_str().unwrap_or_default();
        if broken.load(Ordering::Relaxed) || prompt.contains("bad") {
            return Err(axum::http::StatusCode::INTERNAL_SERVER_ERROR);
        }
        let text = format!("MOCK:{prompt}");
        Ok(axum::Json(serde_json::json!({"choices": [{"text": text, "finish_reason": "stop"}]})))
    };
    let app = axum::Router::new().route("/v1/completions", axum::routing::post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    url
}

/// A worker of one slot that uses such a server.
async fn flaky(dir: &Path, fake: &Fake, broken: &Arc<AtomicBool>) -> Config {
    let mut config = config(dir, fake, |_| {});
    let mut engine = EngineConfig::new(EngineKind::Openai);
    engine.base_url = flaky_server(broken.clone()).await;
    engine.concurrency = 4;
    config.engine = vec![engine];
    config
}

/// A first pause has ended, and a row failed then.
fn tried_once(state: &State) -> bool {
    let reason = "one row is tried in 2 s. The last failure: ENGINE_ERROR: the engine answers 500";
    state.registers.iter().any(|r| r.slots[0].ineligible.contains(reason))
}

#[tokio::test]
async fn an_engine_that_fails_every_row_costs_few_of_them_and_is_tried_again_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(200)).await;
    let broken = Arc::new(AtomicBool::new(true));
    let agent = Agent::start(flaky(dir.path(), &fake, &broken).await);
    fake.until("one row was tried, and failed", tried_once).await;
    {
        let state = fake.state.lock();
        // The bound, those that ran beside the last of them, and the one that was tried.
        let failed = state.count(|row| matches!(row.outcome, Some(Outcome::Failed(..))));
        assert!((17..=20).contains(&failed), "{failed} rows failed");
        assert!(state.exchanges.iter().any(|(_, e)| !e.nacks.is_empty()), "the others go back");
    }
    broken.store(false, Ordering::Relaxed);
    fake.until("all rows are decided", |state| state.done() == 200).await;
    let state = fake.state.lock();
    let done = state.count(|row| matches!(row.outcome, Some(Outcome::Done(_))));
    assert!(done >= 180, "{done} rows are done");
    assert!(state.registers.last().unwrap().slots[0].ineligible.is_empty());
    drop(state);
    drop(agent);
}

#[tokio::test]
async fn an_engine_that_breaks_is_tried_with_a_row_that_had_succeeded() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(2000)).await;
    let broken = Arc::new(AtomicBool::new(false));
    let agent = Agent::start(flaky(dir.path(), &fake, &broken).await);
    fake.until("rows are done", |state| state.done() >= 20).await;
    broken.store(true, Ordering::Relaxed);
    fake.until("a row was tried, and failed", tried_once).await;
    {
        let state = fake.state.lock();
        // The bound, and those that ran beside the first and the last of them. The row that was tried is done.
        let failed = state.count(|row| matches!(row.outcome, Some(Outcome::Failed(..))));
        assert!((16..=24).contains(&failed), "{failed} rows failed");
    }
    broken.store(false, Ordering::Relaxed);
    fake.until("all rows are decided", |state| state.done() == 2000).await;
    assert!(fake.state.lock().bad.is_empty());
    drop(agent);
}

#[tokio::test]
async fn rows_that_no_engine_can_run_do_not_stop_an_engine_that_is_well() {
    let dir = tempfile::tempdir().unwrap();
    let text = |row: usize| if row < 20 { "good" } else { "bad" };
    let bodies: Vec<String> =
        (0..80).map(|row| format!(r#"{{"prompt":"{} {row}"}}"#, text(row))).collect();
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let broken = Arc::new(AtomicBool::new(false));
    let agent = Agent::start(flaky(dir.path(), &fake, &broken).await);
    // One at a time after pauses that double, they would take half an hour.
    fake.until("all rows are decided", |state| state.done() == 80).await;
    let state = fake.state.lock();
    assert_eq!(state.count(|row| matches!(row.outcome, Some(Outcome::Done(_)))), 20);
    drop(state);
    drop(agent);
}

fn in_process(config: &mut Config) {
    let mock = &mut config.engine[0];
    mock.process = true;
    mock.program = Some(env!("CARGO_BIN_EXE_rollout-worker").into());
}

/// The processes of engines whose agent keeps its files under a directory.
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
async fn a_mock_registers_the_routes_of_its_engine_in_either_process_unless_a_label_names_them() {
    for separate in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let fake = Fake::start(1, dir.path(), &prompts(1)).await;
        let mut config = config(dir.path(), &fake, |_| {});
        if separate {
            in_process(&mut config);
        }
        let mut labeled = config.engine[0].clone();
        labeled.labels.insert("routes".into(), "/v1/score".into());
        config.engine.push(labeled);
        let agent = Agent::start(config);
        fake.until("the slots register with their routes", |state| {
            state.registers.iter().any(|registered| {
                let reported = registered.slots[0].versions.get("routes");
                let others = &registered.slots[1];
                reported
                    .is_some_and(|routes| routes.split(' ').any(|route| route == "/v1/responses"))
                    && !others.versions.contains_key("routes")
                    && others.labels.get("routes").is_some_and(|routes| routes == "/v1/score")
            })
        })
        .await;
        drop(agent);
    }
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
