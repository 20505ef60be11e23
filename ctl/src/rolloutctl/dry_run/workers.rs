//! What the plans of changes to workers show.

use rollout_proto::{services, v1};

use super::{Plan, Reader};
use crate::output::counted;
use crate::rolloutctl::read::read;

impl Reader {
    /// Plans a change of each worker. `change` is the words before and after a worker's name.
    pub(in crate::rolloutctl) async fn workers(
        &self,
        names: Vec<String>,
        change: (&str, String),
    ) -> anyhow::Result<Plan> {
        let (before, behind) = change;
        let request = v1::ListWorkersRequest { namespace: self.settings.namespace.clone() };
        let answer = read(&self.client, "list workers", &request, |channel, request| async move {
            services::cluster(channel).list_workers(request).await
        })
        .await?;
        let plan = |name: &String| {
            let worker = answer.workers.iter().find(|worker| worker.name == *name);
            let now = worker.map_or("it is not registered".to_owned(), standing);
            Plan::new(format!("{before} {name}{behind}"), now)
        };
        Ok(Plan::of_all(names.iter().map(plan).collect()))
    }
}

/// The state of a worker.
fn standing(worker: &v1::WorkerInfo) -> String {
    let held: u64 = worker.slots.iter().map(|slot| u64::from(slot.rows_held)).sum();
    let cordoned = worker.slots.iter().filter(|slot| slot.cordoned).count();
    format!(
        "{}; {}, {cordoned} cordoned; it holds {}",
        worker.state,
        counted(worker.slots.len() as u64, "slot"),
        counted(held, "row")
    )
}

/// The words for one slot of a worker, or none for all of them.
pub(in crate::rolloutctl) fn of_slot(slot: Option<u32>) -> String {
    slot.map_or(String::new(), |n| format!(" slot {n}"))
}
