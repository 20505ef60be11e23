//! Engines that die of their input: the guilty row is found and fails, and its neighbors finish, whatever else dies
//! meanwhile.

mod flood;

use anyhow::{Context, Result, ensure};
use rollout_tests::{
    Batch, Executions, Fleet, FleetOptions, WorkerOptions, engines, eventually, is_alive,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(120);

/// A worker whose engines are processes of their own.
fn worker(fleet: &Fleet, name: &str, slots: u32, lines: &str) -> WorkerOptions {
    let side = fleet.path(&format!("{name}.side"));
    let engine = format!(
        "kind = \"mock\"\nprocess = true\nslots = {slots}\nconcurrency = 8\nside_file = {side:?}\n\
         latency_ms_min = 5\nlatency_ms_max = 20\n{lines}"
    );
    WorkerOptions { engine, head: "[part]\nlinger_ms = 200\n".into() }
}

/// Submits prompts; these rows kill their engine.
fn submit(fleet: &Fleet, name: &str, rows: u64, bad: &[(u64, &str)]) -> Result<Batch> {
    Batch::submit_asking(fleet, name, rows, bad, "")
}

/// Checks that the run ends with exactly these rows failed, with this class, and all others done.
fn ends_with(
    fleet: &Fleet,
    batch: &mut Batch,
    guilty: &[u64],
    class: &str,
) -> Result<BTreeMap<u64, Value>> {
    let status = batch.process().wait(PATIENCE).with_context(|| fleet.logs())?;
    let expected = if guilty.is_empty() { 0 } else { 10 };
    ensure!(status.code() == Some(expected), "{status}{}", fleet.logs());
    let failed: BTreeMap<u64, Value> = fleet
        .items(&batch.name, "failed")?
        .into_iter()
        .filter_map(|item| Some((item["row"].as_str()?.parse().ok()?, item)))
        .collect();
    let rows: Vec<u64> = failed.keys().copied().collect();
    ensure!(rows == guilty, "failed: {rows:?}, guilty: {guilty:?}{}", fleet.logs());
    for item in failed.values() {
        let history = item["history"].as_array().context("history")?;
        ensure!(history.iter().all(|h| h["class"] == class), "{item}");
    }
    let done = fleet.items(&batch.name, "done")?.len();
    ensure!(done + guilty.len() == batch.rows as usize, "{done} done");
    Ok(failed)
}

/// The rows that had a strike, which is an engine's death with one row alone. They come from events, because the
/// ledger forgets the failure records of done rows.
fn had_a_strike(fleet: &Fleet) -> Result<BTreeSet<u64>> {
    let all = ["events", "-o", "jsonl", "--since", "0", "--from-oldest", "--kind", "failed"];
    let out = fleet.ctl(&all)?;
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    // One death makes an event for each lease that had rows in the engine, all at one index.
    let mut deaths: BTreeMap<u64, Vec<(u64, u64)>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let event = &serde_json::from_str::<Value>(line)?["data"];
        let index = event["index"].as_str().context("index")?.parse()?;
        for range in event["rows"].as_array().context("rows")? {
            let start = range["start"].as_str().context("start")?.parse()?;
            let len = range["len"].as_u64().context("len")?;
            deaths.entry(index).or_default().push((start, len));
        }
    }
    ensure!(!deaths.is_empty(), "no failure is reported");
    let lone = deaths.values().filter_map(|rows| match rows[..] {
        [(row, 1)] => Some(row),
        _ => None,
    });
    Ok(lone.collect())
}

/// The engine's last output for the row's latest failure, from the row's description.
fn last_words(fleet: &Fleet, run: &str, row: u64) -> Result<String> {
    let item = fleet.ctl_json(&["item", "describe", run, &row.to_string()])?;
    let last = item["history"].as_array().and_then(|history| history.last());
    let text = last.with_context(|| format!("no history: {item}"))?["text"].clone();
    let content = text["content"].as_str().with_context(|| format!("no text: {item}"))?;
    Ok(content.to_owned())
}

