use super::*;
use crate::leader::parked_pulls::Pull;
use crate::leader::state::test_leader::{PATIENCE, TestLeader};
use rollout_ledger::id::{Attempt, SegmentNo};
use rollout_ledger::{BlobRef, EngineSpec, Rows, RunSpec, SegmentDecl, limits, op};

fn held(index: u64, first: u64, rows: u32) -> HeldRows {
    HeldRows { run: RunNo(1), attempt: Attempt::at(index, 0), rows: Rows::range(first, rows) }
}

#[test]
fn rows_granted_since_and_the_next_queued_ones_may_have_started() {
    let queue = || vec![held(5, 0, 8), held(7, 8, 8), held(12, 16, 4)];
    let started = [held(5, 0, 6), held(7, 0, 8)];
    let unreported_starts = not_reported(queue(), &started, 10, 4);
    assert_eq!(unreported_starts, [held(5, 6, 2), held(7, 8, 2), held(12, 16, 4)]);
    assert_eq!(not_reported(queue(), &started, 10, 0), [held(12, 16, 4)]);
    // A worker without a heartbeat may have started any of its rows.
    assert_eq!(not_reported(queue(), &[], 0, 0), queue());
}

#[tokio::test]
async fn a_row_makes_one_claim_however_many_pulls_wait_for_it() {
    let silent_after = Workers { failure_ms: 3_600_000, ..Workers::default() };
    let leader = TestLeader::start(silent_after).await;
    let leader_state = &leader.state;
    let session = leader.register("w", limits::SLOTS_MAX).await;
    let (out, mut answers) = mpsc::channel(limits::SLOTS_MAX);
    for slot in (0..limits::SLOTS_MAX as u16).map(|slot| SlotRef { session, slot: SlotNo(slot) }) {
        // Each claim is as large as one command allows, so that the log counts the claims.
        let rows_max = limits::CLAIM_ROWS_MAX;
        let pull = Pull { slot, instance: 1, seq: 1, rows_max, out: out.clone() };
        leader_state.node.ledger(|l| leader_state.parked_pulls.park(pull, l));
    }
    let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
    let spec = RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() };
    let (namespace, name, folder) = ("default".to_owned(), "r".to_owned(), "r/own".to_owned());
    let create = OpKind::CreateRun(op::CreateRun { namespace, name, spec: Box::new(spec), folder });
    let Reply::Run { run, .. } = leader.op(create).await else { panic!("no run") };
    let before = leader_state.node.ledger(|l| l.applied().index);
    let segment = SegmentDecl { number: SegmentNo(0), rows: 1, blob: BlobRef::default() };
    leader.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] })).await;
    let granted = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("a grant");
    let Some(Ok(v1::LeaderMessage { kind: Some(kind), .. })) = granted else {
        panic!("{granted:?}")
    };
    let v1::leader_message::Kind::Exchange(answer) = kind else { panic!("{kind:?}") };
    assert_eq!(answer.grants.len(), 1);
    // All earlier proposals for the row are applied before this one.
    leader
        .op(OpKind::SetNamespace(op::SetNamespace { name: "after".into(), running_rows_max: 0 }))
        .await;
    let claims = leader_state.node.ledger(|l| l.applied().index) - before - 2;
    // The leader's own commands, such as ticks, may be among them.
    assert!((1..=3).contains(&claims), "{claims}");
    let waiting: Vec<_> = leader_state
        .parked_pulls
        .cohorts()
        .into_iter()
        .flat_map(|c| leader_state.parked_pulls.slots(c))
        .collect();
    assert_eq!(waiting.len(), limits::SLOTS_MAX - 1);
    leader.end().await;
}
