//! What happens to finished rows whose results the store refuses for a long time.

use std::collections::HashSet;

use rollout_proto::v1;
use rollout_worker::Drained;

use crate::fake::{Fake, Outcome};
use crate::setup::{Agent, config, prompts, side, spooled, until};

#[tokio::test]
async fn rows_whose_results_the_store_refuses_for_too_long_go_back_and_none_is_reported_later() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(20)).await;
    // A file in place of the folder for parts: no identity can write through it, including root.
    let parts = dir.path().join("store/runs/default/r/parts");
    std::fs::write(&parts, b"in the way").unwrap();
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 20);
    config.timing.store_refused_ms = 3000;
    let agent = Agent::start(config);
    fake.until("all rows are granted", |state| state.count(|row| row.grants == 1) == 20).await;
    let first: HashSet<u64> = {
        let mut state = fake.state.lock();
        state.hold_grants = true;
        state.rows.iter().map(|row| row.attempt).collect()
    };
    fake.until("no row is the worker's", |state| state.count(|row| row.running) == 0).await;
    let refused = |outcome: &Option<Outcome>| {
        matches!(outcome, Some(Outcome::Failed(v1::FailureClass::StoreRefused, _)))
    };
    {
        let state = fake.state.lock();
        assert_eq!((state.done(), state.count(|row| refused(&row.outcome))), (1, 1));
        assert!(state.exchanges.iter().all(|(_, e)| e.parts.is_empty()));
    }
    until("the spool is empty", || spooled(dir.path()) == 0).await;

    // The store accepts results again: the rows run again, and no result of their first attempts is reported.
    std::fs::remove_file(&parts).unwrap();
    {
        let mut state = fake.state.lock();
        state.hold_grants = false;
        state.wake();
    }
    fake.until("the others are committed", |state| state.done() == 20).await;
    {
        let state = fake.state.lock();
        assert_eq!(state.count(|row| refused(&row.outcome)), 1);
        let mut reported = state.exchanges.iter().flat_map(|(_, e)| &e.parts).flat_map(|p| &p.sets);
        assert!(reported.all(|set| !first.contains(&set.attempt)));
    }
    assert_eq!(side(dir.path(), "started").len(), 39);
    assert_eq!(agent.drain().await, Drained { everything_answered: true });
}
