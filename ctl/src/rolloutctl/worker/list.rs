//! `rolloutctl worker list`: one line per worker, and why a slot takes no work.

use std::collections::{BTreeMap, BTreeSet};

use rollout_proto::{Client, ClientError, services, v1};
use serde::Serialize;

use crate::output::{self, Align, Report, Table, count, duration, u64_string};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
struct WorkerList {
    workers: Vec<WorkerLine>,
    /// The source of the answer if there is no leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<Unconfirmed>,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    all_namespaces: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkerLine {
    pub(super) namespace: String,
    pub(super) name: String,
    #[serde(serialize_with = "u64_string")]
    pub(super) session: u64,
    pub(super) state: String,
    pub(super) address: String,
    /// `None` if no leader reports it.
    pub(super) silent_seconds: Option<f64>,
    draining: bool,
    /// Seconds until it is certainly gone.
    drain_left_seconds: Option<f64>,
    pub(super) slots: Vec<SlotLine>,
    pub(super) versions: BTreeMap<String, String>,
    /// Rows that its engines run, of those that it holds.
    #[serde(serialize_with = "u64_string")]
    pub(super) started_rows: u64,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct SlotLine {
    pub(super) slot: u32,
    pub(super) engine: String,
    pub(super) models: Vec<String>,
    pub(super) rows_held: u32,
    #[serde(serialize_with = "u64_string")]
    pub(super) rows_done: u64,
    ineligible: Option<String>,
    #[serde(serialize_with = "u64_string")]
    pub(super) deaths: u64,
    cordoned: bool,
    cordon_reason: Option<String>,
    in_trial: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) versions: BTreeMap<String, String>,
}

impl SlotLine {
    /// Why it takes no work, if it takes none.
    pub(super) fn problem(&self) -> Option<String> {
        match (&self.ineligible, self.cordoned, &self.cordon_reason) {
            (Some(why), _, _) => Some(why.clone()),
            (None, true, Some(why)) => Some(format!("slot {} cordoned: {why}", self.slot)),
            (None, true, None) => Some(format!("slot {} cordoned", self.slot)),
            (None, false, _) => None,
        }
    }
}

impl WorkerLine {
    /// When the leader last heard from it.
    pub(super) fn last_heartbeat(&self) -> String {
        let ago = |silent| format!("{} ago", duration(silent));
        self.silent_seconds.map_or_else(|| "-".to_owned(), ago)
    }

    pub(super) fn state(&self) -> String {
        let mut text = self.state.clone();
        if self.draining && text != "draining" {
            text.push_str(", draining");
        }
        if let Some(left) = self.drain_left_seconds {
            text.push_str(&format!(" (gone in {})", duration(left)));
        }
        let cordoned = self.slots.iter().filter(|slot| slot.cordoned).count();
        match cordoned {
            0 => text,
            n if n == self.slots.len() => format!("{text}, cordoned"),
            n => format!("{text}, {n} cordoned"),
        }
    }
}

impl From<v1::WorkerInfo> for WorkerLine {
    fn from(wire: v1::WorkerInfo) -> Self {
        let slots = wire.slots.into_iter().map(|slot| SlotLine {
            slot: slot.slot,
            engine: slot.engine,
            models: slot.models,
            rows_held: slot.rows_held,
            rows_done: slot.rows_done,
            ineligible: Some(slot.ineligible).filter(|why| !why.is_empty()),
            deaths: slot.deaths,
            cordoned: slot.cordoned,
            cordon_reason: Some(slot.cordon_reason).filter(|why| !why.is_empty()),
            in_trial: slot.in_trial,
            versions: slot.versions.into_iter().collect(),
        });
        Self {
            namespace: wire.namespace,
            name: wire.name,
            session: wire.session,
            state: wire.state,
            address: wire.address,
            silent_seconds: Some(wire.silent_ms as f64 / 1000.0),
            draining: wire.draining,
            drain_left_seconds: Some(wire.drain_left_ms as f64 / 1000.0).filter(|left| *left > 0.0),
            slots: slots.collect(),
            versions: wire.versions.into_iter().collect(),
            started_rows: wire.started_rows,
        }
    }
}

fn distinct<'a>(texts: impl Iterator<Item = &'a str>) -> String {
    texts.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
}

impl Report for WorkerList {
    const KIND: &'static str = "WorkerList";

    fn table(&self) -> String {
        self.columns(if self.all_namespaces { &["NAMESPACE"] } else { &[] })
    }

    fn wide(&self) -> String {
        self.columns(&["NAMESPACE", "SESSION", "VERSIONS"])
    }
}

