//! Random commands: correct ones of workers and users, and wrong ones.
//!
//! An action names things by small numbers that are resolved against the model's past when it runs, so that most of
//! them hit something: an old grant, a session that has ended, a pull that was answered.

use crate::api_keys::KeyAct;
use crate::batches::BatchAct;
use crate::files::FileAct;
use crate::job_acts::JobAct;
use crate::jobs::Job;
use crate::meanings::{
    blob, close, complete, held, instance, last_death, next_pull, nothing, register, reuse_results,
    run_no, segments, session, settle, spec, store_name, who,
};
use crate::members::MemberAct;
use crate::naive::Model;
use crate::revocations::RevocationAct;
use crate::runs::Run;
use crate::tokens::TokenAct;
use crate::trainings_acts::Train;
use rollout_ledger::id::{RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::view::RunState;
use rollout_ledger::{
    Evidence, FailureClass, JobName, Op, OpKind, Quota, RequestId, Rows, RunAction, SettingOp,
    StoreName, StoreOp, WebhookState, op,
};

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Ops(Vec<Act>),
    Tick(u64),
    OpenEpoch,
    Stale(Act),
    Reload,
    /// Digests are asked for; by a leader of the past, where that is so.
    Digest {
        stale: bool,
    },
    /// The least version that all members speak.
    Version(u32),
}

/// A grant of the past, counted from the latest, and which of its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pick {
    pub(crate) back: u8,
    pub(crate) mask: u16,
    /// Another run's number, or rows that were never granted.
    pub(crate) wrong: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Act {
    Create { run: u8, other: bool },
    Segments { run: u8, rows: [u8; 2], from: i8 },
    Close { run: u8, wrong: bool },
    Control { run: u8, action: RunAction },
    SetDeadline { run: u8, deadline_ms: u64 },
    SetWeight { run: u8, weight: u32 },
    Seal { run: u8, stale: bool },
    Swept { run: u8 },
    Delete { run: u8 },
    Forget { run: u8 },
    Namespace { cap: u8 },
    Quota { cap: u8, rows: Option<u8>, runs: Option<u8> },
    SettleWebhook { run: u8, stale: bool, delivered: bool },
    Register { worker: u8, instance: u8, alive: bool, resume: bool, slots: u8, held: Vec<Pick> },
    Deregister { worker: u8 },
    Suspect { worker: u8, started: Vec<Pick>, unreported_starts: Option<Vec<Pick>>, grace_ms: u64 },
    Unsuspect { worker: u8 },
    Drain { worker: u8, deadline_ms: u64 },
    Claim { worker: u8, slot: u8, seq: i8, max: u8 },
    Complete { picks: Vec<Pick>, by: Option<u8>, part: u8 },
    Fail { pick: Pick, by: Option<u8>, class: FailureClass },
    Nack { picks: Vec<Pick>, by: Option<u8> },
    Died { picks: Vec<Pick>, by: Option<u8>, memory: bool, told: i8 },
    Settle { worker: u8, slot: u8, how: Settled },
    Cordon { worker: u8, slot: Option<u8>, cordoned: bool },
    Retry { run: u8, mask: Option<u16> },
    Steal { picks: Vec<Pick>, by: Option<u8>, worker: u8, slot: u8, seq: i8, instance: bool },
    ClaimSpeculatively { worker: u8, slot: u8, seq: i8, max: u8 },
    ReuseResults { run: u8, segment: i8, mask: u16, part: u8, wrong: bool },
    Store { store: u8, ops: Vec<StoreOp> },
    DropStore { store: u8 },
    RoundStore { other: bool, nth: u8, ops: Vec<StoreOp> },
    Job(JobAct),
    Train(Train),
    Token(TokenAct),
    Key(KeyAct),
    File(FileAct),
    Batch(BatchAct),
    Revocation(RevocationAct),
    Member(MemberAct),
    CordonAfter(u32),
    Client,
    Request { client: u8, seq: u8, ack: u8, act: Box<Act> },
}

