//! Leaders that end, hang, are superseded, or do not know a session: nothing is executed twice.

use std::time::{Duration, Instant};

use rollout_worker::Drained;

use crate::fake::{self, Fake};
use crate::setup::{Agent, assert_all_answered, config, prompts, side};

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
    // The stale grant was dropped with its stream; the repeated pull gets it again.
    fake.until("all rows are done", |state| state.done() == 10).await;
    assert!(fake.state.lock().exchanges.iter().filter(|(_, e)| e.seq == 1).count() >= 2);
    drop(agent);
}
