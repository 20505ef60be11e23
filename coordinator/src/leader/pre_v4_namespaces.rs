//! Removes from a worker's messages the rows of other namespaces, while the cluster's version is one in which the ledger
//! does not do so itself.
//!
//! The ledger accepts a late result of lapsed rows from any slot that knows their attempt, because the holder's session
//! may have ended and its worker may be back in another one. Attempts follow from positions in the log, so a worker can
//! guess them.
//!
//! *Invariant:* only workers of a run's namespace decide or hold its rows. A report of any other worker about them is
//! answered as one of a stale attempt, and is not proposed.
//!
//! Absent: runs that the ledger does not know. It refuses reports about them. A worker whose session has ended is not
//! absent: the ledger accepts its late results, so its namespace comes from its stream.

use crate::leader::convert::{self, Checked};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::state::LeaderState;
use rollout_ledger::id::RunNo;
use rollout_ledger::{HeldRows, Ledger, NAMESPACES_VERSION, RefusedRows, Rejection};
use rollout_proto::v1;

/// Whether a run belongs to another namespace than `namespace`, and the ledger does not check that.
fn is_foreign(ledger: &Ledger, namespace: &str, run: u32) -> bool {
    ledger.version() < NAMESPACES_VERSION
        && ledger.run_namespace(RunNo(run)).is_some_and(|of_run| of_run != namespace)
}

/// Removes from an exchange everything about runs of other namespaces than the worker's, and returns it as refused.
pub(crate) fn extract_foreign(
    leader: &LeaderState,
    namespace: &str,
    m: &mut v1::Exchange,
) -> Checked<Vec<RefusedRows>> {
    let foreign = leader.node.ledger(|ledger| {
        let mut runs: Vec<u32> =
            runs_of(m).filter(|run| is_foreign(ledger, namespace, *run)).collect();
        runs.sort_unstable();
        runs.dedup();
        runs
    });
    if foreign.is_empty() {
        return Ok(Vec::new());
    }
    let is = |run: u32| foreign.binary_search(&run).is_ok();
    let mut taken: Vec<v1::HeldRows> = Vec::new();
    for part in m.parts.extract_if(.., |part| is(part.run)) {
        let run = part.run;
        taken.extend(part.sets.into_iter().map(|set| v1::HeldRows { run, ..set }));
    }
    let failed = m.failures.extract_if(.., |f| is(f.run));
    taken.extend(failed.map(|f| v1::HeldRows { run: f.run, attempt: f.attempt, rows: f.rows }));
    let deaths = m.deaths.iter_mut().map(|death| &mut death.started);
    for sets in deaths.chain([&mut m.nacks, &mut m.yielded]) {
        taken.extend(sets.extract_if(.., |set| is(set.run)));
    }
    let refused = |set: &v1::HeldRows| {
        let HeldRows { run, attempt, rows } = convert::held_in(set)?;
        Ok(RefusedRows { run, attempt, rows, why: Rejection::AttemptStale })
    };
    taken.iter().map(refused).collect()
}

/// Removes from a worker's list of held rows those of other namespaces' runs, and returns them.
pub(crate) fn extract_foreign_held(
    ledger: &Ledger,
    namespace: &str,
    held: &mut Vec<v1::HeldRows>,
) -> Vec<v1::HeldRows> {
    held.extract_if(.., |set| is_foreign(ledger, namespace, set.run)).collect()
}

