//! One trainer of the workload `shards`: it enters a lineage; claims, reads, finishes and gives back shards; reports
//! checkpoints; and recovers when the cluster says so.
//!
//! *Invariant:* steps rise. Before the trainer passes a checkpoint's step, it reports to the checkpoint how far it
//! has read each shard that it holds. It finishes a shard in the step in which it read the last sample.

mod checkpoints;
mod claims;

use super::positioned::Positioned;
use super::repeat;
use super::shards::Launch;
use super::trainers::{LIMIT, SendResult, Trainer, job};
use crate::events::EventKind;
use crate::recorder::Op;
use anyhow::Result;
use rand::Rng;
use rollout_proto::{CallOptions, ErrorCode, services, v1};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After this silence a trainer is lost.
const KEEP_ALIVE_MS: u64 = 1500;
/// The interval of keep-alives.
const KEEP: Duration = Duration::from_millis(350);
/// Steps between two checkpoints.
const EVERY: u64 = 24;
/// The most shards that it holds at a time.
const HELD_MAX: usize = 2;

/// A trainer, across its processes.
pub(super) struct ShardTrainer {
    pub(super) trainer: Trainer,
    name: &'static str,
    launch: Arc<Launch>,
    /// The instance of its present process.
    instance: u64,
    /// The last round for which a member requested a recovery.
    torn: u64,
}

/// A shard that it holds.
struct HeldShard {
    epoch: u64,
    shard: u32,
    token: u64,
    /// Its first and last position in the dataset, and how far it was read.
    first: u64,
    end: u64,
    read: u64,
}

impl HeldShard {
    fn key(&self) -> String {
        format!("{}/{}", self.epoch, self.shard)
    }
}

/// Its membership of a generation.
pub(super) struct Membership {
    by: v1::TrainerRef,
    lineage: u32,
    round: u64,
    step: u64,
    epoch: u64,
    held: Vec<HeldShard>,
    kept: Instant,
}

/// It no longer belongs to the generation.
struct MembershipLost;

impl ShardTrainer {
    pub(super) fn new(mut trainer: Trainer, name: &'static str, launch: Arc<Launch>) -> Self {
        let instance = trainer.rng.random::<u64>() | 1;
        Self { trainer, name, launch, instance, torn: 0 }
    }

    pub(super) async fn run(mut self) -> Result<()> {
        while !self.trainer.shared.stopping() {
            if let Some(mut membership) = self.enter().await {
                while !self.trainer.shared.stopping() && self.goes_on(&mut membership).await.is_ok()
                {
                    self.trainer.pause(20..80).await;
                }
            }
            self.trainer.pause(20..200).await;
        }
        Ok(())
    }

    /// A new process has its name from now on, without its memory.
    fn dies(&mut self) {
        self.instance = self.trainer.rng.random::<u64>() | 1;
        self.trainer.restart();
    }

    /// A key of its job in the history.
    fn key(&self, of: &str) -> String {
        format!("{}{of}", self.launch.training_job.prefix)
    }

    fn job(&self) -> Option<v1::JobName> {
        Some(job(self.launch.training_job.job))
    }

    /// No member may request a recovery of a job that continues after a loss.
    fn has_to_recover(&mut self, round: u64, why: &str) {
        self.torn = self.torn.max(round);
        if self.launch.training_job.on_loss == v1::LossPolicy::Continue {
            let (what, why) = ("a job that is to go on".to_owned(), why.to_owned());
            self.trainer.shared.recorder.event(EventKind::Refused { what, why });
        }
    }

    fn decl(&self) -> v1::TrainerDecl {
        v1::TrainerDecl {
            name: self.name.into(),
            host: format!("host-of-{}", self.name),
            instance: self.instance,
            keep_alive_ms: KEEP_ALIVE_MS,
        }
    }

