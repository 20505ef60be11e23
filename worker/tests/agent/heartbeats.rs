//! What heartbeats report, what a leader takes back because of them, and that no row starts while none is answered.

use std::time::{Duration, Instant};

use rollout_proto::v1;
use rollout_proto::v1::leader_message::Kind;
use rollout_worker::Drained;

use crate::fake::{self, Fake, list};
use crate::setup::{Agent, assert_all_answered, config, prompts, side, spooled, until};

#[tokio::test]
async fn revoked_rows_are_stopped_and_their_results_dropped() {
    let dir = tempfile::tempdir().unwrap();
    // All places stay taken, so only its age closes the part.
    let bodies = ["a", "b", "MOCK_HANG", "d", "MOCK_HANG", "MOCK_HANG"]
        .map(|text| format!(r#"{{"prompt":"{text}"}}"#));
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 3);
    config.part.linger_ms = 60_000;
    let agent = Agent::start(config);
    until("three rows are finished", || spooled(dir.path()) == 3).await;
    {
        let mut state = fake.state.lock();
        state.hold_grants = true;
        let attempt = state.rows[0].attempt;
        for row in [0, 2, 4, 5] {
            (state.rows[row].attempt, state.rows[row].running) = (0, false);
        }
        let rows = Some(v1::Rows { starts: vec![0, 2, 4, 5], lens: vec![1; 4] });
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
    // It would also wait for the hanging rows if they were not stopped.
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
        // As such a leader does if it finds that two of them are no longer held.
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

/// Heartbeats that arrive within a time.
async fn heard_within(fake: &Fake, time: Duration) -> usize {
    fake.state.lock().heartbeats.clear();
    tokio::time::sleep(time).await;
    fake.state.lock().heartbeats.len()
}

#[tokio::test]
async fn heartbeats_come_as_often_as_the_leaders_last_answer_asks_for() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(1)).await;
    let mut config = config(dir.path(), &fake, |_| {});
    config.timing.self_fence_ms = 3000;
    let agent = Agent::start(config);
    fake.until("the row is done", |state| state.done() == 1).await;
    // Answers without an interval leave it as it was registered: 50 ms, or more on a busy machine.
    let window = Duration::from_millis(2500);
    assert!(heard_within(&fake, window).await > 5);
    fake.state.lock().heartbeat_ms = 1000;
    fake.until("an answer has said so", |state| state.heartbeats.len() > 1).await;
    let slow = heard_within(&fake, window).await;
    assert!((1..=3).contains(&slow), "{slow}");
    // No leader can set an interval so long that one lost heartbeat would fence the worker.
    fake.state.lock().heartbeat_ms = 10_000;
    heard_within(&fake, window).await;
    let bounded = heard_within(&fake, window * 2).await;
    assert!((2..=4).contains(&bounded), "{bounded}");
    fake.state.lock().heartbeat_ms = 20;
    heard_within(&fake, window).await;
    assert!(heard_within(&fake, window).await > 5);
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
