//! Compares the ledger's training jobs with the model's.

use super::{Cell, Job, Trainings};
use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use rollout_ledger::Ledger;

impl Trainings {
    pub(crate) fn same(&self, ledger: &Ledger) -> TestCaseResult {
        let names: Vec<&str> = ledger.datasets_of("default").map(|d| d.name).collect();
        prop_assert_eq!(names, self.datasets.keys().collect::<Vec<_>>());
        let jobs: Vec<_> = ledger.trainings().map(|t| t.name()).collect();
        prop_assert_eq!(jobs, self.jobs.keys().collect::<Vec<_>>());
        for (name, job) in &self.jobs {
            let view = ledger.training(name).expect("there");
            let generation = view.generation();
            let base = (generation.checkpoint as usize, generation.step);
            prop_assert_eq!(base, (if job.deleting { 0 } else { job.base }, job.step()));
            prop_assert_eq!((generation.number, generation.round), (job.generation, job.round));
            prop_assert_eq!(generation.world, &job.world[..]);
            prop_assert_eq!(generation.needs_recovery.is_some(), job.needs_recovery.is_some());
            for ((dataset, epoch), shards) in &job.cells {
                job.same_epoch(&view, dataset, *epoch, shards)?;
            }
            let there = (1u32..).zip(&job.checkpoints);
            let there: Vec<_> =
                there.filter_map(|(n, c)| Some((n, c.state?, c.step, c.reports.len()))).collect();
            let seen: Vec<_> = view
                .checkpoints()
                .map(|c| {
                    (c.number, c.state(), c.step(), c.ranks().filter(|r| r.1.is_some()).count())
                })
                .collect();
            prop_assert_eq!(seen, there);
        }
        Ok(())
    }
}

impl Job {
    fn same_epoch(
        &self,
        view: &rollout_ledger::TrainingView<'_>,
        dataset: &str,
        epoch: u64,
        shards: &[Vec<Cell>],
    ) -> TestCaseResult {
        let seen = view.shards(dataset, epoch, 0, usize::MAX);
        if self.is_done(dataset, epoch) {
            prop_assert!(seen.is_empty());
            let counts = view.counts(dataset, epoch).expect("done");
            prop_assert_eq!(counts.sealed as usize, shards.len());
            return Ok(());
        }
        for (number, (cells, seen)) in (0u32..).zip(shards.iter().zip(&seen)) {
            let at = (dataset.to_owned(), epoch, number);
            let done = cells.iter().take_while(|c| c.is_in()).count();
            prop_assert_eq!(done, cells.iter().filter(|c| c.is_in()).count());
            let sealed = cells.iter().filter(|c| c.sealed).count();
            prop_assert_eq!((seen.done, seen.sealed), (done as u32, sealed as u32), "{:?}", at);
            let holder = self.claims.get(&at).map_or("", |claim| claim.0.as_str());
            prop_assert_eq!(seen.holder, holder, "{:?}", at);
            let preferred = self.owner(dataset, number).map_or("", String::as_str);
            prop_assert_eq!(seen.preferred, preferred, "{:?}", at);
        }
        prop_assert_eq!(seen.len(), shards.len());
        Ok(())
    }
}
