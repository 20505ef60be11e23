//! The whole promise at once: members and workers die at random while rows of every expected outcome run, and each row
//! ends exactly as its prompt says, once.
//!
//! 1 % of the rows kill their engine, 1 % are invalid and 5 % fail once; all take 5 to 50 ms. The test command runs a
//! short version; `make soak` runs ten minutes with 50,000 rows. `ROLLOUT_SOAK_SEED` repeats a choice of victims, not
//! their timing.

use anyhow::{Context, Result, bail, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rollout_jepsen::expected_outcome::ExpectedOutcome;
use rollout_tests::{Batch, Counts, Fleet, FleetOptions, WorkerOptions, eventually_or_show};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

const WORKERS: [&str; 3] = ["w1", "w2", "w3"];
/// Silence after which a session is suspect, with a margin.
const SUSPECT: Duration = Duration::from_secs(6);
/// Time limit for the rest once nothing is killed any more.
const PATIENCE: Duration = Duration::from_secs(600);

/// The size of the test, from the environment; by default a short one.
struct Size {
    rows: u64,
    runs: u64,
    time: Duration,
    seed: u64,
}

impl Size {
    fn asked() -> Result<Self> {
        let number = |name: &str, default: u64| match std::env::var(name) {
            Ok(text) => text.parse().with_context(|| format!("{name}={text} is no number")),
            Err(_) => Ok(default),
        };
        let seconds = number("ROLLOUT_SOAK_SECONDS", 40)?;
        Ok(Self {
            rows: number("ROLLOUT_SOAK_ROWS", 1500)?,
            runs: (seconds / 60).clamp(2, 20),
            time: Duration::from_secs(seconds),
            seed: number("ROLLOUT_SOAK_SEED", 7)?,
        })
    }
}

fn worker(fleet: &Fleet) -> WorkerOptions {
    let once = fleet.path("once");
    let engine = format!(
        "kind = \"mock\"\nprocess = true\nslots = 2\nconcurrency = 6\nlatency_ms_min = 5\n\
         latency_ms_max = 50\nseed = 3\nonce_dir = {once:?}\n"
    );
    WorkerOptions { engine, head: "[part]\nlinger_ms = 200\n".into() }
}

fn submit(fleet: &Fleet, run: u64, rows: u64) -> Result<Batch> {
    let name = format!("soak-{run}");
    let mut text = String::new();
    for row in 0..rows {
        let prompt = ExpectedOutcome::of(run, row).prompt(run, row);
        writeln!(text, r#"{{"id":"{name}-{row}","prompt":"{prompt}"}}"#)?;
    }
    let input = fleet.path(&format!("{name}.jsonl"));
    std::fs::write(&input, text)?;
    Batch::submit_file(fleet, &name, input, rows, "[run]\nfailures_max = 1000000\n")
}

/// Kills or pauses one process of the fleet, and brings it back.
struct Chaos {
    random: StdRng,
    done: BTreeMap<&'static str, u32>,
}

impl Chaos {
    fn strike(&mut self, fleet: &mut Fleet) -> Result<()> {
        let worker = WORKERS[self.random.random_range(0..WORKERS.len())];
        let what = match self.random.random_range(0..10) {
            0..3 => {
                let leader = fleet.leader();
                self.member(fleet, &[leader])?;
                "leaders killed"
            }
            3..5 => {
                let names = fleet.member_names();
                let name = names[self.random.random_range(0..names.len())].clone();
                self.member(fleet, &[name])?;
                "members killed"
            }
            5 => {
                self.member(fleet, &fleet.member_names())?;
                "times all members were killed"
            }
            6..9 => {
                fleet.worker_process(worker).kill();
                self.rest(0, 2000);
                let options = self::worker(fleet);
                fleet.start_worker(worker, &options)?;
                "workers killed"
            }
            _ => {
                fleet.worker_process(worker).signal(libc::SIGSTOP)?;
                self.rest(500, 2 * SUSPECT.as_millis() as u64);
                fleet.worker_process(worker).signal(libc::SIGCONT)?;
                "workers stopped for a while"
            }
        };
        *self.done.entry(what).or_default() += 1;
        Ok(())
    }

    fn member(&mut self, fleet: &mut Fleet, names: &[String]) -> Result<()> {
        names.iter().for_each(|name| fleet.member_process(name).kill());
        self.rest(0, 2000);
        names.iter().try_for_each(|name| fleet.start_member(name))
    }

    /// Sets the pace of the chaos; this does not wait for a condition.
    fn rest(&mut self, min_ms: u64, max_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.random.random_range(min_ms..=max_ms)));
    }
}

