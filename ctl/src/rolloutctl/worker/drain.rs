//! `rolloutctl worker drain NAME`: a worker finishes what it can, returns the rest, and leaves.

use std::time::{Duration, Instant};

use rollout_proto::{Client, services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::{ConnectArgs, parse_duration};
use crate::output::counted;
use crate::output::{self, Format, Report, duration};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::print_note;

/// How often to check whether the worker has left.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// How often the remaining work is printed.
const TELL_EVERY: Duration = Duration::from_secs(2);

/// Which worker, and how much time it has.
#[derive(Debug, clap::Args)]
pub(crate) struct DrainArgs {
    /// The worker's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Workers))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Time until the worker must leave; rows that it still holds then become pending [default: the
    /// worker's `[timing] drain_ms`, and 15 s for uploads]. Repeating the command can only move the
    /// deadline earlier
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    deadline: Option<Duration>,
    /// Reason, printed in the worker's log
    #[arg(long, value_name = "TEXT", default_value = "an operator asks for it")]
    reason: String,
    /// Return when the worker has left [default: return when the drain is recorded]
    #[arg(long)]
    wait: bool,
}

impl DrainArgs {
    /// The request for one worker, without its namespace and its number.
    fn wanted(&self, name: &str) -> v1::DrainWorkerRequest {
        v1::DrainWorkerRequest {
            name: name.to_owned(),
            // 0 would mean no deadline.
            deadline_ms: self.deadline.map_or(0, |time| (time.as_millis() as u64).max(1)),
            reason: self.reason.clone(),
            ..Default::default()
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Draining {
    worker: String,
    rows_held: u32,
    /// Seconds until it is certainly gone.
    left_seconds: Option<f64>,
    gone: bool,
}

impl Draining {
    fn of(worker: &str, info: Option<&v1::WorkerInfo>) -> Self {
        let slots = info.map_or(&[][..], |info| &info.slots);
        let left = info.map(|info| info.drain_left_ms).filter(|ms| *ms > 0);
        Self {
            worker: worker.to_owned(),
            rows_held: slots.iter().map(|slot| slot.rows_held).sum(),
            left_seconds: left.map(|ms| ms as f64 / 1000.0),
            gone: info.is_none(),
        }
    }
}

impl Report for Draining {
    const KIND: &'static str = "Draining";

    fn table(&self) -> String {
        if self.gone {
            return format!("worker {} has left\n", self.worker);
        }
        let end = self
            .left_seconds
            .map_or(String::new(), |left| format!("; leaves within {}", duration(left)));
        let held = counted(self.rows_held.into(), "row");
        format!("worker {} drains; it holds {held}{end}\n", self.worker)
    }
}

impl Verb for DrainArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Sends the request, and waits if requested. A repeat under its number drains no other process of that name.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let names = self.names.clone();
        for_each_name(names, globals.format, globals.again, async |name, format| {
            drain(&globals.connect, format, name, &self, globals.again).await
        })
        .await
    }
}

impl Checked for DrainArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let namespace = || namespace.to_owned();
        for_each(&self.names, |name| v1::DrainWorkerRequest {
            namespace: namespace(),
            ..self.wanted(name)
        })
    }
}

impl Planned for DrainArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.workers(self.names, ("drain worker", String::new())).await
    }
}

async fn drain(
    connect: &ConnectArgs,
    format: Format,
    name: String,
    args: &DrainArgs,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let namespace = settings.namespace.clone();
    let request =
        |id| v1::DrainWorkerRequest { request: Some(id), namespace, ..args.wanted(&name) };
    let answer = numbered(&client, "drain worker", again, request, |channel, request| async move {
        services::cluster(channel).drain_worker(request).await
    })
    .await?;
    let mut worker = answer.worker;
    if args.wait {
        let session = worker.as_ref().map_or(0, |worker| worker.session);
        let mut reported_at = None::<Instant>;
        while worker.is_some() {
            if reported_at.is_none_or(|at| at.elapsed() >= TELL_EVERY) {
                reported_at = Some(Instant::now());
                let so_far = Draining::of(&name, worker.as_ref()).table();
                print_note(format_args!("{}", so_far.trim_end()));
            }
            tokio::time::sleep(LOOK_EVERY).await;
            worker = look(&client, &settings.namespace, session).await?;
        }
    }
    output::emit(format, &Draining::of(&name, worker.as_ref()))
}

/// The worker, while it is the process that was asked to drain.
async fn look(
    client: &Client,
    namespace: &str,
    session: u64,
) -> anyhow::Result<Option<v1::WorkerInfo>> {
    let request = v1::ListWorkersRequest { namespace: namespace.to_owned() };
    let answer = read(client, "list workers", &request, |channel, request| async move {
        services::cluster(channel).list_workers(request).await
    })
    .await?;
    Ok(answer.workers.into_iter().find(|worker| worker.session == session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_reports_held_rows_and_its_end() {
        let slot = v1::WorkerSlot { rows_held: 1_200, ..v1::WorkerSlot::default() };
        let mut info = v1::WorkerInfo { slots: vec![slot], ..v1::WorkerInfo::default() };
        let table = Draining::of("w1", Some(&info)).table();
        assert_eq!(table, "worker w1 drains; it holds 1,200 rows\n");
        info.drain_left_ms = 60_000;
        let table = Draining::of("w1", Some(&info)).table();
        assert!(table.contains("it holds 1,200 rows; leaves within 1m"), "{table}");
        assert_eq!(Draining::of("w1", None).table(), "worker w1 has left\n");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let report = Draining {
            worker: "w1".into(),
            rows_held: 1_200,
            left_seconds: Some(60.0),
            gone: false,
        };
        crate::golden::report("worker-drain.txt", &report);
    }
}
