//! Engine deaths, alone and together with the leader's, lose no row and change none.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Counts, Fleet, FleetOptions, WorkerOptions, eventually, is_alive};
use serde_json::json;

use super::setup::{
    Engine, LOADING, completions, core_of, descendants, engine_of, is_named, reference, rows,
    tiny_model,
};

const MAX_TOKENS: u32 = 24;

/// How an engine differs from an unharmed engine in a single process.
#[derive(Default)]
struct EngineSetup {
    /// Files in the scene's `inject` inject faults inside.
    injected: bool,
    core_apart: bool,
    /// Further lines of the engine's block.
    lines: &'static str,
}

/// One worker, `w1`, whose engine takes 8 rows at a time, and a run of completions that all have the same length.
struct Scene {
    batch: Batch,
    fleet: Fleet,
    rows: u64,
    worker: WorkerOptions,
    inject: PathBuf,
}

impl Scene {
    fn start(run: &str, count: u64, engine_setup: EngineSetup) -> Result<Self> {
        let mut fleet = Fleet::start(FleetOptions::default())?;
        let model = tiny_model(&fleet)?;
        let input = fleet.path(&format!("{run}.jsonl"));
        std::fs::write(&input, rows(count))?;
        let inject = fleet.path("inject");
        std::fs::create_dir(&inject)?;
        let EngineSetup { injected, core_apart, lines } = engine_setup;
        let (lines, injected) = (lines.to_owned(), injected.then_some(&*inject));
        let engine = Engine { lines, core_apart, inject: injected, ..Engine::new(&model, 8) };
        let worker = engine.worker("");
        fleet.start_worker("w1", &worker)?;
        let lines = "[model]\nuri = \"tiny\"\n[sampling]\nignore_eos = true\nmax_tokens = 24\n";
        let batch = Batch::submit_file(&fleet, run, input, count, lines)?;
        Ok(Self { batch, fleet, rows: count, worker, inject })
    }

    /// Injects a fault inside the engine.
    fn harm(&self, file: &str) -> Result<()> {
        Ok(std::fs::write(self.inject.join(file), "")?)
    }

    /// Waits until at least this many rows have ended.
    fn done(&self, least: u64) -> Counts {
        eventually("rows end", LOADING, || {
            self.batch.counts(&self.fleet).filter(|c| c.done >= least)
        })
    }

    /// Waits until the worker's log contains this, and returns the log.
    fn logged(&self, what: &str) -> String {
        let log = self.fleet.path("worker-w1.log");
        eventually(&format!("the worker says: {what}"), LOADING, || {
            std::fs::read_to_string(&log).ok().filter(|text| text.contains(what))
        })
    }

    fn engine(&mut self) -> Result<i32> {
        engine_of(&mut self.fleet, "w1").context("w1 has no engine")
    }

    /// Checks that every row is completed in the end.
    fn finish(self) -> Result<()> {
        let Self { fleet, mut batch, rows, .. } = self;
        let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
        ensure!(status.success(), "{status}{}", fleet.logs());
        ensure!(completions(&batch)?.len() as u64 == rows, "rows are missing");
        fleet.verify()?;
        fleet.passed()
    }
}

#[test]
fn greedy_completions_are_vllms_own_through_the_death_of_an_engine_and_of_the_leader() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("greedy.jsonl");
    std::fs::write(&input, rows(500))?;
    let options = json!({ "sampling": {"temperature": 0, "max_tokens": MAX_TOKENS} });
    let reference = reference("generate", &model, &input, &options)?;
    ensure!(reference.len() == 500, "the reference has {} rows", reference.len());
    for name in ["w1", "w2"] {
        fleet.start_worker(name, &Engine::new(&model, 16).worker(""))?;
    }
    for name in ["w1", "w2"] {
        let log = fleet.path(&format!("worker-{name}.log"));
        eventually("its engine is loaded", LOADING, || {
            std::fs::read_to_string(&log).ok().filter(|text| text.contains("the engine runs"))
        });
    }
    let lines = format!(
        "[model]\nuri = \"tiny\"\n[sampling]\ntemperature = 0.0\nmax_tokens = {MAX_TOKENS}\n"
    );
    let mut batch = Batch::submit_file(&fleet, "greedy", input, 500, &lines)?;
    eventually("both work", LOADING, || {
        let all = ["w1", "w2"].map(|name| fleet.rows_done_by(name));
        all.iter().all(|done| done.is_some_and(|rows| rows >= 10)).then_some(())
    });
    let engine = eventually("w1 has an engine", LOADING, || engine_of(&mut fleet, "w1"));
    let at_death = batch.counts(&fleet).context("no member reports the counts")?;
    ensure!(at_death.done < 400, "the run is nearly over: {at_death:?}");
    // SAFETY: a signal to a process that this test's worker started.
    unsafe { libc::kill(engine, libc::SIGKILL) };
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    let log = std::fs::read_to_string(fleet.path("worker-w1.log"))?;
    ensure!(log.contains("was ended by signal 9"), "no engine died: {log}");
    let got = completions(&batch)?;
    ensure!(got.len() == 500, "{} rows", got.len());
    for (number, (got, expected)) in got.iter().zip(&reference).enumerate() {
        ensure!(got["completion"] == expected["texts"][0], "row {number}: {got} for {expected}");
        ensure!(got["completion_tokens"] == expected["tokens"], "row {number}: {got}");
        ensure!(got["finish_reason"] == expected["reason"], "row {number}: {got}");
    }
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_engine_that_runs_out_of_memory_aborts_or_hangs_inside_costs_no_row() -> Result<()> {
    let scene =
        Scene::start("harm", 2000, EngineSetup { injected: true, ..EngineSetup::default() })?;
    for (harm, said) in [
        ("oom", "engine out of memory; reducing concurrency"),
        ("abort", "was ended by signal 6"),
        ("hang", "made no progress for 60000 ms"),
    ] {
        // Rows end again, so an engine is at work.
        let before = scene.batch.counts(&scene.fleet).map_or(0, |c| c.done);
        scene.done(before + 1);
        scene.harm(harm)?;
        scene.logged(said);
        let after = scene.batch.counts(&scene.fleet).context("no member reports the counts")?;
        ensure!(after.done < 2000, "the run was over before {harm}: {after:?}");
    }
    scene.finish()
}

