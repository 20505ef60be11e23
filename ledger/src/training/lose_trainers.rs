//! Loses trainers that were silent for too long.
//!
//! *Invariant:* an incarnation that has become void since is left alone, so a report that comes late does no harm.
//! Absent: the measurement of silence, in the leader's memory. In `coordinator/src/leader`: `job_liveness.rs`
//! and `state/job_silence.rs`.

use crate::kernel::id::{LedgerMs, SessionId};
use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::event::Emitter;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::machine::version_gate::SILENT_TRAINERS_VERSION;
use crate::training::job::{JobName, Jobs};
use serde::{Deserialize, Serialize};

/// Trainers of a job were silent for too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoseTrainers {
    /// The job.
    pub job: JobName,
    /// Names and incarnations, at most [`limits::TRAINERS_MAX`]. With more, the whole operation is refused: the leader
    /// reports them in several.
    pub trainers: Vec<(String, SessionId)>,
}

impl Operation for LoseTrainers {
    const SINCE: u32 = SILENT_TRAINERS_VERSION;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        // All shards of a job.
        Cost::GrowsWithState
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.job.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        let out = &mut Emitter::new(ctx, &mut ledger.events);
        ledger.jobs.lose_reported(&self.job, self.trainers, out)
    }
}

impl Jobs {
    /// Loses the trainers whose time is over. Below [`SILENT_TRAINERS_VERSION`] only.
    pub(crate) fn lose_silent(&mut self, now: LedgerMs, out: &mut Emitter) {
        let due = self.ends.iter().take_while(|end| end.0 <= now);
        let due = due.map(|(_, no, name)| (*no, name.clone())).collect();
        self.lose(due, "it was silent", out);
    }

