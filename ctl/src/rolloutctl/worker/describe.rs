//! `rolloutctl worker describe NAME`: one worker, slot by slot.

use serde::Serialize;

use super::list::{self, WorkerLine};
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, count};
use crate::rolloutctl::Failure;
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::unconfirmed::{self, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which worker.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The worker's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Workers))]
    names: Vec<String>,
}

#[derive(Serialize)]
struct Described {
    #[serde(flatten)]
    worker: WorkerLine,
    /// The source of the answer if there is no leader.
    #[serde(skip_serializing_if = "Option::is_none")]
    unconfirmed: Option<Unconfirmed>,
}

impl Report for Described {
    const KIND: &'static str = "Worker";

    fn table(&self) -> String {
        let worker = &self.worker;
        let lines = [
            ("Name", worker.name.clone()),
            ("Namespace", worker.namespace.clone()),
            ("State", worker.state()),
            ("Session", worker.session.to_string()),
            ("Address", worker.address.clone()),
            ("Last heartbeat", worker.last_heartbeat()),
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
        format!("{text}\n{table}{}", unconfirmed::line(self.unconfirmed.as_ref()))
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names, globals.format, None, async |name, format| {
            one(&globals.connect, format, name).await
        })
        .await
    }
}

async fn one(connect: &ConnectArgs, format: Format, name: String) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let sourced = list::fetch(&settings.client(None)?, &settings.namespace).await?;
    let Some(worker) = sourced.answer.into_iter().find(|worker| worker.name == name) else {
        // An unconfirmed answer does not prove that the worker does not exist.
        unconfirmed::end(sourced.unconfirmed.as_ref())?;
        let text = format!("no worker {name} is registered in {}", settings.namespace);
        return Err(Failure::not_found(text).into());
    };
    let described = Described { worker, unconfirmed: sourced.unconfirmed };
    output::emit(format, &described)?;
    unconfirmed::end(described.unconfirmed.as_ref())
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
        let report = Described { worker: wire.into(), unconfirmed: None };
        crate::golden::report("worker-describe.txt", &report);
        let text = report.table();
        assert!(text.contains("Name            w1\n"), "{text}");
        assert!(
            text.contains("   1  mock    m          0     0       0  cannot read the store"),
            "{text}"
        );
    }
}
