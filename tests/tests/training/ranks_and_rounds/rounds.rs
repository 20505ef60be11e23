//! Rounds of trainers, each a process of its own.

use crate::ranks_and_rounds::setup::{
    PATIENCE, SEED, create_dataset, each_is_in_once, ids_in, latest,
};
use anyhow::{Context, Result, ensure};
use rollout_tests::{Fleet, FleetOptions, Process, eventually_or_show};
use rollout_training::mock::MockModel;
use serde_json::Value;
use std::collections::BTreeMap;

/// The exit status of a trainer that must recover.
const HAS_TO_RECOVER: i32 = 17;

/// The trainers of one round.
struct Round<'a> {
    fleet: &'a Fleet,
    job: &'a str,
    trainers: BTreeMap<String, Process>,
}

/// The plan of a job.
#[derive(Clone, Copy)]
struct Plan {
    batch: u64,
    steps: u64,
    every: u64,
    step_ms: u64,
    epochs: u64,
    /// How long a trainer may be silent.
    keep_ms: u64,
}

/// Longer than trainers are silent while a member dies.
const KEEP_MS: u64 = 20_000;

impl<'a> Round<'a> {
    fn start(
        fleet: &'a Fleet,
        job: &'a str,
        round: u64,
        world: &[&str],
        plan: Plan,
    ) -> Result<Self> {
        let mut trainers = BTreeMap::new();
        for name in world {
            let endpoints: Vec<String> =
                fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
            let mut command = fleet.program("mock-trainer");
            command
                .arg(format!("endpoints={}", endpoints.join(",")))
                .arg(format!("tls={}", fleet.path("tls").display()))
                .args(["cert=client-user", "dataset=pile"])
                .arg(format!("job={job}"))
                .arg(format!("name={name}"))
                .arg(format!("world={}", world.join(",")))
                .arg(format!("round={round}"))
                .arg(format!("batch={}", plan.batch))
                .arg(format!("steps={}", plan.steps))
                .arg(format!("every={}", plan.every))
                .arg(format!("epochs={}", plan.epochs))
                .arg(format!("seed={SEED}"))
                .arg(format!("step_ms={}", plan.step_ms))
                .arg(format!("keep_ms={}", plan.keep_ms))
                .arg(format!("out={}", fleet.path(&format!("{job}-{name}.weights")).display()));
            let log = fleet.path(&format!("{job}-{name}-{round}.log"));
            trainers.insert((*name).to_owned(), Process::start(command, &log)?);
        }
        Ok(Self { fleet, job, trainers })
    }

    /// Waits for a complete checkpoint of that step or a later one, and returns its step.
    fn until_step(&self, at_least: u64) -> u64 {
        let what = format!("a checkpoint of step {at_least}");
        eventually_or_show(&what, PATIENCE, |seen| {
            let tails = self.trainers.iter().map(|(name, p)| format!("{name}: {}\n", p.log_tail()));
            *seen = tails.collect();
            latest(self.fleet, self.job).filter(|step| *step >= at_least)
        })
    }

    /// Kills trainers at once, each between two checkpoints, and returns the step at which the first of them died.
    ///
    /// They are stopped while the test looks, because on a busy machine they could pass the next checkpoint. The one
    /// before is complete: a trainer that dies while it writes leaves a temporary file, which is removed much later.
    fn kill_between(&mut self, names: &[&str], every: u64) -> Result<u64> {
        let found: Option<Vec<Process>> = names.iter().map(|n| self.trainers.remove(*n)).collect();
        let mut trainers = found.context("trainers of this round")?;
        let signal = |trainers: &[Process], signal: i32| {
            trainers.iter().try_for_each(|trainer| trainer.signal(signal)).ok()
        };
        let what = format!("{names:?} are between checkpoints");
        let died_at = eventually_or_show(&what, PATIENCE, |seen| {
            signal(&trainers, libc::SIGSTOP)?;
            let steps: Option<Vec<u64>> = trainers.iter().map(last_step).collect();
            let steps = steps.unwrap_or_default();
            let complete = latest(self.fleet, self.job);
            *seen = format!("at steps {steps:?}, the latest checkpoint is of step {complete:?}");
            let is_between = |at: &u64| {
                (1..every - 1).contains(&(at % every)) && complete == Some(at - at % every)
            };
            if !steps.is_empty() && steps.iter().all(is_between) {
                return steps.first().copied();
            }
            signal(&trainers, libc::SIGCONT)?;
            None
        });
        trainers.iter_mut().for_each(Process::kill);
        Ok(died_at)
    }

