//! Owns: the cost of one run: processor time, requests to the object store, and bytes of log, image and objects.
//!
//! Invariant: a figure covers the time from before the submission until the client has written its output. The output
//! is checked row by row after that.
//! Absent: tokens. The mock engine makes none, so the costs are those of rollout alone.

use crate::{number, rounded};
use anyhow::{Context, Result, ensure};
use rollout_proto::{services, v1};
use rollout_tests::{
    Batch, Fleet, FleetOptions, S3, Usage, WorkerOptions, ended_children_cpu_s, engines, eventually,
};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const RUNNING: Duration = Duration::from_secs(3600);
const PATIENCE: Duration = Duration::from_secs(60);
const WORKERS: [&str; 2] = ["w1", "w2"];
const SLOTS: usize = 4;
/// Rows that a slot runs at once.
const CONCURRENCY: u64 = 128;

/// Counts by kind, such as `PUT parts`.
type Counts = BTreeMap<String, u64>;

pub(crate) fn measure() -> Result<()> {
    let (rows, row_ms) = (number("ROWS", 1_000_000)?, number("ROW_MS", 200)?);
    let s3 = S3::start()?;
    let mut fleet = Fleet::start(FleetOptions { s3: Some(s3.clone()), ..FleetOptions::default() })?;
    start_workers(&mut fleet, row_ms)?;
    // Not measured: registrations, the first connections, the first rows of an engine.
    Batch::submit(&fleet, "warm", 2000, "")?.finish(&fleet)?;
    let before = Reading::take(&mut fleet, &s3)?;
    let start = Instant::now();
    let mut batch = Batch::submit(&fleet, "rows", rows, "")?;
    // Do not poll meanwhile: polling takes processor time from the measurement.
    let status = batch.process().wait(RUNNING)?;
    let seconds = start.elapsed().as_secs_f64();
    ensure!(status.success(), "{status}{}", fleet.logs());
    let after = Reading::take(&mut fleet, &s3)?;
    let input_bytes = std::fs::metadata(&batch.input)?.len();
    let run = json!({
        "rows": rows, "rowSeconds": row_ms as f64 / 1000.0, "inputBytes": input_bytes,
        "workers": WORKERS.len(), "slots": SLOTS, "rowsAtOncePerSlot": CONCURRENCY,
        "seconds": rounded(seconds),
    });
    println!("{}", json!({"bench": "rows", "run": run}));
    print(&before, &after, rows)?;
    batch.check_output()?;
    fleet.verify()?;
    fleet.passed()
}

/// Workers whose engines are processes of their own, as those of real models are.
fn start_workers(fleet: &mut Fleet, row_ms: u64) -> Result<()> {
    let engine = format!(
        "kind = \"mock\"\nprocess = true\nslots = {SLOTS}\nconcurrency = {CONCURRENCY}\n\
         latency_ms_min = {row_ms}\nlatency_ms_max = {row_ms}\n"
    );
    // The default of a worker, not the shorter time of the tests.
    let head = "[part]\nlinger_ms = 10000\n".to_owned();
    for name in WORKERS {
        fleet.start_worker(name, &WorkerOptions { engine: engine.clone(), head: head.clone() })?;
        let agent = fleet.worker_process(name).pid();
        eventually("each slot has an engine", PATIENCE, || {
            (engines(agent).len() == SLOTS).then_some(())
        });
    }
    Ok(())
}