/// What happens to all rows that a slot holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Settled {
    Done,
    Died,
    /// Its engine died when half of it was started.
    HalfDied,
}

impl Act {
    /// Something to begin with: two runs with rows and two workers.
    pub(crate) fn beginning() -> Vec<Act> {
        let register = |worker| Act::Register {
            worker,
            instance: 0,
            alive: false,
            resume: false,
            slots: 2,
            held: Vec::new(),
        };
        vec![
            Act::Namespace { cap: 0 },
            Act::Create { run: 0, other: false },
            Act::Create { run: 1, other: false },
            Act::Segments { run: 0, rows: [8, 24], from: -1 },
            Act::Segments { run: 1, rows: [30, 5], from: -1 },
            register(0),
            register(1),
            register(2),
            Act::Client,
        ]
    }

    pub(crate) fn op(&self, model: &Model) -> Op {
        let Act::Request { client, seq, ack, act } = self else { return self.kind(model).into() };
        let session = *model.clients.keys().nth(usize::from(*client)).unwrap_or(&SessionId(3));
        let (seq, ack_upto) = (u64::from(*seq), u64::from(*ack));
        Op { request: Some(RequestId { session, seq, ack_upto }), kind: act.kind(model) }
    }

    fn kind(&self, model: &Model) -> OpKind {
        match self.clone() {
            Act::Create { run, other } => OpKind::CreateRun(op::CreateRun {
                namespace: if run == 4 { "team".into() } else { "default".into() },
                name: format!("run{run}"),
                spec: Box::new(spec(run, other)),
                folder: format!("run{run}/{}", model.runs.len()),
            }),
            Act::Segments { run, rows, from } => segments(model, run, rows, from),
            Act::Close { run, wrong } => close(model, run, wrong),
            Act::Control { run, action } => OpKind::ControlRun(op::ControlRun {
                run: run_no(model, run),
                action,
                reason: "so".into(),
            }),
            Act::SetDeadline { run, deadline_ms } => {
                OpKind::SetDeadline(op::SetDeadline { run: run_no(model, run), deadline_ms })
            }
            Act::SetWeight { run, weight } => {
                OpKind::SetWeight(op::SetWeight { run: run_no(model, run), weight })
            }
            Act::Seal { run, stale } => {
                let run = run_no(model, run);
                let sealed = (run.0 as usize).checked_sub(1).and_then(|at| model.runs.get(at));
                let ended_index = sealed.filter(|_| !stale).map_or(1, |run| run.ended_index);
                OpKind::Seal(op::Seal { run, manifest: blob("manifest".into()), ended_index })
            }
            Act::Swept { run } => {
                // A sealed run, if there is one: few are sealed.
                let sealed = |r: &&Run| r.gone.is_some_and(|gone| gone.sealed) && !r.forgotten;
                let at = model.runs.iter().position(|r| sealed(&r));
                let run = at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1));
                OpKind::Swept(op::Swept { run })
            }
            Act::Forget { run } => {
                // A run that can be forgotten, if there is one: few can.
                let at =
                    model.runs.iter().position(|r| r.state == RunState::Deleting && !r.forgotten);
                OpKind::ForgetRun(op::ForgetRun {
                    run: at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1)),
                })
            }
            Act::Delete { run } if run % 2 == 1 => {
                let at = model.runs.iter().position(|r| r.ended() && !r.forgotten);
                OpKind::DeleteRun(op::DeleteRun {
                    run: at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1)),
                })
            }
            Act::Delete { run } => OpKind::DeleteRun(op::DeleteRun { run: run_no(model, run) }),
            Act::Namespace { cap } => OpKind::SetNamespace(op::SetNamespace {
                name: if cap % 2 == 0 { "team".into() } else { "default".into() },
                running_rows_max: u64::from(cap / 2 * 3),
            }),
            Act::Quota { cap, rows, runs } => OpKind::SetQuota(Quota {
                namespace: if cap % 2 == 0 { "team".into() } else { "default".into() },
                create: cap % 3 > 0,
                // Most bounds are lifted soon: a story in which nothing may be done is none.
                pending_rows_max: rows.map(|rows| if rows % 4 > 0 { 0 } else { rows.into() }),
                running_rows_max: (cap % 5 == 0).then_some(u64::from(cap / 2 * 3)),
                runs_max: runs.map(|runs| if runs % 2 > 0 { 0 } else { runs.into() }),
            }),
            Act::SettleWebhook { run, stale, delivered } => {
                // A due notification, if there is one.
                let due = |r: &&Run| matches!(r.webhook, WebhookState::Due { .. }) && !r.forgotten;
                let at = model.runs.iter().position(|r| due(&r));
                let run = at.map_or_else(|| run_no(model, run), |at| RunNo(at as u32 + 1));
                let of = at.and_then(|at| model.runs.get(at)).map(|r| r.webhook);
                let index = match of {
                    Some(WebhookState::Due { index }) if !stale => index,
                    _ => 1,
                };
                OpKind::SettleWebhook(op::SettleWebhook { run, index, delivered })
            }
            Act::Register { worker, instance, alive, resume, slots, held } => {
                register(model, (worker, instance, alive, resume, slots), &held)
            }
            Act::Deregister { worker } => {
                OpKind::Deregister(op::Deregister { session: session(model, worker) })
            }
            Act::Suspect { worker, started, unreported_starts, grace_ms } => {
                let named = |picks: &[Pick]| {
                    picks.iter().filter_map(|p| held(model, *p)).map(|h| h.1).collect::<Vec<_>>()
                };
                let (session, started) = (session(model, worker), named(&started));
                match unreported_starts.map(|unreported_starts| named(&unreported_starts)) {
                    None => OpKind::Suspect(op::Suspect { session, started, grace_ms }),
                    Some(mut unreported_starts) => {
                        // As a leader names them: from the rows that the worker holds.
                        let slots = model.workers.get(&session).map_or(0, |w| w.slots.len());
                        let slots = (0..slots).map(|n| SlotRef { session, slot: SlotNo(n as u16) });
                        unreported_starts.extend(slots.flat_map(|slot| model.sets_at(slot)));
                        OpKind::SuspectWithUnreportedStarts(op::SuspectWithUnreportedStarts {
                            session,
                            started,
                            unreported_starts,
                            grace_ms,
                        })
                    }
                }
            }
            Act::Unsuspect { worker } => {
                OpKind::Unsuspect(op::Unsuspect { session: session(model, worker) })
            }
            Act::Drain { worker, deadline_ms } => {
                OpKind::Drain(op::DrainWorker { session: session(model, worker), deadline_ms })
            }
            Act::Claim { worker, slot, seq, max } => {
                let slot = SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
                let seq = next_pull(model, slot, seq);
                let instance = instance(model, slot.session);
                OpKind::Claim(op::Claim { slot, instance, seq, rows_max: max.into() })
            }
            Act::Complete { picks, by, part } => complete(model, &picks, by, part),
            Act::Fail { pick, by, class } => {
                let Some((slot, held)) = held(model, pick) else { return nothing(model) };
                let slot = who(model, slot, by);
                let (code, message) = ("code".into(), "why".into());
                OpKind::Fail(op::Fail {
                    slot,
                    held,
                    class,
                    code,
                    message,
                    evidence: Evidence::default(),
                })
            }
            Act::Nack { picks, by } => {
                let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
                let Some((slot, _)) = sets.first() else { return nothing(model) };
                let slot = who(model, *slot, by);
                OpKind::Nack(op::Nack { slot, held: sets.into_iter().map(|s| s.1).collect() })
            }
            Act::Died { picks, by, memory, told } => {
                let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
                let Some((slot, _)) = sets.first() else { return nothing(model) };
                let slot = who(model, *slot, by);
                OpKind::EngineDied(op::EngineDied {
                    slot,
                    number: last_death(model, slot).saturating_add_signed(told.into()),
                    started: sets.into_iter().map(|s| s.1).collect(),
                    class: if memory {
                        FailureClass::OutOfMemory
                    } else {
                        FailureClass::EngineDied
                    },
                    code: "code".into(),
                    message: "why".into(),
                    evidence: Evidence::default(),
                })
            }
            Act::Settle { worker, slot, how } => settle(model, worker, slot, how),
            Act::Cordon { worker, slot, cordoned } => OpKind::Cordon(op::Cordon {
                session: session(model, worker),
                slot: slot.map(|slot| SlotNo(slot.into())),
                cordoned,
                reason: "so".into(),
            }),
            Act::Retry { run, mask } => {
                let rows = |mask: u16| (0..16).filter(move |bit| mask >> bit & 1 == 1);
                let rows = mask.and_then(|mask| Rows::from_ranges(rows(mask).map(|r| (r, 1))));
                OpKind::RetryRows(op::RetryRows { run: run_no(model, run), rows })
            }
            Act::Steal { picks, by, worker, slot, seq, instance: other } => {
                let sets: Vec<_> = picks.iter().filter_map(|p| held(model, *p)).collect();
                let Some((victim, _)) = sets.first() else { return nothing(model) };
                let victim = who(model, *victim, by);
                let idle_slot =
                    SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
                let instance = instance(model, idle_slot.session) + u64::from(other);
                let seq = next_pull(model, idle_slot, seq);
                // Half of them name rows that the victim holds now, the others rows that it once held.
                let held = match picks.len() {
                    1 | 2 => model.sets_at(victim),
                    _ => sets.into_iter().map(|s| s.1).collect(),
                };
                OpKind::Steal(op::Steal { victim, held, idle_slot, instance, seq })
            }
            Act::ClaimSpeculatively { worker, slot, seq, max } => {
                let slot = SlotRef { session: session(model, worker), slot: SlotNo(slot.into()) };
                let (seq, instance) = (next_pull(model, slot, seq), instance(model, slot.session));
                OpKind::ClaimSpeculatively(op::ClaimSpeculatively {
                    slot,
                    instance,
                    seq,
                    rows_max: max.into(),
                })
            }
            Act::ReuseResults { run, segment, mask, part, wrong } => {
                reuse_results(model, run, segment, (mask, wrong), part)
            }
            Act::Train(train) => train.kind(model),
            Act::Token(act) => act.kind(),
            Act::Key(act) => act.kind(),
            Act::File(act) => act.kind(),
            Act::Batch(act) => act.kind(model),
            Act::Revocation(act) => act.kind(),
            Act::Member(act) => act.kind(),
            Act::CordonAfter(value) => OpKind::Setting(SettingOp::CordonAfter(value)),
            Act::Store { store, ops } => {
                OpKind::Store(op::UseStore { store: store_name(store), ops })
            }
            Act::Job(act) => act.kind(model),
            Act::DropStore { store } => {
                OpKind::DropStore(op::DropStore { store: store_name(store) })
            }
            Act::RoundStore { other, nth, ops } => {
                let StoreName { namespace, job, .. } = store_name(if other { 2 } else { 0 });
                let name = JobName { namespace: namespace.clone(), job: job.clone() };
                let found = model.jobs.get(&name);
                let who = found.and_then(|found| found.who.get(usize::from(nth)));
                let incarnation = who.map_or(SessionId(7), |who| who.incarnation);
                let round = found.map_or(1, Job::latest_complete);
                OpKind::RoundStore(op::UseRoundStore {
                    store: StoreName { namespace, job, round },
                    incarnation,
                    ops,
                })
            }
            Act::Client => {
                OpKind::OpenClient(op::OpenClient { name: "c".into(), holder: "client/c".into() })
            }
            Act::Request { act, .. } => act.kind(model),
        }
    }
}