    /// Checks that all of them exit with this status.
    fn end(self, status: i32) -> Result<()> {
        for (name, mut trainer) in self.trainers {
            let ended = trainer.wait(PATIENCE)?;
            ensure!(
                ended.code() == Some(status),
                "{name} ended with {ended}: {}",
                trainer.log_tail()
            );
        }
        Ok(())
    }
}

/// The last step that a trainer printed, ignoring its first and last lines.
fn last_step(trainer: &Process) -> Option<u64> {
    let text = std::fs::read_to_string(&trainer.log).ok()?;
    let steps = text.lines().filter(|line| !line.contains("begins") && !line.contains("ends"));
    steps.filter_map(|line| line.split_once(" at step ")?.1.parse().ok()).next_back()
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_steps_are_five_a_checkpoint_a_kill_and_five_more() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 100).await?;
    let plan = Plan { batch: 7, steps: 10, every: 5, step_ms: 0, epochs: 1, keep_ms: KEEP_MS };
    Round::start(&fleet, "straight", 1, &["t0"], plan)?.end(0)?;
    // Slow enough to be observed halfway.
    let slow = Plan { step_ms: 2000, ..plan };
    let mut broken = Round::start(&fleet, "broken", 1, &["t0"], slow)?;
    ensure!(broken.until_step(5) == 5, "the trainer was too fast for this test");
    let died_at = broken.kill_between(&["t0"], 5)?;
    ensure!((6..10).contains(&died_at), "it died at step {died_at}");
    Round::start(&fleet, "broken", 2, &["t0"], plan)?.end(0)?;
    let weights = |job: &str| std::fs::read(fleet.path(&format!("{job}-t0.weights")));
    ensure!(weights("straight")? == weights("broken")?, "the weights differ");
    let model = MockModel::load_weights(&weights("straight")?).context("weights")?;
    ensure!((model.steps(), model.folded().0) == (10, 70), "{model:?}");
    // Compare the samples, not only their number: the same ones, each once.
    let (mut straight, mut broken) =
        (ids_in(&fleet, "straight").await?, ids_in(&fleet, "broken").await?);
    straight.sort_unstable();
    broken.sort_unstable();
    ensure!(straight == broken, "{straight:?} are not {broken:?}");
    straight.dedup();
    ensure!(straight.len() == 70 && straight.iter().all(|id| *id < 100), "{straight:?}");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_of_each_epoch_is_in_once_though_trainers_and_members_die_between_checkpoints()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 300).await?;
    let plan = Plan { batch: 4, steps: 200, every: 5, step_ms: 150, epochs: 2, keep_ms: KEEP_MS };
    let first = Round::start(&fleet, "sft", 1, &["t0", "t1", "t2"], plan)?;
    let step = first.until_step(5);
    let trainers = first.trainers;
    // The leader dies halfway: clients notice only a pause.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    let goes_on = Round { fleet: &fleet, job: "sft", trainers };
    let step = goes_on.until_step(step + 5);
    let trainers = goes_on.trainers;
    fleet.start_member(&leader)?;
    // A trainer dies with the samples read since the last checkpoint: the others begin a smaller round. Trainers of
    // the previous round are refused from then on.
    let mut before = Round { fleet: &fleet, job: "sft", trainers };
    let died_at = before.kill_between(&["t1"], plan.every)?;
    ensure!(died_at > step, "it died at step {died_at}, before step {step}");
    let second = Round::start(&fleet, "sft", 2, &["t0", "t2"], plan)?;
    before.end(HAS_TO_RECOVER)?;
    let step = second.until_step(step + 5);
    // Start three of them again, and one more, while the two still train.
    let mut third = Round::start(&fleet, "sft", 3, &["t2", "t0", "t3", "t1"], plan)?;
    second.end(HAS_TO_RECOVER)?;
    let step = third.until_step(step + 5);
    // Two trainers die at once, one of them rank 0, and a member that does not lead: a job of one remains, then
    // three.
    third.kill_between(&["t2", "t3"], plan.every)?;
    let leader = third.fleet.leader();
    let follower = third.fleet.member_names().into_iter().find(|name| *name != leader);
    let follower = follower.context("a member that does not lead")?;
    let trainers = third.trainers;
    fleet.member_process(&follower).kill();
    let fourth = Round::start(&fleet, "sft", 4, &["t0"], plan)?;
    Round { fleet: &fleet, job: "sft", trainers }.end(HAS_TO_RECOVER)?;
    fourth.until_step(step + 5);
    let trainers = fourth.trainers;
    fleet.start_member(&follower)?;
    // Nobody dies in the last round: it need not be slow enough to be observed.
    let last = Plan { step_ms: 20, ..plan };
    let fifth = Round::start(&fleet, "sft", 5, &["t1", "t0", "t4"], last)?;
    Round { fleet: &fleet, job: "sft", trainers }.end(HAS_TO_RECOVER)?;
    fifth.end(0)?;
    each_is_in_once(&fleet, "sft", 2, 300).await?;
    told(&fleet)?;
    fleet.verify()?;
    fleet.passed()
}