/// Checks that each row is in exactly one state at any moment.
fn conserved(batch: &Batch, counts: Counts) -> Result<()> {
    let sum = counts.pending + counts.waiting + counts.running + counts.done + counts.failed;
    ensure!(sum == counts.rows, "{}: rows were lost or made: {counts:?}", batch.name);
    Ok(())
}

/// The lines of an output file by the number at the end of their id; a duplicate row is an error.
fn lines(path: &Path) -> Result<BTreeMap<u64, Value>> {
    let mut found = BTreeMap::new();
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    for line in text.lines() {
        let line: Value = serde_json::from_str(line)?;
        let id = line["id"].as_str().context("id")?;
        let row = id.rsplit('-').next().context("row")?.parse()?;
        ensure!(found.insert(row, line).is_none(), "row {row} is twice in {}", path.display());
    }
    Ok(found)
}

/// The rows of a run in that state, as the operator sees them.
fn listed(fleet: &Fleet, run: &str, state: &str) -> Result<BTreeMap<u64, Value>> {
    let list = fleet.ctl_json(&["item", "list", run, "--state", state, "--limit", "0"])?;
    let mut items = BTreeMap::new();
    for item in list["items"].as_array().context("items")? {
        let row = item["row"].as_str().context("row")?.parse()?;
        ensure!(items.insert(row, item.clone()).is_none(), "row {row} is {state} twice");
    }
    Ok(items)
}

/// Checks that the history of a row that failed for good matches its expected outcome.
fn check_failure(fleet: &Fleet, run: &str, row: u64, outcome: ExpectedOutcome) -> Result<()> {
    let item = fleet.ctl_json(&["item", "describe", run, &row.to_string()])?;
    let history = item["history"].as_array().context("history")?;
    let last = history.last().context("it failed")?;
    let of_the_class = history.iter().filter(|tried| tried["class"].as_str() == outcome.class());
    match outcome {
        // An invalid row is not retried.
        ExpectedOutcome::Invalid => {
            ensure!(last["ruling"] == "final" && of_the_class.count() == 1, "{run} {row}: {item}");
        }
        // It was tried alone until it was proven guilty.
        ExpectedOutcome::Poison => {
            ensure!(last["ruling"] == "poison" && of_the_class.count() >= 2, "{run} {row}: {item}");
        }
        ExpectedOutcome::Done | ExpectedOutcome::DoneAfterOne => {
            bail!("{run} {row} is to be done: {item}")
        }
    }
    Ok(())
}

