//! `--dry-run`: whether the leader would accept a command, and what the command would change.
//!
//! Invariant: nothing is proposed or written. The leader checks the requests of a [`Checked`] change as it would check
//! them when they arrive, so the dry run fails with the same error and exit status; its plan only shows what was read.
//! For other changes, the state read here decides: if it shows that the cluster would refuse the command, it is refused
//! here, with the same exit status. Deliberately absent: a promise; state may change before the command runs, and the
//! cluster decides then.

mod certificates;
mod members;
mod runs;
mod settings;
mod snapshots;
#[cfg(test)]
mod tests;
mod training;

use std::fmt;

use rollout_proto::{Client, ClientError, DryRunnable, ErrorCode, services, v1};
use serde::Serialize;

use super::Failure;
use super::barrier::abort::AbortArgs;
use super::each::each;
use super::namespace::set_quota::SetQuotaArgs;
use super::read::read;
use super::rendezvous::close::CloseArgs;
use super::verb::{Boxed, Globals};
use super::worker::cordon::CordonArgs;
use super::worker::drain::DrainArgs;
use super::worker::uncordon::UncordonArgs;
use crate::connect::{ConnectArgs, ConnectSettings};
use crate::output::counted;
use crate::output::{self, Format, Report};
use crate::stdio::print_note;

/// A change whose plan needs the state of the cluster.
pub(super) trait Planned {
    /// What it would change.
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan>;
}

/// A change that the leader checks before its plan is printed.
pub(super) trait Checked: Planned {
    /// The requests that it would send, one for each name: those of the command, except for their numbers, because a dry
    /// run opens no session.
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>>;
}

/// A request for the leader to check.
#[derive(Clone)]
pub(super) struct PlannedRequest {
    /// The object of the request.
    name: String,
    request: v1::DryRunRequest,
}

impl PlannedRequest {
    fn new<T: DryRunnable>(name: &impl fmt::Display, request: &T) -> Self {
        Self { name: name.to_string(), request: v1::DryRunRequest::of(request) }
    }
}

/// A request for each name.
pub(super) fn for_each<N: fmt::Display, T: DryRunnable>(
    names: &[N],
    request: impl Fn(&N) -> T,
) -> anyhow::Result<Vec<PlannedRequest>> {
    Ok(names.iter().map(|name| PlannedRequest::new(name, &request(name))).collect())
}

/// The only request.
pub(super) fn one<T: DryRunnable>(
    name: &impl fmt::Display,
    request: &T,
) -> anyhow::Result<Vec<PlannedRequest>> {
    Ok(vec![PlannedRequest::new(name, request)])
}

pub(super) fn job_name(namespace: &str, job: &str) -> Option<v1::JobName> {
    Some(v1::JobName { namespace: namespace.to_owned(), job: job.to_owned() })
}

impl fmt::Display for PlannedRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// A change whose plan needs only local files.
pub(super) trait PlannedHere {
    /// What it would change.
    fn plan(self, connect: &ConnectArgs) -> anyhow::Result<Plan>;
}

/// The dry run of a [`Checked`] change.
pub(super) fn planned<V: Checked + 'static>(verb: V, globals: &Globals) -> Boxed<'_> {
    Box::pin(async move {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let requests = verb.requests(&settings.namespace)?;
        let checked = check(&client, requests, globals.format).await?;
        let plan = verb.plan(&Reader { client, settings }).await?;
        output::emit(globals.format, &Plan { checked, ..plan })
    })
}

/// Has the leader check the requests. Returns whether it did: a member of an earlier build cannot.
///
/// # Errors
/// The refusal of a request, or the worst of several, which were printed.
async fn check(
    client: &Client,
    requests: Vec<PlannedRequest>,
    format: Format,
) -> anyhow::Result<bool> {
    let mut checked = true;
    each(requests, format, None, async |request, _| {
        let answer = read(client, "dry run", &request.request, |channel, request| async move {
            services::dry_runs(channel).dry_run(request).await
        });
        match answer.await {
            Ok(_) => Ok(()),
            Err(ClientError::Rpc(error)) if error.code == ErrorCode::UnsupportedVersion => {
                checked = false;
                Ok(())
            }
            Err(refused) => Err(refused.into()),
        }
    })
    .await?;
    if !checked {
        print_note(format_args!(
            "the leader's build does not check dry runs: this plan is not checked"
        ));
    }
    Ok(checked)
}

/// The dry run of a [`Planned`] change that the leader does not check.
pub(super) fn client_plan<V: Planned + 'static>(verb: V, globals: &Globals) -> Boxed<'_> {
    Box::pin(async move {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let plan = verb.plan(&Reader { client, settings }).await?;
        output::emit(globals.format, &plan)
    })
}

/// The dry run of a [`PlannedHere`] change.
pub(super) fn planned_here<V: PlannedHere + 'static>(verb: V, globals: &Globals) -> Boxed<'_> {
    Box::pin(async move { output::emit(globals.format, &verb.plan(&globals.connect)?) })
}