/// Checks what an operator sees, and that the store has only kept checkpoints.
fn told(fleet: &Fleet) -> Result<()> {
    let list = fleet.ctl_json(&["checkpoint", "list", "sft"])?;
    let numbers = || {
        let all = list["checkpoints"].as_array().into_iter().flatten();
        all.filter(|c| c["state"] == "complete").filter_map(|c| c["number"].as_u64())
    };
    ensure!(numbers().count() == 5, "five are kept: {list}");
    let described = fleet.ctl_json(&["checkpoint", "describe", "sft"])?;
    ensure!(described["checkpoint"]["step"] == "200", "{described}");
    ensure!(fleet.ctl(&["checkpoint", "verify", "sft"])?.status.success(), "its bytes are whole");
    for epoch in ["0", "1"] {
        let shards =
            fleet.ctl_json(&["shard", "describe", "sft", "--dataset", "pile", "--epoch", epoch])?;
        ensure!(shards["pass"]["sealed"] == 30, "{shards}");
    }
    let mut kept: Vec<String> = numbers().map(|number| format!("{number:08}")).collect();
    kept.sort_unstable();
    eventually_or_show("what is pruned goes from the store", PATIENCE, |seen| {
        let folders = std::fs::read_dir(fleet.path("store/training/default/sft")).ok()?;
        let full =
            |path: &std::path::Path| std::fs::read_dir(path).is_ok_and(|mut d| d.next().is_some());
        let full = folders.filter_map(|f| Some(f.ok()?.path())).filter(|path| full(path));
        let mut names: Vec<String> = full
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        names.sort();
        *seen = format!("{names:?}, kept {kept:?}");
        (names == kept).then_some(())
    });
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lineage_that_lost_a_trainer_in_silence_is_torn_until_it_recovers() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    create_dataset(&fleet, 400).await?;
    // No member dies here.
    let keep_ms = KEEP_MS / 2;
    let plan = Plan { batch: 2, steps: 400, every: 10, step_ms: 50, epochs: 1, keep_ms };
    let mut round = Round::start(&fleet, "torn", 1, &["t0", "t1"], plan)?;
    round.until_step(10);
    round.kill_between(&["t1"], plan.every)?;
    // No request reports the loss: the ledger's clock detects it.
    round.end(HAS_TO_RECOVER)?;
    let jobs = fleet.ctl_json(&["shard", "list", "torn"])?;
    let torn: &Value = &jobs["jobs"][0]["lineage"]["torn"];
    ensure!(torn.as_str().is_some_and(|why| why.contains("t1")), "{jobs}");
    let plan = Plan { step_ms: 0, batch: 8, ..plan };
    let steps = latest(&fleet, "torn").context("a checkpoint")?;
    let plan = Plan { steps: steps.next_multiple_of(10) + 100, ..plan };
    Round::start(&fleet, "torn", 2, &["t0"], plan)?.end(0)?;
    each_is_in_once(&fleet, "torn", 1, 400).await?;
    fleet.verify()?;
    fleet.passed()
}