/// Checks that exactly the rows that fail once have failed: the engines remember them, in one set per run.
fn check_retried(fleet: &Fleet, batches: &[Batch]) -> Result<u64> {
    let mut failed: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for entry in std::fs::read_dir(fleet.path("once"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let (run, row) = name.split_once('-').context("RUN-ROW")?;
        failed.entry(run.to_owned()).or_default().insert(row.parse()?);
    }
    let fail_once = |(run, batch): (usize, &Batch)| -> BTreeSet<u64> {
        (0..batch.rows)
            .filter(|row| ExpectedOutcome::of(run as u64, *row) == ExpectedOutcome::DoneAfterOne)
            .collect()
    };
    let expected: BTreeSet<_> = batches.iter().enumerate().map(fail_once).collect();
    let rows = expected.iter().map(BTreeSet::len).sum::<usize>();
    ensure!(failed.into_values().collect::<BTreeSet<_>>() == expected, "others failed once");
    Ok(rows as u64)
}

/// Checks the output of a run and the ledger against the rows' expected outcomes, row by row.
fn check(fleet: &Fleet, batch: &mut Batch, run: u64) -> Result<BTreeMap<ExpectedOutcome, u64>> {
    let status = batch.process().wait(PATIENCE).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(10), "rows failed, so the status is 10: {status}");
    let completions = lines(&batch.output.join("completions.jsonl"))?;
    let errors = lines(&batch.output.join("errors.jsonl"))?;
    let (done, failed) =
        (listed(fleet, &batch.name, "done")?, listed(fleet, &batch.name, "failed")?);
    let mut outcomes = BTreeMap::new();
    for row in 0..batch.rows {
        let outcome = ExpectedOutcome::of(run, row);
        *outcomes.entry(outcome).or_default() += 1;
        let place = format!("{} row {row}, {outcome:?}", batch.name);
        match outcome.class() {
            None => {
                let line = completions.get(&row).with_context(|| format!("{place}: missing"))?;
                let text = format!("MOCK:{}", outcome.prompt(run, row));
                ensure!(line["completion"] == text, "{place}: {line}");
                ensure!(!errors.contains_key(&row), "{place}: in both files");
                ensure!(done.contains_key(&row), "{place}: not done in the ledger");
            }
            Some(class) => {
                let line = errors.get(&row).with_context(|| format!("{place}: missing"))?;
                ensure!(line["error"]["class"] == class, "{place}: {line}");
                ensure!(!completions.contains_key(&row), "{place}: in both files");
                ensure!(failed.contains_key(&row), "{place}: not failed in the ledger");
                check_failure(fleet, &batch.name, row, outcome)?;
            }
        }
    }
    let (in_files, in_ledger) = (completions.len() + errors.len(), done.len() + failed.len());
    ensure!(in_files as u64 == batch.rows && in_ledger as u64 == batch.rows, "rows too many");
    let counts = batch.counts(fleet).context("counts")?;
    conserved(batch, counts)?;
    let ended = (counts.done, counts.failed, counts.rows);
    let expected = (done.len() as u64, failed.len() as u64, batch.rows);
    ensure!(ended == expected, "{}: {counts:?} of {expected:?}", batch.name);
    Ok(outcomes)
}

#[test]
fn every_row_ends_as_its_prompt_says_though_members_and_workers_die_at_random() -> Result<()> {
    let size = Size::asked()?;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    std::fs::create_dir(fleet.path("once"))?;
    for name in WORKERS {
        let options = worker(&fleet);
        fleet.start_worker(name, &options)?;
    }
    let mut chaos = Chaos { random: StdRng::seed_from_u64(size.seed), done: BTreeMap::new() };
    let begun = Instant::now();
    let mut batches: Vec<Batch> = Vec::new();
    while begun.elapsed() < size.time {
        // The runs come one after another, so that there is work from the first kill to the last.
        let due = begun.elapsed().as_secs_f64() / size.time.as_secs_f64() * size.runs as f64;
        while (batches.len() as f64) <= due {
            let run = batches.len() as u64;
            batches.push(submit(&fleet, run, size.rows / size.runs)?);
        }
        chaos.strike(&mut fleet)?;
        chaos.rest(500, 4000);
        for batch in &batches {
            batch.counts(&fleet).map_or(Ok(()), |counts| conserved(batch, counts))?;
        }
    }
    println!("seed {}, {:?}: {:?}", size.seed, begun.elapsed(), chaos.done);
    let mut outcomes: BTreeMap<ExpectedOutcome, u64> = BTreeMap::new();
    for (run, batch) in batches.iter_mut().enumerate() {
        eventually_or_show("a run has its outcomes", PATIENCE, |seen| {
            let counts = batch.counts(&fleet)?;
            *seen = format!("{counts:?}");
            (counts.done + counts.failed == batch.rows).then_some(())
        });
        for (outcome, rows) in check(&fleet, batch, run as u64)? {
            *outcomes.entry(outcome).or_default() += rows;
        }
    }
    let retried = check_retried(&fleet, &batches)?;
    ensure!(
        outcomes.get(&ExpectedOutcome::DoneAfterOne) == Some(&retried),
        "{retried} rows failed once"
    );
    println!("after {:?} every row had ended as it had to: {outcomes:?}", begun.elapsed());
    fleet.verify()?;
    fleet.passed()
}
