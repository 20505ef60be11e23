//! A worker's exchange: its results in, its next rows out, in one command.
//!
//! *Invariant:* an answer with grants leaves only while the lease is valid. Rows that were granted but not sent are
//! found again under the same `seq` at the next leader. An exchange with results is answered at once; one that only
//! pulls waits until there is something to grant.

use crate::leader::convert::{self, Checked};
use crate::leader::exchange_answer::{Done, OtherSlots, answer};
use crate::leader::ledger_read::ReadLedger;
use crate::leader::parked_pulls::Pull;
use crate::leader::pre_v4_namespaces;
use crate::leader::proposer::{Applied, LogPosition};
use crate::leader::reject;
use crate::leader::state::{LeaderState, Outbox};
use rollout_ledger::id::{RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::seeded::{Bug, seeded};
use rollout_ledger::{FailureClass, HeldRows, Op, OpKind, PartDecl, Rejection, Reply, Scope, op};
use rollout_proto::{ErrorCode, RpcError, v1};
use rollout_raft::DiskRoom;
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::sync::mpsc::error::TrySendError;

/// The worker whose stream brings an exchange.
pub(crate) struct Origin {
    pub(crate) session: SessionId,
    pub(crate) instance: u64,
    /// Of the worker when it opened the stream. The ledger forgets it with the session, which may end before the results
    /// of the exchange are applied.
    pub(crate) namespace: String,
}

/// Answers one exchange, now or when there is work.
pub(crate) async fn exchange(
    leader: Arc<LeaderState>,
    origin: Origin,
    mut message: v1::Exchange,
    out: Outbox,
) {
    let Origin { session, instance, namespace } = origin;
    let Ok(number) = u16::try_from(message.slot) else {
        let error = convert::invalid(format!("there is no slot {}", message.slot));
        return deliver(&leader, &out, Err(error)).await;
    };
    let slot = SlotRef { session, slot: SlotNo(number) };
    // Any newer message ends a waiting pull. A draining slot uses an empty message for that.
    if let Some(parked) = leader.parked_pulls.take(slot).filter(|p| p.seq != message.seq) {
        let empty = answer(&leader, slot, parked.seq, Done::empty());
        deliver(&leader, &parked.out, Ok(empty)).await;
    }
    match apply(&leader, (slot, instance, namespace.as_str()), &mut message).await {
        Ok(Some(done)) => send(&leader, slot, message.seq, done, &out).await,
        Ok(None) => {
            let (seq, rows_max) = (message.seq, message.credit_rows);
            park(&leader, Pull { slot, instance, seq, rows_max, out });
        }
        Err(error) => {
            deliver(&leader, &out, Err(error)).await;
        }
    }
}

/// Retries a pull that was taken from the parked ones.
pub(crate) async fn serve_parked(leader: Arc<LeaderState>, pull: Pull) {
    let Pull { slot, instance, seq, rows_max, .. } = pull;
    try_parked(leader, pull, OpKind::Claim(op::Claim { slot, instance, seq, rows_max })).await;
}

/// Retries a pull that was taken from the parked ones. If no unassigned rows are left, it may get at most `rows_max`
/// rows that other slots run already.
pub(crate) async fn claim_speculatively_for(leader: Arc<LeaderState>, pull: Pull, rows_max: u32) {
    let Pull { slot, instance, seq, .. } = pull;
    let rows_max = rows_max.min(pull.rows_max);
    try_parked(
        leader,
        pull,
        OpKind::ClaimSpeculatively(op::ClaimSpeculatively { slot, instance, seq, rows_max }),
    )
    .await;
}

async fn try_parked(leader: Arc<LeaderState>, pull: Pull, op: OpKind) {
    let Pull { slot, instance, seq, rows_max, out } = pull;
    let answer = leader.proposer.op_at(op).await;
    leader.parked_pulls.settled(slot, seq);
    // The claim may have left rows that counted as reserved for it until now.
    leader.wake();
    match answer {
        Ok((at, Reply::Granted(grants))) if !grants.is_empty() => {
            send(&leader, slot, seq, Done::granted(at, grants), &out).await;
        }
        Ok((_, Reply::Rejected(Rejection::SessionUnknown))) => {
            let error = reject::rejected(&Rejection::SessionUnknown);
            deliver(&leader, &out, Err(error)).await;
        }
        // A newer pull of the slot was answered, so the worker does not wait for this one.
        Ok((_, Reply::Rejected(Rejection::PullStale { .. }))) => {}
        Ok(_) => park(&leader, Pull { slot, instance, seq, rows_max, out }),
        Err(error) => {
            deliver(&leader, &out, Err(reject::proposal(&error))).await;
        }
    }
}

/// Parks a pull until there is work for its slot.
fn park(leader: &LeaderState, pull: Pull) {
    let (slot, seq) = (pull.slot, pull.seq);
    // The worker has opened another stream by now and has repeated the pull there.
    let current = leader.outbox(slot.session);
    if current.is_some_and(|current| !current.same_channel(&pull.out)) {
        return;
    }
    // Work may have arrived before the pull was parked, or its answer may already exist: stolen rows that were granted
    // to this pull while its worker had another stream.
    let ready = leader.node.ledger(|l| {
        leader.parked_pulls.park(pull, l);
        l.has_work_for(slot) || l.has_answered(slot, seq)
    });
    leader.stealing.look_again();
    if ready {
        leader.wake();
    }
}

async fn send(leader: &LeaderState, slot: SlotRef, seq: u64, done: Done, out: &Outbox) {
    if !done.grants.is_empty() {
        let rows = done.grants.iter().map(|g| g.held.rows.len()).sum();
        let needs = leader.node.ledger(|l| l.held_needs(slot));
        leader.stealing.granted(slot, rows, needs);
    }
    let valid = leader.node.lease_valid() || seeded(Bug::SuccessWithoutQuorum);
    let message = match valid && !leader.ended.is_cancelled() {
        true => Ok(answer(leader, slot, seq, done)),
        false => Err(RpcError::new(ErrorCode::NoQuorum, "the lease has run out")),
    };
    deliver(leader, out, message).await;
}

/// Sends a message when there is room for it, unless the epoch ends first. So a worker that stops reading cannot delay
/// the end of its stream, or of the leader's epoch.
async fn deliver(leader: &LeaderState, out: &Outbox, message: Result<v1::LeaderMessage, RpcError>) {
    let Err(TrySendError::Full(message)) = out.try_send(message) else { return };
    tokio::select! {
        biased;
        () = leader.ended.cancelled() => {}
        _ = out.send(message) => {}
    }
}

/// Applies results and pull; `None` if there is no answer yet.
async fn apply(
    leader: &LeaderState,
    (slot, instance, namespace): (SlotRef, u64, &str),
    m: &mut v1::Exchange,
) -> Checked<Option<Done>> {
    if m.seq == 0 {
        return Err(convert::invalid("an exchange's seq must be at least 1"));
    }
    let foreign = pre_v4_namespaces::extract_foreign(leader, namespace, m)?;
    let (mut ops, mut sets) = (Vec::new(), Vec::new());
    results_in(slot, m, &mut ops, &mut sets)?;
    let idle_slot = given_up(leader, slot, m, &mut ops, &mut sets)?;
    let has_results = !ops.is_empty() || m.r#yield != 0 || !foreign.is_empty();
    // On a full disk a pull finds rows that were granted to it before, but gets no new ones.
    let full = leader.node.disk_room() == DiskRoom::Full;
    let pulls = m.credit_rows > 0
        && leader
            .node
            .ledger(|l| l.answers_pull(slot, m.seq) && (!full || l.has_answered(slot, m.seq)));
    if pulls {
        let (seq, rows_max) = (m.seq, m.credit_rows);
        ops.push(OpKind::Claim(op::Claim { slot, instance, seq, rows_max }).into());
    }
    if ops.is_empty() {
        let answered = m.credit_rows == 0 || !foreign.is_empty();
        return Ok(answered.then(|| Done::refused(foreign)));
    }
    let result_count = sets.len();
    let refused_by_store = ops.iter().any(is_refusal_of_store);
    let proposed = leader.proposer.ops_within(Scope::Namespaces(vec![namespace.to_owned()]), ops);
    #[cfg(feature = "seeded-bugs")]
    let proposed = hopeful(leader, proposed, result_count);
    let Applied { at, replies } = match proposed.await {
        Ok(applied) => applied,
        Err(error) => {
            let error = reject::proposal(&error);
            if let Some(pull) = idle_slot {
                deliver(leader, &pull.out, Err(error.clone())).await;
            }
            return Err(error);
        }
    };
    // The stream may have broken meanwhile. Then the worker has repeated the pull on a new one, and this answers it.
    for slot in idle_slot.iter().map(|pull| pull.slot).chain(pulls.then_some(slot)) {
        leader.parked_pulls.may_be_answered(slot);
    }
    let mut done = Done { at: Some(at), ..Done::refused(foreign) };
    let (OtherSlots { stolen, superseded }, result) = done.add_all(replies, sets);
    if !superseded.is_empty() {
        let rows = superseded.iter().map(|loser| loser.1.rows.len()).sum();
        metrics::counter!("rollout_rows_superseded_total").increment(rows);
        // The old name, for one release.
        metrics::counter!("rollout_rows_outrun_total").increment(rows);
        leader.revoke(superseded, "another worker was faster");
    }
    // The ledger also revokes the worker's other rows of the run, including those of its other slots.
    if refused_by_store {
        leader.revoke_taken(at.index, "the store of the run refuses the worker");
    }
    if let Some(pull) = idle_slot {
        // The yielded rows are the last operation among the results.
        let position = at.position + (result_count as u32).saturating_sub(1);
        hand_over(leader, slot, pull, Done::granted(LogPosition { position, ..at }, stolen)).await;
    }
    result?;
    done.nothing_more = nothing_more(leader, namespace, m);
    let waits = done.grants.is_empty() && m.credit_rows > 0 && !has_results;
    Ok(if waits { None } else { Some(done) })
}

/// Whether rows failed because the store of their run refuses the worker.
fn is_refusal_of_store(op: &Op) -> bool {
    matches!(op.kind, OpKind::Fail(op::Fail { class: FailureClass::StoreRefused, .. }))
}

/// The runs of the message's parts that have no more rows for any slot.
fn nothing_more(leader: &LeaderState, namespace: &str, m: &v1::Exchange) -> Vec<u32> {
    if m.parts.is_empty() {
        return Vec::new();
    }
    let runs: BTreeSet<u32> = m.parts.iter().map(|part| part.run).collect();
    leader.node.ledger(|l| {
        // A worker learns nothing about runs of other namespaces.
        let of_own = |no| l.run_namespace(no) == Some(namespace);
        let ended = |run: &u32| of_own(RunNo(*run)) && l.has_nothing_more(RunNo(*run));
        runs.into_iter().filter(ended).collect()
    })
}

/// Seeded bug: acknowledges results after a while without knowing whether they were applied.
#[cfg(feature = "seeded-bugs")]
async fn hopeful(
    leader: &LeaderState,
    proposed: impl Future<Output = crate::leader::proposer::ProposeResult>,
    results: usize,
) -> crate::leader::proposer::ProposeResult {
    if !seeded(Bug::SuccessWithoutQuorum) || results == 0 {
        return proposed.await;
    }
    let limit = std::time::Duration::from_millis(300);
    if let Ok(Ok(applied)) = tokio::time::timeout(limit, proposed).await {
        return Ok(applied);
    }
    let index = leader.node.ledger(|l| l.applied().index);
    let replies = vec![Reply::Taken { refused: Vec::new() }; results];
    Ok(Applied { at: LogPosition { index, position: 0 }, replies })
}

/// Seeded bug: moves rows to the idle slot before the victim has given them up.
#[cfg(feature = "seeded-bugs")]
pub(crate) async fn steal_without_consent(
    leader: Arc<LeaderState>,
    victim: SlotRef,
    id: u64,
    held: Vec<HeldRows>,
) {
    let rows = held.iter().map(|h| h.rows.len()).sum();
    let idle_slot = leader.stealing.answered(victim, id, rows);
    let Some(pull) = idle_slot.and_then(|idle_slot| leader.parked_pulls.take(idle_slot)) else {
        return;
    };
    let (idle_slot, instance, seq) = (pull.slot, pull.instance, pull.seq);
    let steal = OpKind::Steal(op::Steal { victim, held, idle_slot, instance, seq });
    match leader.proposer.op_at(steal).await {
        Ok((at, Reply::Stolen { granted: grants, .. })) => {
            let stolen = Done::granted(at, grants);
            hand_over(&leader, victim, pull, stolen).await;
        }
        _ => park(&leader, pull),
    }
}

/// The operation for unstarted rows that a slot gave up. If the pull of the slot for which the leader requested them
/// still waits, they go to that slot; otherwise they become pending. Returns that pull, to be answered.
fn given_up(
    leader: &LeaderState,
    slot: SlotRef,
    m: &v1::Exchange,
    ops: &mut Vec<Op>,
    sets: &mut Vec<Vec<HeldRows>>,
) -> Checked<Option<Pull>> {
    if m.r#yield == 0 && m.yielded.is_empty() {
        return Ok(None);
    }
    let held: Vec<HeldRows> = m.yielded.iter().map(convert::held_in).collect::<Checked<_>>()?;
    let rows = held.iter().map(|h| h.rows.len()).sum();
    let idle_slot = leader.stealing.answered(slot, m.r#yield, rows);
    if rows == 0 {
        return Ok(None);
    }
    let pull = idle_slot.and_then(|idle_slot| leader.parked_pulls.take(idle_slot));
    sets.push(held.clone());
    ops.push(match &pull {
        Some(pull) => {
            let (idle_slot, instance, seq) = (pull.slot, pull.instance, pull.seq);
            OpKind::Steal(op::Steal { victim: slot, held, idle_slot, instance, seq }).into()
        }
        None => OpKind::Nack(op::Nack { slot, held }).into(),
    });
    Ok(pull)
}

/// Answers the idle slot's pull with the rows that the victim gave up, or parks it again if there are none.
async fn hand_over(leader: &LeaderState, victim: SlotRef, pull: Pull, stolen: Done) {
    if stolen.grants.is_empty() {
        return park(leader, pull);
    }
    let rows: u64 = stolen.grants.iter().map(|g| g.held.rows.len()).sum();
    metrics::counter!("rollout_steals_total").increment(1);
    metrics::counter!("rollout_rows_stolen_total").increment(rows);
    tracing::debug!(
        victim = %victim.session,
        idle_slot = %pull.slot.session,
        rows,
        "rows were stolen"
    );
    let Pull { slot, seq, out, .. } = pull;
    send(leader, slot, seq, stolen, &out).await;
}

/// The operations of an exchange's results, and the rows that each names. Finished rows come first, so that a row that
/// finished before its engine died counts as done.
pub(crate) fn results_in(
    slot: SlotRef,
    m: &v1::Exchange,
    ops: &mut Vec<Op>,
    sets: &mut Vec<Vec<HeldRows>>,
) -> Checked<()> {
    for part in &m.parts {
        let run = RunNo(part.run);
        let held: Vec<HeldRows> = part
            .sets
            .iter()
            .map(|s| Ok(HeldRows { run, ..convert::held_in(s)? }))
            .collect::<Checked<_>>()?;
        let blob = convert::blob_in(part.part.as_ref())?;
        let decl = PartDecl { blob, tokens_in: part.tokens_in, tokens_out: part.tokens_out };
        sets.push(held.clone());
        ops.push(OpKind::Complete(op::Complete { slot, run, part: decl, sets: held }).into());
    }
    for f in &m.failures {
        let wire = v1::HeldRows { run: f.run, attempt: f.attempt, rows: f.rows.clone() };
        let held = convert::held_in(&wire)?;
        let class = convert::class_in(f.class)?;
        sets.push(vec![held.clone()]);
        let (code, message) = (f.code.clone(), f.message.clone());
        let evidence = convert::evidence_in(f.evidence.as_ref())?;
        ops.push(OpKind::Fail(op::Fail { slot, held, class, code, message, evidence }).into());
    }
    for death in &m.deaths {
        let started: Vec<_> = death.started.iter().map(convert::held_in).collect::<Checked<_>>()?;
        let class = convert::class_in(death.class)?;
        sets.push(started.clone());
        let (code, message, number) = (death.code.clone(), death.message.clone(), death.number);
        let evidence = convert::evidence_in(death.evidence.as_ref())?;
        ops.push(
            OpKind::EngineDied(op::EngineDied {
                slot,
                number,
                started,
                class,
                code,
                message,
                evidence,
            })
            .into(),
        );
    }
    if !m.nacks.is_empty() {
        let held: Vec<_> = m.nacks.iter().map(convert::held_in).collect::<Checked<_>>()?;
        sets.push(held.clone());
        ops.push(OpKind::Nack(op::Nack { slot, held }).into());
    }
    Ok(())
}