/// Everything that is counted, at one time.
struct Reading {
    /// The three members together, as the agents and engines below.
    members: Usage,
    agents: Usage,
    engines: Usage,
    client_cpu_s: f64,
    /// Bytes appended to the log of one member. All members have the same log.
    log_bytes: u64,
    /// Bytes written to the image of the member that wrote most.
    image_bytes: u64,
    requests: [(&'static str, Counts); 3],
    objects: Counts,
}

impl Reading {
    fn take(fleet: &mut Fleet, s3: &S3) -> Result<Self> {
        let counters = counters(fleet)?;
        let members = fleet.member_names();
        let member_pids: Vec<u32> =
            members.iter().map(|name| fleet.member_process(name).pid()).collect();
        let agents = WORKERS.map(|name| fleet.worker_process(name).pid());
        let engine_pids: Vec<u32> = agents.iter().flat_map(|agent| engines(*agent)).collect();
        let members: Vec<&str> = members.iter().map(String::as_str).collect();
        let most = |bytes: fn(&v1::CountersResponse) -> u64| counters.iter().map(bytes).max();
        Ok(Self {
            members: Usage::of(&member_pids)?,
            agents: Usage::of(&agents)?,
            engines: Usage::of(&engine_pids)?,
            client_cpu_s: ended_children_cpu_s(),
            log_bytes: most(|member| member.log_bytes).unwrap_or(0),
            image_bytes: most(|member| member.image_bytes_written).unwrap_or(0),
            requests: [
                ("members", requests(s3, &members)),
                ("workers", requests(s3, &WORKERS)),
                ("client", requests(s3, &["user"])),
            ],
            objects: s3.stored_bytes(),
        })
    }
}

/// The counters of each member.
fn counters(fleet: &Fleet) -> Result<Vec<v1::CountersResponse>> {
    let operator = fleet.client("admin", "operator")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answers = runtime.block_on(operator.each_member(|_, channel| async move {
        services::cluster(channel).counters(v1::CountersRequest {}).await
    }));
    answers.into_iter().map(|(_, answer)| answer.context("the counters of a member")).collect()
}

/// Requests to the store by the processes of these names.
fn requests(s3: &S3, names: &[&str]) -> Counts {
    let mut all = Counts::new();
    for (what, count) in names.iter().flat_map(|name| s3.requests_of(name)) {
        *all.entry(what).or_default() += count;
    }
    all
}

/// What was added to counts.
fn added(before: &Counts, after: &Counts) -> Counts {
    let old = |what: &String| before.get(what).copied().unwrap_or(0);
    let all = after.iter().map(|(what, count)| (what.clone(), count.saturating_sub(old(what))));
    all.filter(|(_, count)| *count > 0).collect()
}

fn print(before: &Reading, after: &Reading, rows: u64) -> Result<()> {
    let members = after.members.since(&before.members);
    let agents = after.agents.since(&before.agents);
    let engines = after.engines.since(&before.engines);
    let client_cpu_s = after.client_cpu_s - before.client_cpu_s;
    ensure!(members.disk_bytes > 0, "the members wrote to no disk: set TMPDIR to a folder on one");
    let (log, image) = (after.log_bytes - before.log_bytes, after.image_bytes - before.image_bytes);
    let objects = added(&before.objects, &after.objects);
    let requests: BTreeMap<&str, Counts> = before
        .requests
        .iter()
        .zip(&after.requests)
        .map(|((who, old), (_, new))| (*who, added(old, new)))
        .collect();
    let cpu = |seconds: f64| rounded(seconds * 1e6 / rows as f64);
    let per_row = |bytes: u64| rounded(bytes as f64 / rows as f64);
    let totals = json!({
        "cpuSeconds": {
            "members": rounded(members.cpu_s), "agents": rounded(agents.cpu_s),
            "engines": rounded(engines.cpu_s), "client": rounded(client_cpu_s),
        },
        "logBytesPerMember": log, "imageBytesPerMember": image,
        "diskBytes": {"members": members.disk_bytes, "agents": agents.disk_bytes},
        "objectBytes": objects, "requests": requests,
    });
    let all_requests: u64 = requests.values().flat_map(BTreeMap::values).sum();
    let of_a_row = json!({
        "cpuUs": {
            "members": cpu(members.cpu_s), "agents": cpu(agents.cpu_s),
            "engines": cpu(engines.cpu_s), "client": cpu(client_cpu_s),
        },
        "logBytesPerMember": per_row(log), "imageBytesPerMember": per_row(image),
        "diskBytes": {"members": per_row(members.disk_bytes), "agents": per_row(agents.disk_bytes)},
        "objectBytes": per_row(objects.values().sum()),
    });
    println!("{}", json!({"bench": "rows", "total": totals}));
    let per_million = all_requests * 1_000_000 / rows.max(1);
    println!(
        "{}",
        json!({"bench": "rows", "perRow": of_a_row, "requestsPerMillionRows": per_million})
    );
    Ok(())
}
