//! The Python package with the plain interpreter: trainers, workers at barriers, and batch runs, through its
//! extension module. Processes share only the cluster and the object store; trainers and members are killed.

use anyhow::{Context, Result, ensure};
use rollout_proto::{Client, ClientConfig, services, v1};
use rollout_tests::{Fleet, FleetOptions, Process, S3, WorkerOptions, eventually_or_show, python};
use rollout_training::restore_rank;
use serde_json::Value;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(240);
const HAS_TO_RECOVER: i32 = 17;
/// rolloutctl's exit status.
const NOT_FOUND: i32 = 4;

fn start(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Process> {
    python(fleet, name, "trainer.py", args)
}

fn ends(mut process: Process, status: i32) -> Result<String> {
    let ended = process.wait(PATIENCE)?;
    let text = std::fs::read_to_string(&process.log)?;
    ensure!(ended.code() == Some(status), "{ended}: {text}");
    Ok(text)
}

fn until_it_says(process: &Process, begin: &str) {
    eventually_or_show(begin, PATIENCE, |seen| {
        *seen = process.log_tail();
        seen.lines().any(|line| line.starts_with(begin)).then_some(())
    });
}

/// Waits for a complete checkpoint of that step or a later one.
fn until_step(fleet: &Fleet, job: &str, at_least: u64, trainers: &[&Process]) {
    eventually_or_show(&format!("a checkpoint of step {at_least}"), PATIENCE, |seen| {
        *seen = trainers.iter().map(|p| p.log_tail() + "\n").collect();
        let list = fleet.ctl_json(&["--timeout", "5s", "checkpoint", "list", job]).ok()?;
        let complete = list["checkpoints"].as_array()?.iter().filter(|c| c["state"] == "complete");
        let steps = complete.filter_map(|c| c["step"].as_str()?.parse::<u64>().ok());
        steps.max().filter(|step| *step >= at_least)
    });
}

async fn latest(fleet: &Fleet, job: &str) -> Result<v1::Checkpoint> {
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    let client = Client::new(ClientConfig::new(endpoints, fleet.security("client", "user")))?;
    let job = Some(v1::JobName { namespace: String::new(), job: job.into() });
    let request = v1::LatestCheckpointRequest { job };
    let answer = client
        .with_leader("look for a checkpoint", |channel| {
            let request = request.clone();
            async move { services::checkpoints(channel).latest_checkpoint(request).await }
        })
        .await?;
    answer.checkpoint.context("a complete checkpoint")
}

/// The samples in a job's last checkpoint, over all ranks, in order.
async fn samples(fleet: &Fleet, job: &str) -> Result<Vec<u64>> {
    let checkpoint = latest(fleet, job).await?;
    let mut all = Vec::new();
    for rank in 0..checkpoint.ranks.len() {
        let restored = restore_rank(&checkpoint, rank).await?;
        let state: Value = serde_json::from_slice(&restored.files[0].1)?;
        let samples = state["samples"].as_array().context("samples")?;
        all.extend(samples.iter().filter_map(Value::as_u64));
    }
    all.sort_unstable();
    Ok(all)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_sample_is_in_once_though_a_trainer_and_the_leader_die() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let said = ends(start(&fleet, "register", &["register", "300"])?, 0)?;
    ensure!(said.contains("refused: RO-"), "{said}");
    let round = |fleet: &Fleet, name: &str, world: &str, round: &str, steps: &str, pause: &str| {
        start(
            fleet,
            &format!("{name}-{round}"),
            &["train", "sft", name, world, round, steps, pause],
        )
    };
    let first = round(&fleet, "t0", "t0,t1", "1", "200", "0.15")?;
    let mut dies = round(&fleet, "t1", "t0,t1", "1", "200", "0.15")?;
    until_step(&fleet, "sft", 8, &[&first, &dies]);
    // The leader dies halfway: clients notice only a pause.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    until_step(&fleet, "sft", 16, &[&first, &dies]);
    fleet.start_member(&leader)?;
    dies.kill();
    // The world shrinks to one old trainer and one new one; then t1 is back, in a world of three.
    let second = [
        round(&fleet, "t0", "t0,t2", "2", "200", "0.1")?,
        round(&fleet, "t2", "t0,t2", "2", "200", "0.1")?,
    ];
    let said = ends(first, HAS_TO_RECOVER)?;
    ensure!(said.contains("has to recover: RO-6103"), "{said}");
    until_step(&fleet, "sft", 28, &[&second[0], &second[1]]);
    let third = ["t1", "t0", "t2"].map(|name| round(&fleet, name, "t1,t0,t2", "3", "200", "0"));
    for before in second {
        ends(before, HAS_TO_RECOVER)?;
    }
    for trainer in third {
        ends(trainer?, 0)?;
    }
    let all = samples(&fleet, "sft").await?;
    ensure!(all == (0..300).collect::<Vec<u64>>(), "{all:?}");
    let sealed =
        fleet.ctl_json(&["shard", "describe", "sft", "--dataset", "pile", "--epoch", "0"])?;
    ensure!(sealed["pass"]["sealed"] == 30, "{sealed}");
    fleet.verify()?;
    fleet.passed()
}

/// Flips the last bit of a file, and returns its original bytes.
fn damage(path: &std::path::Path) -> Result<Vec<u8>> {
    let good = std::fs::read(path)?;
    let mut bad = good.clone();
    *bad.last_mut().context("a byte")? ^= 1;
    std::fs::write(path, bad)?;
    Ok(good)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_under_a_new_rendezvous_id_goes_on_with_its_lineage_and_reads_each_sample_once()
-> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(start(&fleet, "register", &["register", "100"])?, 0)?;
    let said = ends(start(&fleet, "restarted", &["restarted", "sft", "100"])?, 0)?;
    ensure!(said.contains("second-id 1 begins at step 4"), "{said}");
    let all = samples(&fleet, "sft").await?;
    ensure!(all == (0..100).collect::<Vec<u64>>(), "{all:?}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_url_alone_makes_an_orchestrator_whose_workers_get_each_shard_once() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(start(&fleet, "register", &["register", "80"])?, 0)?;
    let said = ends(start(&fleet, "alone", &["alone", "80"])?, 0)?;
    ensure!(said.contains("8 shards"), "{said}");
    let seen =
        fleet.ctl_json(&["shard", "describe", "default", "--dataset", "pile", "--epoch", "0"])?;
    ensure!(seen["pass"]["finished"] == 8, "{seen}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_signals_handler_may_call_the_package_while_a_call_waits() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(python(&fleet, "signals", "signals.py", &[])?, 0)?;
    fleet.passed()
}

#[test]
fn a_recovery_and_a_release_that_were_not_answered_are_repeated() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(start(&fleet, "register", &["register", "40"])?, 0)?;
    ends(start(&fleet, "unheard", &["unheard", "sft"])?, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_different_save_for_the_same_step_is_refused_with_a_message() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(start(&fleet, "twice", &["twice", "sft"])?, 0)?;
    ensure!(fleet.ctl(&["checkpoint", "verify", "sft"])?.status.success(), "it is whole");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_rank_that_the_checkpoint_has_nothing_of_is_not_taken_for_damage() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(start(&fleet, "grown", &["grown", "sft"])?, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_part_that_comes_when_its_checkpoint_is_forgotten_is_no_error() -> Result<()> {
    let s3 = S3::start()?;
    let fleet = Fleet::start(FleetOptions { s3: Some(s3.clone()), ..FleetOptions::default() })?;
    s3.hold("t1", true);
    let ranks = ["t0", "t1"].map(|name| start(&fleet, name, &["given_up", "sft", name]));
    let ranks = ranks.into_iter().collect::<Result<Vec<_>>>()?;
    ranks.iter().for_each(|rank| until_it_says(rank, "saves checkpoint 1"));
    ensure!(fleet.ctl(&["checkpoint", "abort", "sft", "1"])?.status.success(), "it is open");
    eventually_or_show("nobody knows the checkpoint", PATIENCE, |seen| {
        let found = fleet.ctl(&["--timeout", "5s", "checkpoint", "describe", "sft", "1"]).ok()?;
        *seen = String::from_utf8_lossy(&found.stderr).into_owned();
        (found.status.code() == Some(NOT_FOUND)).then_some(())
    });
    s3.hold("t1", false);
    for rank in ranks {
        ends(rank, 0)?;
    }
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_checkpoint_is_not_begun_from_and_an_earlier_one_is() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(start(&fleet, "register", &["register", "60"])?, 0)?;
    ends(start(&fleet, "whole", &["train", "sft", "t0", "t0", "1", "28", "0"])?, 0)?;
    ensure!(fleet.ctl(&["checkpoint", "verify", "sft"])?.status.success(), "it is whole");
    let checkpoint = latest(&fleet, "sft").await?;
    let folder = fleet.path("store").join(&checkpoint.prefix);
    let objects: Vec<_> = std::fs::read_dir(&folder)?.collect::<Result<_, _>>()?;
    ensure!(objects.len() == 2, "the manifest, and what it names: {objects:?}");
    for object in &objects {
        let good = damage(&object.path())?;
        let verified = fleet.ctl(&["checkpoint", "verify", "sft"])?;
        let said = String::from_utf8_lossy(&verified.stderr).into_owned();
        let name = object.file_name().to_string_lossy().into_owned();
        ensure!(!verified.status.success() && said.contains(&name), "{said}");
        std::fs::write(object.path(), good)?;
    }
    // The manifest is intact, and was read back when it was reported. The objects that it names are not.
    let manifest = checkpoint.ranks[0].manifest.as_ref().context("a manifest")?;
    let manifest: String = manifest.digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let named = objects.iter().find(|object| object.file_name() != *manifest.as_str());
    damage(&named.context("what the manifest names")?.path())?;
    let said = ends(start(&fleet, "damaged", &["damaged", "sft", "t0", "32"])?, 0)?;
    let step = said.lines().find_map(|line| line.strip_prefix("begins at step "));
    let step: u64 = step.context("where it begins")?.parse()?;
    ensure!(said.contains("refused:") && step > 0 && step < checkpoint.step, "{said}");
    let all = samples(&fleet, "sft").await?;
    ensure!(all == (0..60).collect::<Vec<u64>>(), "{all:?}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn waiting_holds_no_lock_and_ends_with_ctrl_c_or_at_its_time_out() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(start(&fleet, "register", &["register", "30"])?, 0)?;
    let waits = start(&fleet, "waits", &["waits", "sft"])?;
    until_it_says(&waits, "waits");
    waits.signal(libc::SIGINT)?;
    until_it_says(&waits, "interrupted");
    let said = ends(waits, 0)?;
    for line in ["left behind: RO-6103", "did not wait for ever"] {
        ensure!(said.contains(line), "{line}: {said}");
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_wait_for_several_keys_that_is_too_long_names_those_that_were_not_seen() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ends(python(&fleet, "told", "stores.py", &["told"])?, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn an_orphan_that_tries_for_ever_never_reaches_the_store_of_the_next_round() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let stop = fleet.path("stop");
    let stops = stop.display().to_string();
    let rounds = python(&fleet, "rounds", "orphan.py", &["rounds", "0", &stops])?;
    until_it_says(&rounds, "closed");
    let said = rounds.log_tail();
    let first =
        said.lines().find_map(|line| line.strip_prefix("first at ")).context("the first")?;
    let (host, port) = first.split_once(' ').context("host and port")?;
    let orphan = python(&fleet, "orphan", "orphan.py", &["retries", host, port, &stops])?;
    until_it_says(&rounds, "second at");
    // The next round serves at the same port while it tries.
    let tries = || {
        let said = orphan.log_tail();
        said.lines().filter_map(|line| line.strip_prefix("tried ")?.parse::<u64>().ok()).max()
    };
    let enough = tries().unwrap_or(0) + 50;
    eventually_or_show("it tries on", PATIENCE, |seen| {
        *seen = orphan.log_tail();
        tries().filter(|tries| *tries >= enough)
    });
    std::fs::write(&stop, "")?;
    ends(orphan, 0)?;
    ends(rounds, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_finished_member_closes_and_leaves_and_the_others_keep_their_round() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    for scenario in ["closes", "goes"] {
        ends(python(&fleet, scenario, "rendezvous.py", &[scenario])?, 0)?;
    }
    fleet.verify()?;
    fleet.passed()
}

fn barriers(fleet: &Fleet, name: &str, args: &[&str]) -> Result<Process> {
    let context = fleet.path("user.toml").display().to_string();
    python(fleet, name, "barriers.py", &[&[args[0], &context], &args[1..]].concat())
}

#[test]
fn a_barrier_opens_once_all_are_there_though_the_leader_is_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let go = fleet.path("go");
    let names = ["a", "b", "c"];
    let start = |name: &&str| {
        let others: Vec<_> = names.iter().filter(|other| *other != name).copied().collect();
        let args = ["passes", name, &others.join(","), &go.display().to_string()];
        barriers(&fleet, &format!("barrier-{name}"), &args)
    };
    let all = names.iter().map(start).collect::<Result<Vec<_>>>()?;
    all.iter().for_each(|one| until_it_says(one, "registered"));
    all[..2].iter().for_each(|one| until_it_says(one, "arrives"));
    let killed = fleet.leader();
    fleet.member_process(&killed).kill();
    fleet.leader_other_than(&killed);
    for one in &all {
        ensure!(!one.log_tail().contains("passed"), "no worker passes before all are there");
    }
    std::fs::write(&go, "")?;
    for one in all {
        ends(one, 0)?;
    }
    fleet.start_member(&killed)?;
    fleet.verify()?;
    fleet.passed()
}

/// The number of the barrier's latest generation, and how many have arrived.
fn arrived(fleet: &Fleet) -> Option<(u64, u64)> {
    let listed = fleet.ctl_json(&["--timeout", "5s", "barrier", "list", "barriers"]).ok()?;
    let latest = listed["barriers"].as_array()?.first()?.clone();
    (latest["state"] == "waiting").then_some(())?;
    Some((number(&latest["generation"])?, number(&latest["arrived"])?))
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

#[test]
fn a_job_that_is_started_again_waits_for_all_at_its_barriers_again() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let names = ["a", "b", "c"];
    for run in 1..=3 {
        let go = fleet.path(&format!("go-{run}"));
        let start = |name: &&str| {
            let others: Vec<_> = names.iter().filter(|other| *other != name).copied().collect();
            let args = ["passes", name, &others.join(","), &go.display().to_string()];
            barriers(&fleet, &format!("run-{run}-{name}"), &args)
        };
        let all = names.iter().map(start).collect::<Result<Vec<_>>>()?;
        // Each run passes twice.
        let first = 2 * run - 1;
        eventually_or_show("two have arrived, and wait", PATIENCE, |seen| {
            let said: String = all.iter().map(|one| one.log_tail() + "\n").collect();
            assert!(!said.contains("passed"), "the third is not there yet: {said}");
            let now = arrived(&fleet);
            *seen = format!("{now:?}: {said}");
            (now == Some((first, 2))).then_some(())
        });
        std::fs::write(&go, "")?;
        for one in all {
            ends(one, 0)?;
        }
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_process_that_is_started_again_comes_to_the_barrier_that_the_other_waits_at() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let other = barriers(&fleet, "b", &["passes_so_often", "b", "a", "3", "leaves"])?;
    let mut dies = barriers(&fleet, "a", &["passes_so_often", "a", "b", "1", "stays"])?;
    until_it_says(&dies, "passed 1");
    dies.kill();
    eventually_or_show("the other waits", PATIENCE, |seen| {
        *seen = format!("{:?}", arrived(&fleet));
        (arrived(&fleet) == Some((2, 1))).then_some(())
    });
    let again = barriers(&fleet, "a-again", &["passes_so_often", "a", "b", "2", "leaves"])?;
    ends(again, 0)?;
    ends(other, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_worker_refused_or_interrupted_at_a_barrier_returns_to_the_same_generation() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let go = fleet.path("go").display().to_string();
    std::fs::write(&go, "")?;
    // Both of these wait with the right definition of the barrier; the third has a wrong one.
    let waits = ["a", "b"].map(|name| {
        let others = if name == "a" { "b,c" } else { "a,c" };
        barriers(&fleet, name, &["passes", name, others, &go])
    });
    let errs = barriers(&fleet, "c", &["errs", "c", "a,b"])?;
    ends(errs, 0)?;
    for one in waits {
        ends(one?, 0)?;
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_worker_interrupted_at_a_barrier_passes_it_with_the_other() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let interrupted = barriers(&fleet, "a", &["interrupted", "a", "b"])?;
    until_it_says(&interrupted, "interrupted");
    let other = barriers(&fleet, "b", &["passes_so_often", "b", "a", "1", "leaves"])?;
    ends(interrupted, 0)?;
    ends(other, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_worker_that_was_given_up_learns_at_the_barrier_that_it_is_lost() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let go = fleet.path("go");
    let late = barriers(&fleet, "late", &["comes_late", "late", &go.display().to_string()])?;
    until_it_says(&late, "registered");
    late.signal(libc::SIGSTOP)?;
    eventually_or_show("it is lost", PATIENCE, |seen| {
        let described = fleet.ctl_json(&["rendezvous", "describe", "barriers"]).ok()?;
        *seen = described.to_string();
        (described["gone"][0]["why"] == "lost").then_some(())
    });
    // It arrives before its keep-alive has told it.
    std::fs::write(&go, "")?;
    late.signal(libc::SIGCONT)?;
    ends(late, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_barrier_failure_names_the_dead_worker() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let mut dies = barriers(&fleet, "dies", &["dies", "dead"])?;
    until_it_says(&dies, "registered");
    let fails = barriers(&fleet, "fails", &["fails", "alive", "dead"])?;
    until_it_says(&fails, "waits");
    dies.kill();
    ends(fails, 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn python_submits_a_batch_and_the_same_again_is_the_same_run() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    fleet.ctl_json(&["namespace", "set-quota", "other", "--create", "--runs-max", "8"])?;
    let program = fleet.rollout(&[]).get_program().to_string_lossy().into_owned();
    let (context, dir) = (fleet.path("user.toml"), fleet.path("batches"));
    let (context, dir) = (context.display().to_string(), dir.display().to_string());
    ends(python(&fleet, "batch", "batch.py", &[&context, &program, &dir])?, 0)?;
    fleet.verify()?;
    fleet.passed()
}
