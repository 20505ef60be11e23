//! An operator's `rolloutctl` commands for datasets, jobs and checkpoints, and what rollout's trainer promises its
//! caller: it waits no longer than its limit, and loses nothing that it was granted.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rollout_gateway::JobStore;
use rollout_proto::{Client, ClientConfig, ErrorCode, v1};
use rollout_tests::{Fleet, FleetOptions, eventually_or_show};
use rollout_training::{
    CheckpointWriter, Recovery, TrainError, Trainer, TrainerOptions, draw_instance,
};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

const PATIENCE: Duration = Duration::from_secs(120);
const DATASET: [&str; 9] = [
    "dataset",
    "create",
    "pile",
    "--uri",
    "file:///data/{shard:3}",
    "--samples",
    "95",
    "--shard-samples",
    "10",
];
/// Exit statuses.
const NOT_FOUND: i32 = 4;
const CONFLICT: i32 = 5;
const REFUSED: i32 = 6;

/// Runs a command, which must end with this code, and returns its output.
fn ctl(fleet: &Fleet, args: &[&str], code: i32) -> Result<String> {
    let out = fleet.ctl(args)?;
    let output = String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned();
    ensure!(out.status.code() == Some(code), "{args:?}: {}: {output}", out.status);
    Ok(output)
}

fn client(fleet: &Fleet) -> Result<Client> {
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    Ok(Client::new(ClientConfig::new(endpoints, fleet.security("client", "user")))?)
}

async fn recover(fleet: &Fleet, name: &str, world: &[&str], round: u64) -> Result<Trainer> {
    let options = TrainerOptions {
        job: "sft".into(),
        name: name.into(),
        keep_alive: Duration::from_secs(60),
        ..TrainerOptions::default()
    };
    let world = world.iter().map(|name| (*name).to_owned()).collect();
    let recovery = Recovery { round, world, ..Recovery::default() };
    Ok(Trainer::recover(client(fleet)?, &options, &recovery).await?.0)
}

/// Makes a complete checkpoint in a world of one.
async fn complete(trainer: &Trainer, step: u64) -> Result<v1::Checkpoint> {
    let checkpoint = trainer.begin_checkpoint(step, "", PATIENCE).await?;
    let writer = CheckpointWriter::open(trainer.store_url())?;
    let files = vec![("model".to_owned(), Bytes::from(step.to_string()))];
    let written = writer.begin(&checkpoint, trainer.name(), files).wait().await?;
    ensure!(trainer.report_checkpoint(checkpoint.number, &written, Vec::new()).await?, "complete");
    Ok(checkpoint)
}

