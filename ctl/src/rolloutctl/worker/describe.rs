//! `rolloutctl worker describe NAME`: one worker, slot by slot.

use serde::Serialize;

use super::list::{self, WorkerLine};
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, count, duration};
use crate::rolloutctl::Failure;

/// Which worker.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The worker's name
    #[arg(add = completer::of(Names::Workers))]
    name: String,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Described(WorkerLine);

impl Report for Described {
    const KIND: &'static str = "Worker";

    fn table(&self) -> String {
        let worker = &self.0;
        let lines = [
            ("Name", worker.name.clone()),
            ("Namespace", worker.namespace.clone()),
            ("State", worker.state()),
            ("Session", worker.session.to_string()),
            ("Address", worker.address.clone()),
            ("Last heartbeat", format!("{} ago", duration(worker.silent_seconds))),
            ("Rows started", count(worker.started_rows)),
        ];
        let mut text: String =
            lines.into_iter().map(|(key, value)| format!("{key:<15} {value}\n")).collect();
        for (of, version) in &worker.versions {
            text.push_str(&format!("{of:<15} {version}\n"));
        }
        let mut table =
            Table::new(&["SLOT", "ENGINE", "MODELS", "HELD", "DONE", "DEATHS", "PROBLEM"]);
        for column in [0, 3, 4, 5] {
            table = table.align(column, Align::Right);
        }
        for slot in &worker.slots {
            table.row([
                slot.slot.to_string(),
                slot.engine.clone(),
                slot.models.join(","),
                count(slot.rows_held.into()),
                count(slot.rows_done),
                count(slot.deaths),
                slot.problem().unwrap_or_default(),
            ]);
        }
        format!("{text}\n{table}")
    }
}

/// Prints it.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: DescribeArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let workers = list::ask(&settings.client(None)?, &settings.namespace).await?;
    match workers.into_iter().find(|worker| worker.name == args.name) {
        Some(worker) => output::emit(format, &Described(worker)),
        None => {
            let text = format!("no worker {} is registered in {}", args.name, settings.namespace);
            Err(Failure::not_found(text).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use rollout_proto::v1;

    use super::*;

    #[test]
    fn each_slot_is_a_line_with_what_keeps_it_from_work() {
        let slot = |slot, ineligible: &str| v1::WorkerSlot {
            slot,
            engine: "mock".into(),
            models: vec!["m".into()],
            ineligible: ineligible.into(),
            ..v1::WorkerSlot::default()
        };
        let wire = v1::WorkerInfo {
            name: "w1".into(),
            namespace: "default".into(),
            state: "ready".into(),
            slots: vec![slot(0, ""), slot(1, "cannot read the store")],
            ..v1::WorkerInfo::default()
        };
        let text = Described(wire.into()).table();
        assert!(text.contains("Name            w1\n"), "{text}");
        assert!(
            text.contains("   1  mock    m          0     0       0  cannot read the store"),
            "{text}"
        );
    }
}