    fn lose_reported(
        &mut self,
        job: &JobName,
        mut trainers: Vec<(String, SessionId)>,
        out: &mut Emitter,
    ) -> Result<Reply, Rejection> {
        if trainers.len() > limits::TRAINERS_MAX {
            let what = "trainers lost at once".into();
            return Err(Rejection::Limit { what, max: limits::TRAINERS_MAX as u64 });
        }
        let Some(no) = self.training_no(job) else { return Ok(Reply::Ok) };
        let Some(training) = self.table.training(no) else { return Ok(Reply::Ok) };
        trainers.retain(|(name, incarnation)| {
            let trainer = training.trainers.get(name);
            trainer.is_some_and(|trainer| trainer.incarnation == Some(*incarnation))
        });
        let lost = trainers.into_iter().map(|(name, _)| (no, name)).collect();
        self.lose(lost, "it was silent", out);
        Ok(Reply::Ok)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id::CoordEpoch;
    use crate::machine::command::{Body, Command, OpKind};
    use crate::machine::ledger::EntryId;
    use crate::training::state::LossPolicy;
    use crate::training::trainer::{TrainerDecl, TrainerOp};

    const KEEP_ALIVE_MS: u64 = 5000;

    /// A ledger, and the index of its last entry.
    struct Bench(Ledger, u64);

    impl Bench {
        fn new(version: u32) -> Self {
            let mut bench = Self(Ledger::new([1; 16]), 0);
            bench.apply(0, Body::OpenEpoch);
            bench.apply(0, Body::SetVersion(version));
            bench
        }

        fn apply(&mut self, at: u64, body: Body) -> Reply {
            self.1 += 1;
            let command = Command { epoch: CoordEpoch(1), at: LedgerMs(at), wall_ms: 0, body };
            let entry = EntryId { index: self.1, term: 1 };
            let mut replies = self.0.apply(entry, &command.encode()).expect("it is known");
            self.0.check_invariants().expect("they hold");
            replies.pop().expect("a reply")
        }

        fn join(&mut self, name: &str) -> SessionId {
            let trainer = TrainerDecl {
                name: name.into(),
                host: "h".into(),
                instance: 1,
                keep_alive_ms: KEEP_ALIVE_MS,
            };
            let join = TrainerOp::Join { job: job(), trainer, on_loss: LossPolicy::Recover };
            let reply = self.apply(0, Body::Ops(vec![OpKind::Trainer(join).into()]));
            let Reply::Joined { incarnation, .. } = reply else { panic!("{reply:?}") };
            incarnation
        }

        fn lose(&mut self, trainers: &[(&str, SessionId)]) -> Reply {
            let trainers = trainers.iter().map(|(name, of)| ((*name).to_owned(), *of)).collect();
            let lose = OpKind::LoseTrainers(LoseTrainers { job: job(), trainers });
            self.apply(0, Body::Ops(vec![lose.into()]))
        }

        fn present(&self) -> Vec<&str> {
            let training = self.0.training(&job()).expect("a job");
            let there = training.trainers().filter(|trainer| trainer.present);
            there.map(|trainer| trainer.name).collect()
        }
    }

    fn job() -> JobName {
        JobName { namespace: "default".into(), job: "j".into() }
    }

    #[test]
    fn from_the_version_on_only_the_leader_says_which_trainers_are_silent() {
        let mut bench = Bench::new(SILENT_TRAINERS_VERSION);
        let (a, b) = (bench.join("a"), bench.join("b"));
        let all: Vec<_> = bench.0.trainer_keep_alives().collect();
        assert_eq!(all, [(a, KEEP_ALIVE_MS), (b, KEEP_ALIVE_MS)]);
        assert_eq!(bench.0.next_deadline(), None, "no tick has to end them");
        bench.apply(2 * KEEP_ALIVE_MS, Body::Tick);
        assert_eq!(bench.present(), ["a", "b"]);
        assert_eq!(bench.lose(&[("a", a), ("b", a), ("nobody", a)]), Reply::Ok);
        assert_eq!(bench.present(), ["b"], "the other reports name no incarnation");
        let asked = [("a".to_owned(), a), ("b".to_owned(), b)];
        assert_eq!(bench.0.trainers_present(&job(), &asked), Ok(vec![false, true]));
    }

    #[test]
    fn below_the_version_a_tick_loses_silent_trainers() {
        let mut bench = Bench::new(SILENT_TRAINERS_VERSION - 1);
        let a = bench.join("a");
        assert_eq!(bench.0.trainer_keep_alives().count(), 0, "the leader does not track them");
        let low = Rejection::VersionLow { needs: SILENT_TRAINERS_VERSION, version: 3 };
        assert_eq!(bench.lose(&[("a", a)]), Reply::Rejected(low));
        assert_eq!(bench.0.next_deadline(), Some(LedgerMs(KEEP_ALIVE_MS)));
        bench.apply(KEEP_ALIVE_MS, Body::Tick);
        assert_eq!(bench.present(), [] as [&str; 0]);
    }

    #[test]
    fn a_new_leader_writes_trainers_records_only_while_the_ledger_loses_silent_ones() {
        let written = |version| {
            let mut bench = Bench::new(version);
            bench.join("a");
            bench.0.drain_dirty();
            bench.apply(1000, Body::OpenEpoch);
            let puts = bench.0.drain_dirty().puts;
            puts.iter().filter(|(key, _)| key.starts_with(b"I")).count()
        };
        assert_eq!(written(SILENT_TRAINERS_VERSION - 1), 1);
        assert_eq!(written(SILENT_TRAINERS_VERSION), 0);
    }

    #[test]
    fn raising_the_version_keeps_trainers_whose_time_was_nearly_over() {
        let mut bench = Bench::new(SILENT_TRAINERS_VERSION - 1);
        bench.join("a");
        bench.apply(KEEP_ALIVE_MS - 1, Body::SetVersion(SILENT_TRAINERS_VERSION));
        bench.apply(KEEP_ALIVE_MS, Body::Tick);
        assert_eq!(bench.present(), ["a"]);
    }
}
