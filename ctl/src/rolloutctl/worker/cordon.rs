//! `rolloutctl worker cordon NAME`: gives no more work to a worker, or to one of its slots.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::counted;
use crate::output::{self, Format, Report};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, of_slot, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which worker, and why.
#[derive(Debug, clap::Args)]
pub(crate) struct CordonArgs {
    /// The worker's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Workers))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Cordon only this slot [default: the whole worker, with the slots that it adds later]
    #[arg(long, value_name = "N")]
    pub(in crate::rolloutctl) slot: Option<u32>,
    /// Reason, stored with the worker
    #[arg(long, value_name = "TEXT", default_value = "")]
    reason: String,
}

impl CordonArgs {
    /// The request for one worker, without its namespace and its number.
    fn wanted(&self, name: &str) -> v1::CordonWorkerRequest {
        v1::CordonWorkerRequest {
            name: name.to_owned(),
            slot: self.slot,
            cordoned: true,
            reason: self.reason.clone(),
            ..Default::default()
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Cordoned {
    worker: String,
    slot: Option<u32>,
    cordoned: bool,
    rows_held: u32,
}

impl Report for Cordoned {
    const KIND: &'static str = "Cordoned";

    fn table(&self) -> String {
        let what = if self.cordoned { "cordoned" } else { "uncordoned" };
        let slot = self.slot.map(|slot| format!(" slot {slot}")).unwrap_or_default();
        let rest = match (self.cordoned, self.rows_held) {
            (true, 1..) => {
                format!("; it finishes the {} that it holds", counted(self.rows_held.into(), "row"))
            }
            _ => String::new(),
        };
        format!("worker {}{slot} is {what}{rest}\n", self.worker)
    }
}

/// Cordons or uncordons, and prints the result.
pub(super) async fn cordon(
    connect: &ConnectArgs,
    format: Format,
    wanted: v1::CordonWorkerRequest,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let client = settings.client(None)?;
    let namespace = settings.namespace;
    let (name, slot, cordoned) = (wanted.name.clone(), wanted.slot, wanted.cordoned);
    let request = |id| v1::CordonWorkerRequest { namespace, request: Some(id), ..wanted };
    let answer =
        numbered(&client, "cordon worker", again, request, |channel, request| async move {
            services::cluster(channel).cordon_worker(request).await
        })
        .await?;
    let slots = answer.worker.unwrap_or_default().slots.into_iter();
    let rows_held = slots.filter(|s| slot.is_none_or(|n| n == s.slot)).map(|s| s.rows_held).sum();
    output::emit(format, &Cordoned { worker: name, slot, cordoned, rows_held })
}

impl Verb for CordonArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names.clone(), globals.format, globals.again, async |name, format| {
            cordon(&globals.connect, format, self.wanted(&name), globals.again).await
        })
        .await
    }
}

impl Checked for CordonArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let namespace = || namespace.to_owned();
        for_each(&self.names, |name| v1::CordonWorkerRequest {
            namespace: namespace(),
            ..self.wanted(name)
        })
    }
}

impl Planned for CordonArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.workers(self.names, ("cordon worker", of_slot(self.slot))).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cordon_reports_rows_that_still_run() {
        let worker = "w1".to_owned();
        let table = Cordoned { worker, slot: Some(1), cordoned: true, rows_held: 7 }.table();
        assert_eq!(table, "worker w1 slot 1 is cordoned; it finishes the 7 rows that it holds\n");
    }

    #[test]
    fn output_matches_the_golden_file() {
        let report = Cordoned { worker: "w1".into(), slot: Some(1), cordoned: true, rows_held: 7 };
        crate::golden::report("worker-cordon.txt", &report);
    }
}