fn cordoned(fleet: &Fleet, name: &str) -> Option<usize> {
    let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
    let workers = list["workers"].as_array()?;
    let slots = workers.iter().find(|w| w["name"] == name)?["slots"].as_array()?;
    Some(slots.iter().filter(|slot| slot["cordoned"] == true).count())
}

#[test]
fn one_poison_row_among_two_hundred_fails_alone_though_there_is_one_slot_only() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 1, ""))?;
    let mut batch = submit(&fleet, "one", 200, &[(77, "MOCK_CRASH")])?;
    let failed = ends_with(&fleet, &mut batch, &[77], "engine_died")?;
    let history = failed[&77]["history"].as_array().context("history")?.clone();
    let last = history.last().context("no history")?;
    ensure!(last["signal"] == 6 && last["ruling"] == "poison", "{last}");
    let by_id = fleet.ctl_json(&["item", "describe", "one", "one-77"])?;
    ensure!(by_id["row"] == "77" && by_id["state"] == "failed", "{by_id}");
    let unknown = fleet.ctl(&["item", "describe", "one", &"ab".repeat(32)])?;
    let why = String::from_utf8_lossy(&unknown.stderr).into_owned();
    ensure!(unknown.status.code() == Some(4) && why.contains("has no row with the id"), "{why}");
    let said = last_words(&fleet, "one", 77)?;
    ensure!(said.contains("this end was asked for: Abort"), "{said}");
    let shown = fleet.ctl(&["item", "describe", "one", "77"])?;
    ensure!(String::from_utf8_lossy(&shown.stdout).contains("asked for: Abort"), "{shown:?}");
    ensure!(cordoned(&fleet, "w1") == Some(0), "the worker is not to blame");
    ensure!(had_a_strike(&fleet)? == BTreeSet::from([77]), "{:?}", had_a_strike(&fleet)?);
    // A dying engine takes down at most the rows that run beside the guilty one.
    let executions = Executions::read(&[fleet.path("w1.side")])?;
    ensure!(executions.started <= 200 + 8 * 8, "{} executions", executions.started);
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn several_poison_rows_side_by_side_are_all_found_and_a_leader_dies_in_the_middle() -> Result<()> {
    let guilty = [3, 4, 6, 40, 41, 90];
    let asks = ["MOCK_CRASH", "MOCK_KILL", "MOCK_EXIT_7"];
    let bad: Vec<_> = guilty.iter().zip(asks.iter().cycle()).map(|(r, a)| (*r, *a)).collect();
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let mut batch = submit(&fleet, "many", 120, &bad)?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 2, ""))?;
    eventually("rows are suspects", PATIENCE, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let slots = list["workers"][0]["slots"].as_array()?;
        slots.iter().find(|slot| slot["inTrial"] == true).map(|_| ())
    });
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    fleet.leader_other_than(&leader);
    fleet.start_member(&leader)?;
    let failed = ends_with(&fleet, &mut batch, &guilty, "engine_died")?;
    let codes: BTreeSet<&str> =
        failed.values().filter_map(|item| item["history"][0]["code"].as_str()).collect();
    ensure!(codes == BTreeSet::from(["ENGINE_EXIT", "ENGINE_SIGNAL"]), "{codes:?}");
    ensure!(had_a_strike(&fleet)? == BTreeSet::from(guilty), "{:?}", had_a_strike(&fleet)?);
    ensure!(cordoned(&fleet, "w1") == Some(0), "the worker is not to blame");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_engine_killed_from_outside_costs_no_row_and_an_agents_death_ends_its_engines() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let options = worker(&fleet, "w1", 1, "");
    fleet.start_worker("w1", &options)?;
    let mut batch = submit(&fleet, "outside", 1500, &[])?;
    for kill in 1..=3 {
        batch.until(&fleet, "rows run", |c| c.done >= 200 * kill && c.running > 0);
        let agent = fleet.worker_process("w1").pid();
        let engine = eventually("the engine runs", PATIENCE, || engines(agent).first().copied());
        // SAFETY: no memory is involved; the id is that of a child that our worker has not waited for.
        unsafe { libc::kill(engine as i32, libc::SIGKILL) };
    }
    batch.until(&fleet, "it goes on", |c| c.done >= 800);
    let agent = fleet.worker_process("w1").pid();
    let all = eventually("the engine runs", PATIENCE, || {
        Some(engines(agent)).filter(|engines| !engines.is_empty())
    });
    fleet.worker_process("w1").kill();
    eventually("no engine outlives its agent", PATIENCE, || {
        all.iter().all(|engine| !is_alive(*engine)).then_some(())
    });
    fleet.start_worker("w1", &options)?;
    ends_with(&fleet, &mut batch, &[], "")?;
    batch.check_output()?;
    fleet.passed()
}

