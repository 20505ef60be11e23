//! When results are reported: together with those of other slots, and no later than another party may need them.

use std::collections::BTreeSet;

use rollout_worker::Drained;

use crate::fake::Fake;
use crate::setup::{Agent, assert_all_answered, config, prompts};

#[tokio::test]
async fn slots_report_their_rows_together_when_the_last_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let fake = Fake::start(1, dir.path(), &prompts(8)).await;
    // Each slot gets half of them.
    let mut config = config(dir.path(), &fake, |mock| {
        (mock.slots, mock.concurrency) = (2, 2);
        (mock.latency_ms_min, mock.latency_ms_max) = (300, 300);
    });
    config.part.linger_ms = 60_000;
    let agent = Agent::start(config);
    fake.until("all rows are done", |state| state.done() == 8).await;
    assert_all_answered(&fake);
    {
        let state = fake.state.lock();
        let parts: Vec<_> = state.exchanges.iter().flat_map(|(_, e)| &e.parts).collect();
        let of = |part: &&rollout_proto::v1::PartResult| {
            part.sets.iter().map(|set| set.attempt).collect::<BTreeSet<_>>().len()
        };
        assert!(parts.len() <= 2, "{} parts of 8 rows", parts.len());
        assert!(parts.iter().any(|part| of(part) == 2), "none has rows of both slots");
    }
    assert_eq!(agent.drain().await, Drained { everything_answered: true });
}

#[tokio::test]
async fn a_slot_with_a_free_place_and_no_rows_for_it_reports_what_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = ["a", "MOCK_HANG"].map(|text| format!(r#"{{"prompt":"{text}"}}"#));
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 2);
    config.part.linger_ms = 60_000;
    let agent = Agent::start(config);
    // Within half of that time.
    fake.until("the finished row is reported", |state| state.done() == 1).await;
    drop(agent);
}

#[tokio::test]
async fn a_slot_whose_places_are_taken_reports_what_is_old_enough() {
    let dir = tempfile::tempdir().unwrap();
    let bodies = ["a", "MOCK_HANG"].map(|text| format!(r#"{{"prompt":"{text}"}}"#));
    let fake = Fake::start(1, dir.path(), &bodies).await;
    let mut config = config(dir.path(), &fake, |mock| mock.concurrency = 1);
    config.part.linger_ms = 300;
    let agent = Agent::start(config);
    fake.until("the finished row is reported", |state| state.done() == 1).await;
    drop(agent);
}
