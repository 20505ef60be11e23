//! Engines that die, alone and with the leader, cost no row and change none.

use anyhow::{Context, Result, ensure};
use rollout_tests::{Batch, Fleet, FleetOptions, eventually, is_alive};
use serde_json::json;

use super::setup::{
    Engine, LOADING, completions, core_of, descendants, engine_of, is_named, reference, rows,
    tiny_model,
};

const MAX_TOKENS: u32 = 24;

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
    let at_death = batch.counts(&fleet).context("nobody can say")?;
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
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("harm.jsonl");
    std::fs::write(&input, rows(2000))?;
    let inject = fleet.path("inject");
    std::fs::create_dir(&inject)?;
    let engine = Engine { inject: Some(&inject), ..Engine::new(&model, 8) };
    fleet.start_worker("w1", &engine.worker(""))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\nignore_eos = true\nmax_tokens = 24\n";
    let mut batch = Batch::submit_file(&fleet, "harm", input, 2000, lines)?;
    let log = fleet.path("worker-w1.log");
    for (harm, said) in [
        ("oom", "memory ran out, fewer rows at once"),
        ("abort", "was ended by signal 6"),
        ("hang", "made no progress for 60000 ms"),
    ] {
        let before = batch.counts(&fleet).map_or(0, |c| c.done);
        // Rows end again, so an engine is at work.
        eventually(&format!("rows end before {harm}"), LOADING, || {
            batch.counts(&fleet).filter(|c| c.done > before)
        });
        std::fs::write(inject.join(harm), "")?;
        eventually(&format!("the worker says: {said}"), LOADING, || {
            std::fs::read_to_string(&log).ok().filter(|text| text.contains(said))
        });
        let after = batch.counts(&fleet).context("nobody can say")?;
        ensure!(after.done < 2000, "the run was over before {harm}: {after:?}");
    }
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    ensure!(completions(&batch)?.len() == 2000, "rows are missing");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_core_in_a_process_of_its_own_dies_of_what_it_died_of() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("apart.jsonl");
    std::fs::write(&input, rows(1500))?;
    let inject = fleet.path("inject");
    std::fs::create_dir(&inject)?;
    let engine = Engine { inject: Some(&inject), core_apart: true, ..Engine::new(&model, 8) };
    fleet.start_worker("w1", &engine.worker(""))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\nignore_eos = true\nmax_tokens = 24\n";
    let mut batch = Batch::submit_file(&fleet, "apart", input, 1500, lines)?;
    let log = fleet.path("worker-w1.log");
    let said = |what: &str| {
        eventually(&format!("the worker says: {what}"), LOADING, || {
            std::fs::read_to_string(&log).ok().filter(|text| text.contains(what))
        })
    };
    let more = |fleet: &Fleet, batch: &Batch, before: u64| {
        eventually("rows end", LOADING, || batch.counts(fleet).filter(|c| c.done > before)).done
    };
    let done = more(&fleet, &batch, 0);
    let host = engine_of(&mut fleet, "w1").context("w1 has no engine")?;
    let core = core_of(host).context("the core is no process of its own")?;
    // SAFETY: a signal to a process that this test's worker started.
    unsafe { libc::kill(core, libc::SIGKILL) };
    said("was ended by signal 9");
    more(&fleet, &batch, done);
    // The front end hears only that the core is dead; the class of the exception is told from inside.
    std::fs::write(inject.join("oom"), "")?;
    said("memory ran out, fewer rows at once");
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    ensure!(completions(&batch)?.len() == 1500, "rows are missing");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_engine_over_two_processes_that_loses_one_costs_no_row() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("halves.jsonl");
    std::fs::write(&input, rows(600))?;
    let lines = "tensor_parallel_size = 2".to_owned();
    let engine = Engine { lines, core_apart: true, ..Engine::new(&model, 8) };
    fleet.start_worker("w1", &engine.worker(""))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\nignore_eos = true\nmax_tokens = 24\n";
    let mut batch = Batch::submit_file(&fleet, "halves", input, 600, lines)?;
    let counted = eventually("rows end", LOADING, || batch.counts(&fleet).filter(|c| c.done >= 20));
    ensure!(counted.done < 500, "the run is nearly over: {counted:?}");
    let host = engine_of(&mut fleet, "w1").context("w1 has no engine")?;
    let all = descendants(host);
    let halves: Vec<i32> = all.into_iter().filter(|pid| is_named(*pid, "Worker_TP")).collect();
    ensure!(halves.len() == 2, "the model is in {} processes", halves.len());
    // SAFETY: a signal to a process that this test's worker started.
    unsafe { libc::kill(halves[1], libc::SIGKILL) };
    let log = fleet.path("worker-w1.log");
    eventually("the worker says what the engine died of", LOADING, || {
        std::fs::read_to_string(&log).ok().filter(|text| text.contains("was ended by signal 9"))
    });
    // The half that lives is of an engine that is dead.
    eventually("no half outlives the other", LOADING, || {
        halves.iter().all(|pid| !is_alive(*pid as u32)).then_some(())
    });
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    ensure!(completions(&batch)?.len() == 600, "rows are missing");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn memory_that_runs_out_in_the_half_that_vllm_does_not_listen_to_is_named() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("half.jsonl");
    std::fs::write(&input, rows(600))?;
    let inject = fleet.path("inject");
    std::fs::create_dir(&inject)?;
    let lines = "tensor_parallel_size = 2".to_owned();
    let engine =
        Engine { lines, core_apart: true, inject: Some(&inject), ..Engine::new(&model, 8) };
    fleet.start_worker("w1", &engine.worker(""))?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\nignore_eos = true\nmax_tokens = 24\n";
    let mut batch = Batch::submit_file(&fleet, "half", input, 600, lines)?;
    let counted = eventually("rows end", LOADING, || batch.counts(&fleet).filter(|c| c.done >= 20));
    ensure!(counted.done < 500, "the run is nearly over: {counted:?}");
    std::fs::write(inject.join("oom-1"), "")?;
    let log = fleet.path("worker-w1.log");
    let text = eventually("the worker says that memory ran out", LOADING, || {
        let text = std::fs::read_to_string(&log).ok()?;
        text.contains("memory ran out, fewer rows at once").then_some(text)
    });
    ensure!(!text.contains("made no progress"), "it took a hang to see it");
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    ensure!(completions(&batch)?.len() == 600, "rows are missing");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn no_process_of_vllms_outlives_the_agent() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let model = tiny_model(&fleet)?;
    let input = fleet.path("orphans.jsonl");
    std::fs::write(&input, rows(600))?;
    let options = Engine { core_apart: true, ..Engine::new(&model, 8) }.worker("");
    fleet.start_worker("w1", &options)?;
    let lines = "[model]\nuri = \"tiny\"\n[sampling]\nignore_eos = true\nmax_tokens = 24\n";
    let mut batch = Batch::submit_file(&fleet, "orphans", input, 600, lines)?;
    eventually("rows end", LOADING, || batch.counts(&fleet).filter(|c| c.done >= 20));
    let host = engine_of(&mut fleet, "w1").context("w1 has no engine")?;
    let core = core_of(host).context("the core is no process of its own")?;
    let mut all = descendants(host);
    ensure!(all.contains(&core), "{all:?} lack the core, {core}");
    all.push(host);
    fleet.worker_process("w1").kill();
    eventually("no process of vLLM's outlives the agent", LOADING, || {
        all.iter().all(|pid| !is_alive(*pid as u32)).then_some(())
    });
    fleet.start_worker("w1", &options)?;
    let status = batch.process().wait(LOADING).with_context(|| fleet.logs())?;
    ensure!(status.success(), "{status}{}", fleet.logs());
    ensure!(completions(&batch)?.len() == 600, "rows are missing");
    fleet.verify()?;
    fleet.passed()
}