/// The refusal of a verb that changes nothing. Exit status 2.
pub(super) fn none() -> anyhow::Error {
    Failure::usage("--dry-run is for commands that change something; this one has no such mode")
        .into()
}

/// The planned change, and what it affects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Plan {
    /// The change, as the words after "would".
    would: String,
    /// The present state.
    now: String,
    /// Whether the leader has checked it, and would accept it now.
    checked: bool,
}

impl Plan {
    fn new(would: impl Into<String>, now: impl Into<String>) -> Self {
        Self { would: would.into(), now: now.into(), checked: false }
    }

    /// Combines the plans of several objects.
    async fn of_each<N>(
        names: &[N],
        plan: impl AsyncFn(&N) -> anyhow::Result<Self>,
    ) -> anyhow::Result<Self> {
        let mut plans = Vec::with_capacity(names.len());
        for name in names {
            plans.push(plan(name).await?);
        }
        Ok(Self::of_all(plans))
    }

    /// Combines several plans.
    fn of_all(plans: Vec<Self>) -> Self {
        let joined =
            |part: fn(&Self) -> &str| plans.iter().map(part).collect::<Vec<_>>().join("; ");
        Self::new(joined(|plan| &plan.would), joined(|plan| &plan.now))
    }
}

impl Report for Plan {
    const KIND: &'static str = "Plan";

    fn table(&self) -> String {
        let checked = if self.checked { "the leader would accept it; " } else { "" };
        format!("would {}\n  now: {}\n{checked}nothing was changed\n", self.would, self.now)
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
fn slot(slot: Option<u32>) -> String {
    slot.map_or(String::new(), |n| format!(" slot {n}"))
}

impl Planned for CordonArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.workers(self.names, ("cordon worker", slot(self.slot))).await
    }
}

impl Planned for UncordonArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.workers(self.names, ("uncordon worker", slot(self.slot))).await
    }
}

impl Planned for DrainArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        reader.workers(self.names, ("drain worker", String::new())).await
    }
}

impl Planned for SetQuotaArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.names, async |name| reader.quota(name).await).await
    }
}

impl Planned for CloseArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.jobs, async |job| reader.rendezvous(job).await).await
    }
}

impl Planned for AbortArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let AbortArgs { job, barriers, .. } = &self;
        Plan::of_each(barriers, async |barrier| reader.barrier(job, barrier).await).await
    }
}

/// Reads the state that a plan needs.
pub(super) struct Reader {
    client: Client,
    settings: ConnectSettings,
}

impl Reader {
    /// Plans a change of each worker. `change` is the words before and after a worker's name.
    async fn workers(&self, names: Vec<String>, change: (&str, String)) -> anyhow::Result<Plan> {
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

    async fn quota(&self, name: &str) -> anyhow::Result<Plan> {
        let now = match super::namespace::describe::ask(&self.client, name).await {
            Ok(found) => super::namespace::describe::usage(found),
            Err(error) if error.exit_code() == 4 => "it does not exist".to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(Plan::new(format!("set the quota of namespace {name}"), now))
    }

    async fn rendezvous(&self, job: &str) -> anyhow::Result<Plan> {
        let namespace = self.settings.namespace.clone();
        let name = v1::JobName { namespace, job: job.to_owned() };
        let request = v1::RendezvousDescribeRequest { job: Some(name), ..Default::default() };
        let described =
            read(&self.client, "describe rendezvous", &request, |channel, request| async move {
                services::rendezvous(channel).describe(request).await
            })
            .await;
        let now = match described {
            Ok(answer) => {
                let info = answer.rendezvous.unwrap_or_default();
                let participants = counted(info.participants.into(), "participant");
                format!("{}, round {}, {participants}", info.state, info.round)
            }
            // An unused rendezvous is closed before its first participant joins.
            Err(error) if error.exit_code() == 4 => "it does not exist yet".to_owned(),
            Err(error) => return Err(error.into()),
        };
        Ok(Plan::new(
            format!("close the rendezvous of job {job} permanently: no participant can join"),
            now,
        ))
    }

    async fn barrier(&self, job: &str, barrier: &str) -> anyhow::Result<Plan> {
        let namespace = self.settings.namespace.clone();
        let name = v1::JobName { namespace, job: job.to_owned() };
        let name = v1::BarrierName { job: Some(name), barrier: barrier.to_owned() };
        let request = v1::BarrierDescribeRequest { barrier: Some(name) };
        let answer =
            read(&self.client, "describe barrier", &request, |channel, request| async move {
                services::barrier(channel).describe(request).await
            })
            .await?;
        let now = answer.generations.last().map_or("it does not exist yet".to_owned(), |last| {
            format!(
                "generation {} is {}: {} of {} arrived",
                last.generation, last.state, last.arrived, last.expected
            )
        });
        Ok(Plan::new(format!("abort barrier {barrier} of {job}, if it waits"), now))
    }
}