impl WorkerList {
    /// The table, with additional columns; missing cells are omitted.
    fn columns(&self, more: &[&str]) -> String {
        let titles = [
            "NAME",
            "STATE",
            "SLOTS",
            "ENGINE",
            "MODELS",
            "HELD",
            "DONE",
            "DEATHS",
            "LAST HEARTBEAT",
            "ADDRESS",
            "PROBLEM",
        ];
        let mut table = Table::new(&titles).and(more);
        for column in [2, 5, 6, 7] {
            table = table.align(column, Align::Right);
        }
        for worker in &self.workers {
            let slots = || worker.slots.iter();
            let problems: BTreeSet<String> = slots().filter_map(SlotLine::problem).collect();
            table.row([
                worker.name.clone(),
                worker.state(),
                worker.slots.len().to_string(),
                distinct(slots().map(|slot| slot.engine.as_str())),
                distinct(slots().flat_map(|slot| slot.models.iter().map(String::as_str))),
                count(slots().map(|slot| u64::from(slot.rows_held)).sum()),
                count(slots().map(|slot| slot.rows_done).sum()),
                count(slots().map(|slot| slot.deaths).sum()),
                worker.last_heartbeat(),
                worker.address.clone(),
                problems.into_iter().collect::<Vec<_>>().join("; "),
                worker.namespace.clone(),
                worker.session.to_string(),
                worker
                    .versions
                    .iter()
                    .map(|(of, is)| format!("{of}={is}"))
                    .collect::<Vec<_>>()
                    .join(","),
            ]);
        }
        table.to_string() + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

/// In which order, and which of them.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// List the cheapest workers to remove first: idle, then fewest running rows, then newest.
    /// Omits draining workers
    #[arg(long)]
    scale_in: bool,
    #[command(flatten)]
    all_namespaces: AllNamespaces,
    #[command(flatten)]
    options: ListOptions,
}

impl WorkerLine {
    fn rows_held(&self) -> u64 {
        self.slots.iter().map(|slot| u64::from(slot.rows_held)).sum()
    }

    fn is_draining(&self) -> bool {
        self.draining || self.state == "draining"
    }
}

/// Cheapest to remove first: started rows run again elsewhere if they do not end within the drain, other rows only
/// move, and a young worker has warmed up least. Session numbers grow over time.
fn in_order_of_scale_in(workers: &mut Vec<WorkerLine>) {
    workers.retain(|worker| !worker.is_draining());
    workers.sort_by_key(|worker| {
        (worker.started_rows, worker.rows_held(), std::cmp::Reverse(worker.session))
    });
}

/// Asks for every worker of a namespace.
pub(super) async fn fetch(
    client: &Client,
    namespace: &str,
) -> Result<SourcedAnswer<Vec<WorkerLine>>, ClientError> {
    let request = v1::ListWorkersRequest { namespace: namespace.to_owned() };
    let sourced =
        unconfirmed::read_from_any(client, "list workers", &request, async |channel, request| {
            services::cluster(channel).list_workers(request).await
        });
    let SourcedAnswer { answer, unconfirmed } = sourced.await?;
    let mut workers: Vec<WorkerLine> = answer.workers.into_iter().map(WorkerLine::from).collect();
    if unconfirmed.is_some() {
        // Only a leader hears from them.
        workers.iter_mut().for_each(|worker| worker.silent_seconds = None);
    }
    Ok(SourcedAnswer { answer: workers, unconfirmed })
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    /// Prints every worker of the namespace.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let namespace = self.all_namespaces.namespace(settings.namespace);
        let SourcedAnswer { answer: mut workers, unconfirmed } = fetch(&client, &namespace).await?;
        match self.scale_in {
            true => in_order_of_scale_in(&mut workers),
            false => workers.sort_by(|a, b| (&a.name, &a.namespace).cmp(&(&b.name, &b.namespace))),
        }
        self.options.apply(&mut workers)?;
        let all_namespaces = self.all_namespaces.is_requested();
        let list = WorkerList { workers, unconfirmed, all_namespaces };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_workers_go_first_then_those_that_run_least_then_the_youngest() {
        let worker = |name: &str, session, started_rows, rows_held, draining| {
            let slot = v1::WorkerSlot { rows_held, ..v1::WorkerSlot::default() };
            let (name, state, slots) = (name.to_owned(), "ready".to_owned(), vec![slot]);
            let wire = v1::WorkerInfo {
                name,
                state,
                slots,
                session,
                started_rows,
                draining,
                ..v1::WorkerInfo::default()
            };
            WorkerLine::from(wire)
        };
        let mut workers = vec![
            worker("busy", 9, 8, 20, false),
            worker("old-and-idle", 1, 0, 0, false),
            worker("young-and-idle", 7, 0, 0, false),
            worker("goes", 8, 0, 0, true),
            worker("has-unstarted-rows", 6, 0, 3, false),
            worker("less-busy", 2, 4, 30, false),
        ];
        in_order_of_scale_in(&mut workers);
        let names: Vec<&str> = workers.iter().map(|worker| worker.name.as_str()).collect();
        let expected =
            ["young-and-idle", "old-and-idle", "has-unstarted-rows", "less-busy", "busy"];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_worker_says_why_a_slot_takes_no_work() {
        let slot = |slot, ineligible: &str| v1::WorkerSlot {
            slot,
            engine: "mock".into(),
            models: vec!["*".into()],
            rows_held: 5,
            rows_done: 1_000,
            ineligible: ineligible.into(),
            ..v1::WorkerSlot::default()
        };
        let worker = v1::WorkerInfo {
            name: "w1".into(),
            state: "ready".into(),
            silent_ms: 120,
            slots: vec![
                slot(0, ""),
                slot(1, "cannot read the store"),
                v1::WorkerSlot {
                    deaths: 3,
                    cordoned: true,
                    cordon_reason: "its engine died".into(),
                    ..slot(2, "")
                },
            ],
            ..v1::WorkerInfo::default()
        };
        let list =
            WorkerList { workers: vec![worker.into()], unconfirmed: None, all_namespaces: false };
        crate::golden::report("worker-list.txt", &list);
        let table = list.table();
        assert!(table.contains("3,000       3  120ms ago"), "{table}");
        assert!(table.contains("ready, 1 cordoned"), "{table}");
        assert!(
            table.contains("cannot read the store; slot 2 cordoned: its engine died"),
            "{table}"
        );
    }
}