/// Numbers and states of the checkpoints that are not being deleted, newest first.
fn states(fleet: &Fleet) -> Result<Vec<(u64, String)>> {
    let list = fleet.ctl_json(&["checkpoint", "list", "sft"])?;
    let all = list["checkpoints"].as_array().into_iter().flatten();
    let named = all.filter_map(|c| Some((c["number"].as_u64()?, c["state"].as_str()?.to_owned())));
    Ok(named.filter(|(_, state)| state != "going").collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_make_name_keep_and_remove_what_jobs_need() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let told = ctl(&fleet, &DATASET, 0)?;
    ensure!(told.contains("95 samples in 10 shards"), "{told}");
    ctl(&fleet, &DATASET, 0)?;
    ctl(&fleet, &[&DATASET[..], &["--seed", "7"]].concat(), CONFLICT)?;
    let more = ["dataset", "create", "other", "--uri", "x", "--samples", "5", "--in-order"];
    ctl(&fleet, &[&more[..], &["--metadata", "license=ours"]].concat(), 0)?;
    let described: Value = fleet.ctl_json(&["dataset", "describe", "other"])?;
    let dataset = &described["dataset"];
    ensure!(dataset["inOrder"] == true && dataset["metadata"]["license"] == "ours", "{described}");
    let trainer = recover(&fleet, "t0", &["t0"], 1).await?;
    ensure!(trainer.claim("pile", 0).await?.0.is_some(), "a shard");
    for step in 1..=3 {
        complete(&trainer, step).await?;
    }
    ctl(&fleet, &["checkpoint", "label", "sft", "1", "gold"], 0)?;
    ctl(&fleet, &["checkpoint", "prune", "sft", "--keep-last", "1", "--yes"], 0)?;
    let whole = |number: u64| (number, "complete".to_owned());
    ensure!(states(&fleet)? == [whole(3), whole(1)], "{:?}", states(&fleet)?);
    ctl(&fleet, &["checkpoint", "label", "sft", "1", "--remove"], 0)?;
    ctl(&fleet, &["checkpoint", "prune", "sft", "--keep-last", "1", "--yes"], 0)?;
    ensure!(states(&fleet)? == [whole(3)], "{:?}", states(&fleet)?);
    let open = trainer.begin_checkpoint(4, "", PATIENCE).await?;
    ctl(&fleet, &["checkpoint", "abort", "sft", "3"], CONFLICT)?;
    ctl(&fleet, &["checkpoint", "abort", "sft", "99"], NOT_FOUND)?;
    ctl(&fleet, &["checkpoint", "abort", "sft", &open.number.to_string()], 0)?;
    ensure!(trainer.checkpoint_complete(open.number, PATIENCE).await? == Some(false), "given up");
    // Nothing in use is deleted, and nothing without confirmation.
    ctl(&fleet, &["dataset", "delete", "other"], REFUSED)?;
    ctl(&fleet, &["dataset", "delete", "other", "--yes"], 0)?;
    ctl(&fleet, &["dataset", "delete", "pile", "--yes"], CONFLICT)?;
    ctl(&fleet, &["job", "delete", "sft", "--yes"], CONFLICT)?;
    trainer.leave().await?;
    ctl(&fleet, &["job", "delete", "sft"], REFUSED)?;
    ctl(&fleet, &["job", "delete", "sft", "--yes"], 0)?;
    eventually_or_show("the job and its objects are gone", PATIENCE, |seen| {
        let jobs = fleet.ctl_json(&["job", "list"]).ok()?;
        let objects = std::fs::read_dir(fleet.path("store/training/default/sft/00000003"));
        let left = objects.map_or(0, Iterator::count);
        *seen = format!("{jobs}, {left} objects");
        (jobs["jobs"].as_array()?.is_empty() && left == 0).then_some(())
    });
    ctl(&fleet, &["dataset", "delete", "pile", "--yes"], 0)?;
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rank_that_never_comes_is_named_when_the_time_for_it_is_over() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let trainer = recover(&fleet, "here", &["here", "absent"], 1).await?;
    let begun = Instant::now();
    let refused = trainer.begin_checkpoint(1, "", Duration::from_secs(1)).await;
    let error = refused.err().map(|error| match error {
        TrainError::Cluster(error) => (error.code(), error.to_string()),
        other => (None, other.to_string()),
    });
    let named = |(code, said): &(Option<ErrorCode>, String)| {
        *code == Some(ErrorCode::CheckpointConflict) && said.contains("absent")
    };
    ensure!(error.as_ref().is_some_and(named), "{error:?}");
    ensure!(begun.elapsed() >= Duration::from_millis(500), "it did not wait");
    // Once the second trainer is there, both report the checkpoint; one report alone does not complete it.
    let late = recover(&fleet, "absent", &["here", "absent"], 1).await?;
    let checkpoint = trainer.begin_checkpoint(1, "", PATIENCE).await?;
    ensure!(late.begin_checkpoint(1, "", PATIENCE).await?.number == checkpoint.number, "the same");
    let writer = CheckpointWriter::open(trainer.store_url())?;
    let files = vec![("model".to_owned(), Bytes::from_static(b"here"))];
    let written = writer.begin(&checkpoint, trainer.name(), files).wait().await?;
    ensure!(
        !trainer.report_checkpoint(checkpoint.number, &written, Vec::new()).await?,
        "too early"
    );
    let waited = trainer.checkpoint_complete(checkpoint.number, Duration::from_secs(1)).await?;
    ensure!(waited.is_none(), "{waited:?}");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_of_objects_that_are_not_in_the_store_is_refused() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let trainer = recover(&fleet, "t0", &["t0"], 1).await?;
    let checkpoint = trainer.begin_checkpoint(1, "", PATIENCE).await?;
    let writer = CheckpointWriter::open(trainer.store_url())?;
    let files = vec![("model".to_owned(), Bytes::from_static(b"weights"))];
    let written = writer.begin(&checkpoint, trainer.name(), files).wait().await?;
    let manifest: String = written.manifest.digest.iter().map(|b| format!("{b:02x}")).collect();
    let objects = std::fs::read_dir(fleet.path("store").join(&checkpoint.prefix))?;
    let mut paths = objects.filter_map(|object| Some(object.ok()?.path()));
    let object = paths.find(|path| !path.ends_with(&manifest)).context("the weights")?;
    let name = object.file_name().context("a name")?.to_string_lossy().into_owned();
    for bytes in [None, Some(b"weight")] {
        match bytes {
            None => std::fs::remove_file(&object)?,
            Some(bytes) => std::fs::write(&object, bytes)?,
        }
        let refused = trainer.report_checkpoint(checkpoint.number, &written, Vec::new()).await;
        let error = refused.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(error.contains(&name), "with {bytes:?}: {error}");
    }
    ensure!(states(&fleet)? == [(1, "open".to_owned())], "{:?}", states(&fleet)?);
    std::fs::write(&object, b"weights")?;
    ensure!(trainer.report_checkpoint(checkpoint.number, &written, Vec::new()).await?, "complete");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_checkpoint_with_a_lost_object_is_refused_as_a_base_with_the_remedy() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let trainer = recover(&fleet, "t0", &["t0"], 1).await?;
    complete(&trainer, 1).await?;
    let last = complete(&trainer, 2).await?;
    let objects = std::fs::read_dir(fleet.path("store").join(&last.prefix))?;
    let objects: Vec<_> = objects.collect::<Result<_, _>>()?;
    ensure!(objects.len() == 2, "a manifest and what it names: {objects:?}");
    for object in &objects {
        let (path, name) = (object.path(), object.file_name().to_string_lossy().into_owned());
        let good = std::fs::read(&path)?;
        std::fs::remove_file(&path)?;
        let refused = recover(&fleet, "t0", &["t0"], 2).await.err();
        let said = refused.map(|error| error.to_string()).unwrap_or_default();
        ensure!(said.contains("RO-5001") && said.contains(&name), "{said}");
        ensure!(said.contains("another complete checkpoint by its number: 1, of step 1"), "{said}");
        std::fs::write(&path, good)?;
    }
    // No lineage was begun: the running trainer continues.
    complete(&trainer, 3).await?;
    let options =
        TrainerOptions { job: "sft".into(), name: "t0".into(), ..TrainerOptions::default() };
    let recovery = Recovery { round: 2, world: vec!["t0".into()], from: 1, ..Recovery::default() };
    let (_, earlier) = Trainer::recover(client(&fleet)?, &options, &recovery).await?;
    ensure!(earlier.checkpoint.is_some_and(|c| c.step == 1), "the one that was named");
    fleet.verify()?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_was_not_answered_is_repeated_and_tears_nothing() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    complete(&recover(&fleet, "t0", &["t0"], 1).await?, 1).await?;
    let recovery = Recovery { round: 2, world: vec!["t0".into()], ..Recovery::default() };
    let mut options = TrainerOptions {
        job: "sft".into(),
        name: "t0".into(),
        instance: draw_instance(),
        keep_alive: Duration::from_secs(60),
        ..TrainerOptions::default()
    };
    // The cluster keeps its ticket, but this process has dropped the trainer.
    drop(Trainer::recover(client(&fleet)?, &options, &recovery).await?);
    let (again, recovered) = Trainer::recover(client(&fleet)?, &options, &recovery).await?;
    ensure!(recovered.checkpoint.is_some_and(|c| c.step == 1), "it begins at the checkpoint");
    complete(&again, 2).await?;
    // A new process under its name is another trainer: the state of this one is lost.
    options.instance = draw_instance();
    let torn = Trainer::recover(client(&fleet)?, &options, &recovery).await.err();
    ensure!(torn.is_some_and(|error| error.has_to_recover()), "the lineage is torn");
    fleet.verify()?;
    fleet.passed()
}

/// Opens more sessions than the cluster remembers, so that the user's oldest are forgotten. A user's own new session
/// ends no session in use, so another identity opens the last ones.
async fn open_sessions(fleet: &Fleet) -> Result<()> {
    const ALMOST_ALL: usize = 9_950;
    const AT_A_TIME: usize = 50;
    // A session that was used less than 30 s ago is in use. Subtract a second, because command timings are not exact.
    const IN_USE: Duration = Duration::from_secs(29);
    let (client, mut opening) = (client(fleet)?, JoinSet::new());
    let opened_since = Instant::now();
    for _ in 0..AT_A_TIME {
        let client = client.clone();
        opening.spawn(async move {
            for _ in 0..ALMOST_ALL / AT_A_TIME {
                client.open_session("another").await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(opened) = opening.join_next().await {
        opened??;
    }
    let operator = fleet.client("admin", "operator")?;
    for _ in 0..200 {
        operator.open_session("an operator's").await?;
    }
    // Until its oldest sessions are out of use, the user gets no new one.
    let begun = Instant::now();
    while let Err(error) = client.open_session("another").await {
        ensure!(begun.elapsed() < PATIENCE, "{error}");
    }
    // All older sessions made room for the operator's, so the new one ended one of those above.
    ensure!(opened_since.elapsed() >= IN_USE, "a session in use was ended for another of its user");
    Ok(())
}

/// The trainers and the store have sessions of their own, and all of these are forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn trainers_and_a_store_whose_sessions_were_forgotten_continue_in_others() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    ctl(&fleet, &DATASET, 0)?;
    let world = ["t0", "t1"];
    let first = recover(&fleet, "t0", &world, 1).await?;
    let second = recover(&fleet, "t1", &world, 1).await?;
    let shard = first.claim("pile", 0).await?.0.context("a shard")?;
    let name = v1::StoreName { job: "stores".into(), round: 1, ..Default::default() };
    let store = JobStore::new(client(&fleet)?, name);
    let add = || {
        let add = v1::StoreAdd { key: "n".into(), delta: 1 };
        store.change(v1::store_op::Kind::Add(add))
    };
    // Two sessions; either may be used next.
    let (one, two) = tokio::join!(add(), add());
    ensure!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    open_sessions(&fleet).await?;
    let (one, two, used) = tokio::join!(add(), add(), store.use_it());
    used?;
    let mut sums = [one?, two?].map(|answer| match answer {
        v1::store_answer::Kind::Number(sum) => sum,
        _ => 0,
    });
    sums.sort_unstable();
    ensure!(sums == [3, 4], "each counted once: {sums:?}");
    ensure!(!first.finish(("pile", 0), &shard, 1).await?, "others are left");
    let other = second.claim("pile", 0).await?.0.context("a shard")?;
    ensure!(other.shard != shard.shard, "shard {} was finished", shard.shard);
    second.finish(("pile", 0), &other, 1).await?;
    let begun = first.begin_checkpoint(1, "", PATIENCE).await?;
    ensure!(second.begin_checkpoint(1, "", PATIENCE).await?.number == begun.number, "the same");
    fleet.verify()?;
    fleet.passed()
}

/// Waits this long, to the microsecond: the runtime's timers are as coarse as a claim takes.
async fn passed(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_its_caller_gave_up_is_not_lost() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let spec = ["--samples", "500", "--shard-samples", "10"];
    ctl(&fleet, &[&["dataset", "create", "pile", "--uri", "x"][..], &spec].concat(), 0)?;
    let trainer = recover(&fleet, "t0", &["t0"], 1).await?;
    let (mut held, mut given_up, mut usual) = (BTreeSet::new(), 0, PATIENCE);
    // Vary the delay around the time of an answer: up to twice that of the fastest answer.
    for share in (0..400).map(|n| f64::from(n * 37 % 200) / 100.0) {
        if held.len() == 50 {
            break;
        }
        let asked = Instant::now();
        tokio::select! {
            claimed = trainer.claim("pile", 0) => {
                held.extend(claimed?.0.map(|shard| shard.shard));
                usual = usual.min(asked.elapsed());
            }
            () = passed(usual.mul_f64(share)) => given_up += 1,
        }
    }
    ensure!(given_up > 10, "only {given_up} claims were given up");
    while let (Some(shard), _) = trainer.claim("pile", 0).await? {
        ensure!(held.insert(shard.shard), "shard {} was granted again", shard.shard);
    }
    ensure!(held.len() == 50, "shards without a known holder: {held:?}");
    fleet.verify()?;
    fleet.passed()
}
