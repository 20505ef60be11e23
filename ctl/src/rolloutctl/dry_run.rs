//! `--dry-run`: whether the leader would accept a command, and what the command would change.
//!
//! Invariant: nothing is proposed or written. The leader checks the requests of a [`Checked`] change as it would check
//! them when they arrive, so the dry run fails with the same error and exit status; its plan only shows what was read.
//! For other changes, the state read here decides: if it shows that the cluster would refuse the command, it is refused
//! here, with the same exit status. Absent: a promise; state may change before the command runs, and the
//! cluster decides then.

mod runs;
#[cfg(test)]
mod tests;
mod workers;

pub(super) use workers::of_slot;

use std::fmt;

use rollout_proto::{Client, ClientError, DryRunnable, ErrorCode, services, v1};
use serde::Serialize;

use super::for_each_name::for_each_name;
use super::read::read;
use super::verb::{Boxed, Globals};
use crate::connect::{ConnectArgs, ConnectSettings};
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
    for_each_name(requests, format, None, async |request, _| {
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
    pub(super) fn new(would: impl Into<String>, now: impl Into<String>) -> Self {
        Self { would: would.into(), now: now.into(), checked: false }
    }

    /// Combines the plans of several objects.
    pub(super) async fn of_each<N>(
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
    pub(super) fn of_all(plans: Vec<Self>) -> Self {
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

/// Reads the state that a plan needs.
pub(super) struct Reader {
    pub(super) client: Client,
    pub(super) settings: ConnectSettings,
}