    /// Recovers with the others, or joins them.
    pub(super) async fn enter(&mut self) -> Option<Membership> {
        let request = self.trainer.request().await?;
        let (round, world) = self.launch.after(self.torn, self.name);
        let most = world.len() == 1 || self.trainer.rng.random_ratio(4, 5);
        let training_job = self.launch.training_job;
        let job_may_recover = training_job.on_loss == v1::LossPolicy::Recover;
        let recovers = job_may_recover && world.contains(&self.name) && most;
        if !recovers {
            // Wait until the others have begun.
            self.trainer.pause(100..600).await;
        }
        let (decl, recorder) = (self.decl(), self.trainer.shared.recorder.clone());
        let (named, key) = (self.job(), self.key(training_job.job));
        let id = Some(repeat::request_text(request.id()));
        let (op, sent) = if recovers {
            let op = recorder.invoke("recover", key, json!([self.name, round]), id);
            let send = |channel, id| {
                let request = v1::RecoverRequest {
                    request: Some(id),
                    job: named.clone(),
                    round,
                    world: world.iter().map(|name| (*name).to_owned()).collect(),
                    trainer: Some(decl.clone()),
                    from: 0,
                    on_loss: training_job.on_loss.into(),
                };
                async move { services::checkpoints(channel).recover(request).await }
            };
            let summary = |answer: &v1::RecoverResponse| answer.ticket.to_string();
            let sent = self.trainer.change(request, "recover", send, summary).await;
            (op, sent.map(|answer| (answer.ticket, answer.lineage, answer.checkpoint)))
        } else {
            let op = recorder.invoke("join", key, json!([self.name]), id);
            let send = |channel, id| {
                let request = v1::JoinJobRequest {
                    request: Some(id),
                    job: named.clone(),
                    trainer: Some(decl.clone()),
                    on_loss: training_job.on_loss.into(),
                };
                async move { services::shards(channel).join_job(request).await }
            };
            let summary = |answer: &v1::JoinJobResponse| answer.ticket.to_string();
            let sent = self.trainer.change(request, "join", send, summary).await;
            (op, sent.map(|answer| (answer.ticket, answer.lineage, None)))
        };
        self.entered(round, &op, sent)
    }

    fn entered(
        &mut self,
        round: u64,
        op: &Op,
        sent: SendResult<(u64, Option<v1::Lineage>, Option<v1::Checkpoint>)>,
    ) -> Option<Membership> {
        let recorder = self.trainer.shared.recorder.clone();
        let ((ticket, lineage, checkpoint), by) = match sent {
            SendResult::Answered(answer, by) => (answer, by),
            SendResult::Refused(code, why) => {
                // If others have passed this round, or it has no place in it, try the next.
                let next = self.trainer.rng.random_ratio(1, 3);
                if code == ErrorCode::NeedsRecovery {
                    self.has_to_recover(round, &why);
                } else if op.f() == "recover" && next {
                    self.torn = self.torn.max(round);
                }
                recorder.fail(op, why);
                return None;
            }
            SendResult::Lost(why) => {
                self.dies();
                recorder.info(op, why);
                return None;
            }
        };
        let lineage = lineage.unwrap_or_default();
        let base = checkpoint.map(|found| {
            let ranks: Vec<Value> = found.ranks.iter().map(|rank| json!(rank.trainer)).collect();
            json!([found.number, found.step, found.lineage, ranks])
        });
        recorder.ok(op, json!([ticket.to_string(), lineage.number, lineage.step, base]), by);
        if !lineage.torn.is_empty() {
            self.has_to_recover(lineage.round, &lineage.torn);
            return None;
        }
        // Start a few epochs back: shards read in them may be open again.
        let epoch = self.launch.epoch().saturating_sub(6);
        let by = v1::TrainerRef { job: self.job(), trainer: self.name.into(), ticket };
        let step = self.launch.step().max(lineage.step) + 1;
        let (number, round) = (lineage.number, lineage.round);
        let held = Vec::new();
        Some(Membership { by, lineage: number, round, step, epoch, held, kept: Instant::now() })
    }

    /// Does one thing.
    async fn goes_on(&mut self, membership: &mut Membership) -> Result<(), MembershipLost> {
        self.keeps(membership).await?;
        match self.trainer.rng.random_range(0..1000) {
            0..2 => {
                self.trainer.pause(0..2500).await;
                self.dies();
                return Err(MembershipLost);
            }
            // It does not notice that it was silent.
            2..4 => self.trainer.pause(1700..2600).await,
            4..14 if membership.held.is_empty() => return self.leave(membership).await,
            _ => {}
        }
        self.advance(membership).await?;
        let (held, dice) = (membership.held.len(), self.trainer.rng.random_range(0..10));
        match dice {
            0..4 if held < HELD_MAX => self.claim(membership).await.map(|_| ()),
            4 if held > 0 => self.release(membership).await,
            _ if held > 0 => self.read(membership).await,
            _ => self.claim(membership).await.map(|_| ()),
        }
    }

