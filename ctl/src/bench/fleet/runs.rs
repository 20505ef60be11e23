//! The runs of the fleet: declared through the API, with enough rows that none runs out during the measurement.
//!
//! Invariant: every process of the generator knows a run before its first row can be granted.
//! Absent: prompts.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::Context as _;
use rollout_proto::{Client, Session, services, v1};
use rollout_storage::BlobStore;

use super::FleetArgs;
use super::part_processes::PartProcesses;
use super::plan::Shape;
use super::row_record::RunOf;
use crate::bench::declare::{NewRun, add_rows, create_run};
use crate::bench::load::LABEL;
use crate::bench::objects::Objects;

/// More rows than the slots can run, so that uneven shares leave no run dry.
const SPARE: f64 = 1.5;
const ROWS_MIN: u64 = 1000;
const ROWS_MAX: u64 = 1 << 30;

/// The declared runs, and the session that declared them.
pub(super) struct Runs {
    pub(super) session: Session,
    pub(super) all: Vec<RunOf>,
}

/// Declares the runs of the shape, each with rows for `seconds`.
pub(super) async fn declare(
    client: &Client,
    (args, shape): (&FleetArgs, &Shape),
    seconds: Duration,
    processes: &mut PartProcesses,
) -> anyhow::Result<Runs> {
    let session = client.open_session("rolloutctl bench").await?;
    let objects = Objects::Named(BlobStore::open(session.store_url())?);
    let label = shape.label.iter().map(|label| (LABEL.to_owned(), label.clone()));
    let selector: HashMap<String, String> = label.collect();
    let nonce: u64 = rand::random();
    let rows = rows_of_each(args, shape, seconds);
    let mut all = Vec::new();
    for (number, rows) in (0..shape.runs).zip(rows) {
        let (namespace, model) = shape.run_of(number);
        let name = format!("bench-{nonce:016x}-{number}");
        let new = NewRun {
            namespace: &namespace,
            name: &name,
            model: &model,
            rows,
            selector: selector.clone(),
        };
        let (run, folder) = create_run((client, &session), &new, |_, _| {}).await?;
        all.push(RunOf { run, namespace, name, folder, model, rows });
    }
    processes.learn(all.clone()).await?;
    for of in &all {
        let new = NewRun {
            namespace: &of.namespace,
            name: &of.name,
            model: &of.model,
            rows: of.rows,
            selector: selector.clone(),
        };
        let of = (of.run, of.folder.as_str());
        add_rows((client, &session, &objects), &new, of, |_, _| {}).await?;
    }
    Ok(Runs { session, all })
}

/// Rows of each run: what its share of its slots can run in that time, plus a margin.
fn rows_of_each(args: &FleetArgs, shape: &Shape, seconds: Duration) -> Vec<u64> {
    let mut alike = BTreeMap::<(String, String), u64>::new();
    for run in 0..shape.runs {
        *alike.entry(shape.run_of(run)).or_default() += 1;
    }
    let per_slot = args.rows_per_slot_second() * seconds.as_secs_f64() * SPARE;
    let held = f64::from(args.concurrency + args.ahead());
    let rows = |(run, slots): (u32, u64)| {
        let sharing = alike.get(&shape.run_of(run)).copied().unwrap_or(1);
        let rows = slots as f64 * (per_slot + 2.0 * held) / sharing as f64;
        (rows.ceil() as u64).clamp(ROWS_MIN, ROWS_MAX)
    };
    (0..).zip(shape.slots_of_run()).map(rows).collect()
}

/// Creates the namespaces, if there are several, before the first worker registers.
pub(super) async fn create_namespaces(client: &Client, shape: &Shape) -> anyhow::Result<()> {
    let session = client.open_session("rolloutctl bench").await?;
    for namespace in shape.all_namespaces() {
        let pending = session.request();
        let request = v1::SetQuotaRequest {
            namespace,
            create: true,
            request: Some(pending.id()),
            ..v1::SetQuotaRequest::default()
        };
        client
            .with_leader("create namespace", |channel| {
                let request = request.clone();
                async move { services::namespaces(channel).set_quota(request).await }
            })
            .await
            .context("cannot create a namespace")?;
    }
    Ok(())
}