#[test]
fn a_slot_whose_engine_never_lives_is_cordoned_or_unable_and_another_worker_finishes() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 1, "exit_at_start = 9\n"))?;
    let mut batch = submit(&fleet, "broken", 100, &[])?;
    let problem = eventually("the slot says why it takes no work", PATIENCE, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let slot = list["workers"][0]["slots"][0].clone();
        let why = slot["ineligible"].as_str().or(slot["cordonReason"].as_str())?.to_owned();
        Some(why)
    });
    ensure!(problem.contains('9'), "{problem}");
    fleet.start_worker("w2", &worker(&fleet, "w2", 1, ""))?;
    ends_with(&fleet, &mut batch, &[], "")?;
    ensure!(Executions::read(&[fleet.path("w2.side")])?.started == 100, "each row once");
    fleet.passed()
}

#[test]
fn child_processes_of_an_engine_die_with_the_agent() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    // Like vLLM's core and workers: the engine's own child processes, which the kernel does not notify of their
    // agent's death.
    let (program, pids) = (fleet.path("engine"), fleet.path("pids"));
    let worker_program = rollout_tests::program("rollout-worker")?;
    let script = format!(
        "#!/bin/sh\nsh -c 'trap \"\" HUP INT TERM; echo $$ >>{pids:?}; while :; do sleep 1; done' &\nexec {:?} \"$@\"\n",
        worker_program.get_program()
    );
    std::fs::write(&program, script)?;
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    let options = worker(&fleet, "w1", 2, &format!("program = {program:?}\n"));
    fleet.start_worker("w1", &options)?;
    let mut batch = submit(&fleet, "trees", 400, &[])?;
    batch.until(&fleet, "rows run", |c| c.done >= 20);
    let agent = fleet.worker_process("w1").pid();
    let mut all = engines(agent);
    let started = std::fs::read_to_string(&pids)?;
    let started: Vec<u32> = started.lines().filter_map(|line| line.parse().ok()).collect();
    ensure!(all.len() == 2 && started.len() == 2, "{all:?} started {started:?}");
    all.extend(started);
    ensure!(all.iter().all(|pid| is_alive(*pid)), "{all:?}");
    fleet.worker_process("w1").kill();
    eventually("no process of an engine outlives the agent", PATIENCE, || {
        all.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
    fleet.start_worker("w1", &options)?;
    ends_with(&fleet, &mut batch, &[], "")?;
    fleet.passed()
}

#[test]
fn a_slot_whose_engine_dies_of_every_row_is_cordoned_and_makes_none_poison_if_another_works()
-> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let good = "\n[[engine]]\nkind = \"mock\"\nprocess = true\nconcurrency = 8\n\
                latency_ms_min = 20\nlatency_ms_max = 40\n";
    fleet.start_worker("w1", &worker(&fleet, "w1", 1, &format!("exit_at_row = 3\n{good}")))?;
    let mut batch = submit(&fleet, "beside", 4000, &[])?;
    let slot = eventually("the broken slot is cordoned", PATIENCE, || {
        let list = fleet.ctl_json(&["--timeout", "5s", "worker", "list"]).ok()?;
        let slot = list["workers"][0]["slots"][0].clone();
        (slot["cordoned"] == true).then_some(slot)
    });
    let why = slot["cordonReason"].as_str().context("no reason")?;
    ensure!(why.contains("died 3 times") && why.contains("ENGINE_EXIT"), "{slot}");
    let text = fleet.ctl(&["worker", "list"])?;
    let text = String::from_utf8_lossy(&text.stdout).into_owned();
    ensure!(text.contains("cordoned"), "{text}");
    ends_with(&fleet, &mut batch, &[], "")?;
    batch.check_output()?;
    ensure!(cordoned(&fleet, "w1") == Some(1), "the broken slot alone is to blame");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn rows_that_exhaust_memory_are_tried_in_smaller_company_and_three_times_alone() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 1, ""))?;
    let mut batch = submit(&fleet, "memory", 60, &[(21, "MOCK_OOM_DIE")])?;
    // The store accepts parts but no texts: deaths are reported without the engine's output.
    let objects = fleet.objects_of("memory");
    std::fs::write(objects.join("evidence"), b"where the folder should be")?;
    let failed = ends_with(&fleet, &mut batch, &[21], "out_of_memory")?;
    let item = &failed[&21];
    let strikes = item["history"].as_array().context("history")?;
    ensure!(item["strikes"] == 3, "{item}");
    ensure!(strikes.iter().any(|h| h["code"] == "ENGINE_OUT_OF_MEMORY"), "{item}");
    let item = fleet.ctl_json(&["item", "describe", "memory", "21"])?;
    let without = |h: &Value| h["text"].is_null();
    ensure!(item["history"].as_array().context("history")?.iter().all(without), "{item}");
    ensure!(cordoned(&fleet, "w1") == Some(0));
    fleet.passed()
}