    /// Reads a part of an epoch; `true` once nothing of it is left, `None` if the membership is lost.
    pub(super) async fn read_all(
        &mut self,
        membership: &mut Membership,
        epoch: u64,
    ) -> Option<bool> {
        membership.epoch = epoch;
        self.keeps(membership).await.ok()?;
        self.advance(membership).await.ok()?;
        while !membership.held.is_empty() {
            self.read(membership).await.ok()?;
        }
        self.claim(membership).await.ok()
    }

    async fn keeps(&mut self, membership: &mut Membership) -> Result<(), MembershipLost> {
        if membership.kept.elapsed() < KEEP {
            return Ok(());
        }
        let kept = v1::TrainerKept { trainer: self.name.into(), ticket: membership.by.ticket };
        let request = v1::KeepTrainersRequest { job: self.job(), trainers: vec![kept] };
        let recorder = self.trainer.shared.recorder.clone();
        let key = self.key(self.launch.training_job.job);
        let op = recorder.invoke("alive", key, json!([self.name]), None);
        let options = CallOptions::read().timeout(LIMIT);
        let sent = self.trainer.client.with_leader_opts("keep", options, |channel| {
            let request = request.clone();
            async move { services::shards(channel).keep_trainers(request).await.map(Positioned::of) }
        });
        let (answer, by) = match sent.await {
            Ok(positioned) => positioned.into_parts(),
            Err(error) => {
                recorder.fail(&op, error.to_string());
                return Ok(());
            }
        };
        recorder.ok(&op, json!(answer.lost.is_empty()), by);
        membership.kept = Instant::now();
        if let Some(lineage) = answer.lineage.filter(|lineage| !lineage.torn.is_empty()) {
            self.has_to_recover(membership.round, &lineage.torn);
            return Err(MembershipLost);
        }
        if answer.lost.is_empty() { Ok(()) } else { Err(MembershipLost) }
    }

    /// Takes the pending steps, and reports to a checkpoint that they pass.
    async fn advance(&mut self, membership: &mut Membership) -> Result<(), MembershipLost> {
        let to = match self.trainer.rng.random_ratio(1, 3) {
            true => self.launch.step_on(),
            false => self.launch.step(),
        };
        let checkpoint = to / EVERY * EVERY;
        if checkpoint > membership.step {
            membership.step = checkpoint;
            self.report(membership).await?;
            membership.step += 1;
        }
        membership.step = membership.step.max(to);
        self.launch.step_is(membership.step);
        Ok(())
    }

    /// The effect of a refusal on the membership.
    fn refused(
        &mut self,
        membership: &Membership,
        op: Option<&Op>,
        code: ErrorCode,
        why: String,
    ) -> MembershipLost {
        let recorder = self.trainer.shared.recorder.clone();
        match code {
            ErrorCode::NeedsRecovery => self.has_to_recover(membership.round, &why),
            ErrorCode::IncarnationVoid => {}
            ErrorCode::ShardConflict => {
                let what = op.map_or("claim", Op::f);
                let (name, lineage) = (self.name, membership.lineage);
                let what = format!("a {what} of {name} in lineage {lineage}");
                recorder.event(EventKind::Refused { what, why: why.clone() });
            }
            // Not the ledger's refusal: an earlier copy of the request may have been accepted.
            _ => {
                self.dies();
                if let Some(op) = op {
                    recorder.info(op, why);
                }
                return MembershipLost;
            }
        }
        if let Some(op) = op {
            recorder.fail(op, why);
        }
        MembershipLost
    }

    fn lost(&mut self, op: Option<&Op>, why: String) -> MembershipLost {
        self.dies();
        if let Some(op) = op {
            self.trainer.shared.recorder.info(op, why);
        }
        MembershipLost
    }

    async fn leave(&mut self, membership: &Membership) -> Result<(), MembershipLost> {
        let request = self.trainer.request().await.ok_or(MembershipLost)?;
        let by = &membership.by;
        let send = |channel, id| {
            let request = v1::LeaveJobRequest { request: Some(id), by: Some(by.clone()) };
            async move { services::shards(channel).leave_job(request).await }
        };
        self.trainer.change(request, "leave", send, |_| String::new()).await;
        self.trainer.pause(100..1500).await;
        self.dies();
        Err(MembershipLost)
    }
}
