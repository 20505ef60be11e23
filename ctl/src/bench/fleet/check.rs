//! The proof at the end: every row that the ledger counts as done was accepted from one worker, once, and members
//! agree.
//!
//! Invariant: rows are compared one by one between the processes of the generator, and run by run with the ledger. No
//! row is started twice, except those of workers that were cut off.
//! Absent: any tolerance, except for the results of workers that were cut off and never came back.

use std::time::Duration;

use anyhow::{bail, ensure};

use super::figures::FleetSettled;
use super::part::OrderReply;
use super::part_processes::PartProcesses;
use super::runs::Runs;
use crate::bench::coverage::Bits;
use crate::bench::final_check;
use crate::bench::target::Target;
use crate::rolloutctl::cluster::verify;

/// Effects of lost workers that the proof must tolerate.
#[derive(Debug, Clone, Copy)]
pub(super) struct CutOffWorkers {
    /// Some were cut off. A worker starts its rows for as long as its last answered heartbeat allows, and the leader
    /// does not hear of that; so rows that it started may be granted again.
    pub(super) any: bool,
    /// They never came back, and the leader may have accepted results for which they never got the answer.
    pub(super) permanently: bool,
}

/// Compares workers' results with the ledger, run by run.
///
/// # Errors
/// The first difference, naming the run.
pub(super) async fn check(
    target: &Target,
    processes: &mut PartProcesses,
    runs: &Runs,
    cut_off: CutOffWorkers,
) -> anyhow::Result<FleetSettled> {
    let mut settled = FleetSettled::default();
    let (tally, _) = processes.report(false).await?;
    settled.violations = tally.counts.violations;
    settled.started = tally.counts.rows_started;
    settled.started_again = tally.counts.rows_started_again;
    let replies = processes.rows().await?;
    for of in &runs.all {
        let (mut started, mut accepted) = (Bits::new(of.rows), Bits::new(of.rows));
        let mut twice = 0;
        for process in &replies {
            let OrderReply::Rows(sets) = process else {
                bail!("a generator process reports no rows")
            };
            for set in sets.iter().filter(|set| set.run == of.run) {
                settled.started_again += started.unite(&Bits::from_words(set.started.clone()));
                twice += accepted.unite(&Bits::from_words(set.accepted.clone()));
            }
        }
        let (run, accepted) = (of.run, accepted.len());
        ensure!(twice == 0, "run {run}: {twice} rows were accepted from two workers");
        let counts = final_check::counts(target.admin(), &of.namespace, run).await?;
        let sum = counts.pending + counts.running + counts.waiting + counts.done + counts.failed;
        ensure!(
            sum == counts.rows,
            "run {run}: the states of its rows add up to {sum}, but it has {}",
            counts.rows
        );
        ensure!(counts.failed == 0, "run {run}: {} rows failed", counts.failed);
        ensure!(
            counts.done == accepted || cut_off.permanently && counts.done > accepted,
            "run {run}: the ledger has {} rows done, the workers were told of {accepted}",
            counts.done
        );
        settled.runs += 1;
        settled.rows += counts.rows;
        settled.done += counts.done;
        settled.accepted += accepted;
    }
    ensure!(
        settled.violations == 0,
        "{} violations, such as: {}",
        settled.violations,
        tally.examples.join("; ")
    );
    ensure!(
        settled.started_again == 0 || cut_off.any,
        "{} rows were started again, though no worker was cut off",
        settled.started_again
    );
    let verification = verify::verify(target.admin(), Duration::from_secs(120)).await?;
    settled.digest_index = verification.index;
    settled.digests_equal = verification.agree;
    ensure!(verification.agree, "the members do not agree: {}", verification.complaint());
    Ok(settled)
}
