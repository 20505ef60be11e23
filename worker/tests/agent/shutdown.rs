//! How an agent ends: drained by its host or its leader, or permanently refused.

use rollout_proto::v1;
use rollout_proto::v1::leader_message::Kind;
use rollout_worker::{AgentError, Drained};

use crate::fake::Fake;
use crate::setup::{Agent, config, prompts, side, spooled, until};

#[tokio::test]
async fn a_drain_returns_rows_that_it_cannot_finish() {
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