/// The runs that an exchange names, possibly more than once.
fn runs_of(m: &v1::Exchange) -> impl Iterator<Item = u32> + '_ {
    let held = m.deaths.iter().flat_map(|d| &d.started).chain(&m.nacks).chain(&m.yielded);
    let named = m.parts.iter().map(|p| p.run).chain(m.failures.iter().map(|f| f.run));
    named.chain(held.map(|set| set.run))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::dispatch::Origin;
    use crate::leader::state::test_leader::{PATIENCE, TestLeader};
    use rollout_config::coordinator::Workers;
    use rollout_ledger::id::{SegmentNo, SlotNo, SlotRef};
    use rollout_ledger::{
        BlobRef, EngineSpec, GrantedRows, OpKind, Registration, Reply, RunSpec, SegmentDecl,
        SlotOffer, op,
    };
    use rollout_proto::ErrorCode;
    use tokio::sync::mpsc;

    const ROWS: u32 = 4;

    /// Lapsed rows of `default`, whose holder is silent.
    async fn lapsed(leader: &TestLeader) -> HeldRows {
        let session = leader.register("w", 1).await;
        let engine = EngineSpec { model: "m".into(), ..EngineSpec::default() };
        let spec = RunSpec { engine, weight: 1, attempts_max: 1, ..RunSpec::default() };
        let (namespace, name, folder) = ("default".to_owned(), "r".to_owned(), "r/own".to_owned());
        let create =
            OpKind::CreateRun(op::CreateRun { namespace, name, spec: Box::new(spec), folder });
        let Reply::Run { run, .. } = leader.op(create).await else { panic!("no run") };
        let segment = SegmentDecl { number: SegmentNo(0), rows: ROWS, blob: BlobRef::default() };
        leader.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] })).await;
        let slot = SlotRef { session, slot: SlotNo(0) };
        let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max: ROWS });
        let Reply::Granted(mut grants) = leader.op(claim).await else { panic!("no grant") };
        let GrantedRows { held, .. } = grants.pop().expect("a grant");
        leader
            .op(OpKind::Suspect(op::Suspect { session, started: Vec::new(), grace_ms: 60_000 }))
            .await;
        held
    }

    async fn worker_of_another_namespace(leader: &TestLeader) -> SlotRef {
        leader
            .op(OpKind::SetNamespace(op::SetNamespace { name: "a".into(), running_rows_max: 0 }))
            .await;
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: "a".into(),
            name: "thief".into(),
            instance: 1,
            slots: vec![offer],
            ..Registration::default()
        };
        let reply = leader.op(OpKind::Register(Box::new(registration))).await;
        let Reply::Registered { session, .. } = reply else { panic!("{reply:?}") };
        SlotRef { session, slot: SlotNo(0) }
    }

    fn result(held: &HeldRows) -> v1::PartResult {
        let wire = convert::held_out(held);
        v1::PartResult {
            run: wire.run,
            part: Some(v1::BlobRef { key: "k".into(), digest: vec![7; 32].into(), bytes: 1 }),
            sets: vec![wire],
            ..v1::PartResult::default()
        }
    }

    /// An exchange of a worker of this namespace, and its answer.
    async fn send(
        leader: &TestLeader,
        (namespace, slot): (&str, SlotRef),
        message: v1::Exchange,
    ) -> v1::ExchangeAnswer {
        let (out, mut answers) = mpsc::channel(1);
        let origin = Origin { session: slot.session, instance: 1, namespace: namespace.to_owned() };
        crate::leader::dispatch::exchange(leader.state.clone(), origin, message, out).await;
        let answer = tokio::time::timeout(PATIENCE, answers.recv()).await.expect("an answer");
        let Some(Ok(v1::LeaderMessage { kind: Some(kind), .. })) = answer else {
            panic!("{answer:?}")
        };
        let v1::leader_message::Kind::Exchange(answer) = kind else { panic!("{kind:?}") };
        answer
    }

    #[tokio::test]
    async fn a_worker_of_another_namespace_decides_no_rows_and_learns_that() {
        decides_no_foreign_rows(1).await;
    }

    #[tokio::test]
    async fn the_ledger_refuses_what_a_worker_of_another_namespace_reports() {
        decides_no_foreign_rows(NAMESPACES_VERSION).await;
    }

    async fn decides_no_foreign_rows(version: u32) {
        let silent_after = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let leader = TestLeader::start_version(version, silent_after).await;
        let held = lapsed(&leader).await;
        let slot = worker_of_another_namespace(&leader).await;
        let done = || leader.state.node.ledger(|l| l.run_view(held.run).expect("a run").counts);
        let before = done();
        let wire = convert::held_out(&held);
        let failed = v1::FailedAttempt {
            run: wire.run,
            attempt: wire.attempt,
            rows: wire.rows.clone(),
            class: v1::FailureClass::InvalidRow.into(),
            ..v1::FailedAttempt::default()
        };
        let death = v1::EngineDeath { started: vec![wire.clone()], ..v1::EngineDeath::default() };
        let said = [
            v1::Exchange { parts: vec![result(&held)], ..v1::Exchange::default() },
            v1::Exchange { failures: vec![failed], ..v1::Exchange::default() },
            v1::Exchange { nacks: vec![wire.clone()], ..v1::Exchange::default() },
            v1::Exchange { yielded: vec![wire.clone()], r#yield: 1, ..v1::Exchange::default() },
            v1::Exchange {
                deaths: vec![v1::EngineDeath {
                    number: 1,
                    class: v1::FailureClass::EngineDied.into(),
                    ..death
                }],
                ..v1::Exchange::default()
            },
        ];
        for (seq, message) in (1..).zip(said) {
            let answer = send(&leader, ("a", slot), v1::Exchange { seq, ..message }).await;
            let refused: Vec<_> = answer.refused.iter().map(|r| (r.run, r.attempt)).collect();
            assert_eq!(refused, [(wire.run, wire.attempt)], "{seq}");
            assert_eq!(done(), before, "{seq}");
        }
        // A worker of the run's own namespace may report the late result.
        let session = leader.register("back", 1).await;
        let own = SlotRef { session, slot: SlotNo(0) };
        let late = v1::Exchange { seq: 1, parts: vec![result(&held)], ..v1::Exchange::default() };
        assert!(send(&leader, ("default", own), late).await.refused.is_empty());
        assert_eq!(done().done, u64::from(ROWS));
        leader.end().await;
    }

    #[tokio::test]
    async fn a_worker_whose_session_has_ended_decides_no_rows_of_another_namespace() {
        decides_no_foreign_rows_after_its_session(1).await;
        decides_no_foreign_rows_after_its_session(NAMESPACES_VERSION).await;
    }

    /// The exchange arrives, the session ends, and then its results are applied.
    async fn decides_no_foreign_rows_after_its_session(version: u32) {
        let silent_after = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let leader = TestLeader::start_version(version, silent_after).await;
        let held = lapsed(&leader).await;
        let foreign = worker_of_another_namespace(&leader).await;
        let session = leader.register("back", 1).await;
        let own = SlotRef { session, slot: SlotNo(0) };
        for SlotRef { session, .. } in [foreign, own] {
            leader.op(OpKind::Deregister(op::Deregister { session })).await;
        }
        let done =
            || leader.state.node.ledger(|l| l.run_view(held.run).expect("a run").counts.done);
        let late = || v1::Exchange { seq: 1, parts: vec![result(&held)], ..Default::default() };
        let answer = send(&leader, ("a", foreign), late()).await;
        let refused: Vec<_> = answer.refused.iter().map(|r| (r.run, r.attempt)).collect();
        let wire = convert::held_out(&held);
        assert_eq!((refused, done()), (vec![(wire.run, wire.attempt)], 0));
        let stale = ErrorCode::AttemptStale.code();
        assert!(answer.refused.iter().all(|r| r.code == stale), "{answer:?}");
        // What the worker of the run's own namespace has computed is not lost.
        assert!(send(&leader, ("default", own), late()).await.refused.is_empty());
        assert_eq!(done(), u64::from(ROWS));
        leader.end().await;
    }

    #[tokio::test]
    async fn a_worker_holds_no_rows_of_another_namespace() {
        let silent_after = Workers { failure_ms: 3_600_000, ..Workers::default() };
        let leader = TestLeader::start(silent_after).await;
        let held = lapsed(&leader).await;
        let mut said = vec![convert::held_out(&held)];
        let foreign = leader.state.node.ledger(|l| extract_foreign_held(l, "a", &mut said));
        assert_eq!((foreign, said), (vec![convert::held_out(&held)], Vec::new()));
        let mut said = vec![convert::held_out(&held)];
        let foreign = leader.state.node.ledger(|l| extract_foreign_held(l, "default", &mut said));
        assert_eq!((foreign, said.len()), (Vec::new(), 1));
        leader.end().await;
    }
}