#[test]
fn a_core_in_its_own_process_reports_its_own_cause_of_death() -> Result<()> {
    let engine_setup = EngineSetup { injected: true, core_apart: true, ..EngineSetup::default() };
    let mut scene = Scene::start("apart", 1500, engine_setup)?;
    let done = scene.done(1).done;
    let core = core_of(scene.engine()?).context("the core is no process of its own")?;
    // SAFETY: a signal to a process that this test's worker started.
    unsafe { libc::kill(core, libc::SIGKILL) };
    scene.logged("was ended by signal 9");
    scene.done(done + 1);
    // The front end learns only that the core is dead; the core itself reports the class of the exception.
    scene.harm("oom")?;
    scene.logged("engine out of memory; reducing concurrency");
    scene.finish()
}

#[test]
fn an_engine_over_two_processes_that_loses_one_costs_no_row() -> Result<()> {
    let engine_setup =
        EngineSetup { core_apart: true, lines: "tensor_parallel_size = 2", injected: false };
    let mut scene = Scene::start("halves", 600, engine_setup)?;
    let counted = scene.done(20);
    ensure!(counted.done < 500, "the run is nearly over: {counted:?}");
    let all = descendants(scene.engine()?);
    let halves: Vec<i32> = all.into_iter().filter(|pid| is_named(*pid, "Worker_TP")).collect();
    ensure!(halves.len() == 2, "the model is in {} processes", halves.len());
    // SAFETY: a signal to a process that this test's worker started.
    unsafe { libc::kill(halves[1], libc::SIGKILL) };
    scene.logged("was ended by signal 9");
    // The surviving half belongs to a dead engine.
    eventually("no half outlives the other", LOADING, || {
        halves.iter().all(|pid| !is_alive(*pid as u32)).then_some(())
    });
    scene.finish()
}

#[test]
fn memory_that_runs_out_in_the_half_that_vllm_does_not_listen_to_is_named() -> Result<()> {
    let engine_setup =
        EngineSetup { core_apart: true, lines: "tensor_parallel_size = 2", injected: true };
    let scene = Scene::start("half", 600, engine_setup)?;
    let counted = scene.done(20);
    ensure!(counted.done < 500, "the run is nearly over: {counted:?}");
    scene.harm("oom-1")?;
    let text = scene.logged("engine out of memory; reducing concurrency");
    ensure!(!text.contains("made no progress"), "it took a hang to see it");
    scene.finish()
}

#[test]
fn no_process_of_vllms_outlives_the_agent() -> Result<()> {
    let engine_setup = EngineSetup { core_apart: true, ..EngineSetup::default() };
    let mut scene = Scene::start("orphans", 600, engine_setup)?;
    scene.done(20);
    let host = scene.engine()?;
    let core = core_of(host).context("the core is no process of its own")?;
    let mut all = descendants(host);
    ensure!(all.contains(&core), "{all:?} lack the core, {core}");
    all.push(host);
    scene.fleet.worker_process("w1").kill();
    eventually("no process of vLLM's outlives the agent", LOADING, || {
        all.iter().all(|pid| !is_alive(*pid as u32)).then_some(())
    });
    scene.fleet.start_worker("w1", &scene.worker)?;
    scene.finish()
}