#[test]
fn an_engine_that_hangs_is_killed_and_the_row_that_does_it_is_poison() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 1, "stall_timeout_ms = 1000\n"))?;
    let mut batch = submit(&fleet, "hang", 40, &[(9, "MOCK_HANG")])?;
    let failed = ends_with(&fleet, &mut batch, &[9], "engine_died")?;
    let codes: Vec<_> = failed[&9]["history"].as_array().context("history")?.clone();
    ensure!(codes.iter().any(|h| h["code"] == "ENGINE_STALLED"), "{codes:?}");
    let said = last_words(&fleet, "hang", 9)?;
    ensure!(said.contains("row 9 hangs"), "{said}");
    fleet.passed()
}

#[test]
fn an_engine_that_hangs_with_unwanted_rows_is_killed_and_costs_the_next_run_nothing() -> Result<()>
{
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &worker(&fleet, "w1", 1, "stall_timeout_ms = 6000\n"))?;
    // The row's timeout ends long before the engine's.
    let lines = "[run]\nattempt_timeout_ms = 500\nattempts_max = 1\n";
    let mut batch = Batch::submit_asking(&fleet, "frozen", 1, &[(0, "MOCK_FREEZE")], lines)?;
    let status = batch.process().wait(PATIENCE).with_context(|| fleet.logs())?;
    ensure!(status.code() == Some(10), "{status}{}", fleet.logs());
    let item = fleet.ctl_json(&["item", "describe", "frozen", "0"])?;
    let codes: Vec<&Value> =
        item["history"].as_array().context("history")?.iter().map(|h| &h["code"]).collect();
    ensure!(codes == ["ATTEMPT_TIMEOUT"], "{item}");
    // These rows come while the engine hangs, and wait for the next engine. Their timeout, which would pass several
    // times meanwhile, starts only when an engine gets them.
    let lines = "[run]\nattempt_timeout_ms = 2000\nattempts_max = 1\n";
    let mut next = Batch::submit_asking(&fleet, "next", 40, &[], lines)?;
    ends_with(&fleet, &mut next, &[], "")?;
    let log = std::fs::read_to_string(fleet.path("worker-w1.log"))?;
    let killed =
        "made no progress for 6000 ms with 0 rows started and 1 rows that were being cancelled";
    ensure!(log.contains(killed), "{log}");
    let executions = Executions::read(&[fleet.path("w1.side")])?;
    ensure!(executions.started == 41, "{} executions", executions.started);
    fleet.passed()
}
