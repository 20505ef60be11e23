//! Rows are executed once each, and their outcomes are kept until a leader has them.

use rollout_proto::v1;
use rollout_proto::v1::leader_message::Kind;
use rollout_worker::Drained;

use crate::fake::{Fake, Outcome, list};
use crate::setup::{Agent, assert_all_answered, config, prompts, side, spooled, until};

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
async fn finished_rows_survive_a_kill_and_are_not_executed_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut bodies = prompts(10);
    bodies.push(r#"{"prompt":"MOCK_HANG"}"#.into());
    let fake = Fake::start(1, dir.path(), &bodies).await;
    // Its one place stays taken, so only its age closes the part.
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 1);
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
async fn a_store_that_refuses_costs_one_row_and_the_rest_is_committed_when_it_heals() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(20)).await;
    // A file in place of the folder for parts: no identity can write through it, including root.
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
async fn a_worker_that_cannot_write_to_the_store_takes_no_rows() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(20)).await;
    let probes = dir.path().join("store/probes");
    std::fs::write(&probes, b"in the way").unwrap();
    let mut config = config(dir.path(), &fake, |_| {});
    config.timing.probe_ms = 50;
    let agent = Agent::start(config);
    fake.until("a heartbeat has come", |state| !state.heartbeats.is_empty()).await;
    {
        let state = fake.state.lock();
        let why = state.registers.last().unwrap().slots[0].ineligible.clone();
        assert!(why.contains("cannot be written here"), "{why}");
        assert!(state.exchanges.iter().all(|(_, e)| e.credit_rows == 0));
    }
    std::fs::remove_file(&probes).unwrap();
    fake.until("all rows are done", |state| state.done() == 20).await;
    assert_all_answered(&fake);
    drop(agent);
}

#[tokio::test]
async fn a_worker_whose_results_are_refused_probes_the_store_and_takes_no_more_rows() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(200)).await;
    fake.state.lock().hold_grants = true;
    let mut config = config(dir.path(), &fake, |mock| {
        (mock.latency_ms_min, mock.latency_ms_max) = (50, 50);
    });
    config.timing.probe_ms = 50;
    let agent = Agent::start(config);
    fake.until("it waits for rows", |state| !state.exchanges.is_empty()).await;
    let (parts, probes) = ("store/runs/default/r/parts", "store/probes");
    std::fs::remove_dir_all(dir.path().join(probes)).unwrap();
    for path in [parts, probes] {
        std::fs::write(dir.path().join(path), b"in the way").unwrap();
    }
    {
        let mut state = fake.state.lock();
        state.hold_grants = false;
        state.wake();
    }
    fake.until("it says that it can take no work", |state| {
        state.registers.last().is_some_and(|r| r.slots[0].ineligible.contains("cannot be written"))
    })
    .await;
    // If the refusal is known before the next rows are granted, all rows of the worker have started.
    fake.until("what was not started goes back", |state| {
        let held = state.rows.iter().filter(|row| row.running).count();
        held <= side(dir.path(), "started").len()
            || state.exchanges.iter().any(|(_, e)| !e.nacks.is_empty())
    })
    .await;
    for path in [parts, probes] {
        std::fs::remove_file(dir.path().join(path)).unwrap();
    }
    fake.until("all rows are decided", |state| state.done() == 200).await;
    let state = fake.state.lock();
    let done = state.count(|row| matches!(row.outcome, Some(Outcome::Done(_))));
    assert_eq!(done, 199, "all but the one that told of the refusal");
    drop(state);
    drop(agent);
}

#[tokio::test]
async fn results_that_were_taken_back_are_not_kept_for_a_store_that_refuses_them() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(80)).await;
    let parts = dir.path().join("store/runs/default/r/parts");
    std::fs::write(&parts, b"in the way").unwrap();
    let mut config = config(dir.path(), &fake, |_| {});
    config.part.rows = 1;
    let agent = Agent::start(config);
    // As many parts as a worker keeps before it stops starting rows; one row has reported the refusal.
    until("it is full", || spooled(dir.path()) >= 64).await;
    let started = side(dir.path(), "started").len();
    {
        let mut state = fake.state.lock();
        state.hold_grants = true;
        let held: Vec<(u64, u64)> = (0..)
            .zip(&state.rows)
            .filter(|(_, row)| row.running)
            .map(|(n, row)| (row.attempt, n))
            .collect();
        let rows = held.iter().map(|(attempt, row)| v1::HeldRows {
            run: 1,
            attempt: *attempt,
            rows: Some(v1::Rows { starts: vec![*row], lens: vec![1] }),
        });
        state.post(Kind::Revoke(v1::Revoke { rows: rows.collect(), reason: "cancelled".into() }));
        for (_, row) in held {
            (state.rows[row as usize].running, state.rows[row as usize].attempt) = (false, 0);
        }
    }
    until("the spool is empty", || spooled(dir.path()) == 0).await;
    {
        let mut state = fake.state.lock();
        state.hold_grants = false;
        state.wake();
    }
    until("it works on", || side(dir.path(), "started").len() > started).await;
    std::fs::remove_file(&parts).unwrap();
    fake.until("all others are committed", |state| state.done() == 80).await;
    assert_eq!(agent.drain().await, Drained { everything_answered: true });
}

#[tokio::test]
async fn a_store_that_refuses_the_input_is_no_fault_of_the_rows_and_the_worker_takes_none_meanwhile()
 {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(200)).await;
    fake.state.lock().hold_grants = true;
    let mut config = config(dir.path(), &fake, |_| {});
    config.timing.probe_ms = 50;
    let agent = Agent::start(config);
    fake.until("it waits for rows", |state| !state.exchanges.is_empty()).await;
    // A directory in place of the first segment: no identity can read it, including root. The probe reads it too.
    let key = fake.state.lock().segments[0].blob.clone().unwrap().key;
    let (path, away) = (dir.path().join("store").join(key), dir.path().join("away"));
    std::fs::rename(&path, &away).unwrap();
    std::fs::create_dir(&path).unwrap();
    {
        let mut state = fake.state.lock();
        state.hold_grants = false;
        state.wake();
    }
    fake.until("it says that it can take no work", |state| {
        state.registers.last().is_some_and(|last| !last.slots[0].ineligible.is_empty())
    })
    .await;
    std::fs::remove_dir(&path).unwrap();
    std::fs::rename(&away, &path).unwrap();
    fake.until("all rows are decided", |state| state.done() == 200).await;
    let state = fake.state.lock();
    let refused = Outcome::Failed(v1::FailureClass::StoreRefused, "RO-5001".to_owned());
    let done = |outcome: &Option<Outcome>| matches!(outcome, Some(Outcome::Done(_)));
    assert!(
        state.rows.iter().all(|row| done(&row.outcome) || row.outcome == Some(refused.clone()))
    );
    assert!(state.count(|row| row.outcome.as_ref() == Some(&refused)) > 0);
    assert!(state.count(|row| done(&row.outcome)) >= 100, "those of the other segment");
    drop(state);
    drop(agent);
}
