//! `rolloutctl namespace set-quota NAME...`: the quota of a namespace's runs together.
//!
//! Invariant: a repeat of the request does not revert a quota that was set since.

use rollout_proto::{services, v1};

use super::describe::Described;
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format};
use crate::rolloutctl::Failure;
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which namespace, and what it may have. What is not named stays as it is; 0 lifts a bound.
#[derive(Debug, clap::Args)]
pub(crate) struct SetQuotaArgs {
    /// The namespace's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Namespaces))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Maximum active runs; 0: unlimited; omitted: unchanged
    #[arg(long, value_name = "N")]
    runs_max: Option<u32>,
    /// Maximum pending rows; 0: unlimited; omitted: unchanged
    #[arg(long, value_name = "N")]
    pending_rows_max: Option<u64>,
    /// Maximum rows held by workers; 0: unlimited; omitted: unchanged
    #[arg(long, value_name = "N")]
    running_rows_max: Option<u64>,
    /// Create the namespace if it does not exist
    #[arg(long)]
    pub(in crate::rolloutctl) create: bool,
}

impl SetQuotaArgs {
    /// The request, without its namespace and its number.
    fn wanted(&self) -> Result<v1::SetQuotaRequest, Failure> {
        let bounds = [self.runs_max.map(u64::from), self.pending_rows_max, self.running_rows_max];
        if bounds.iter().all(Option::is_none) && !self.create {
            let text = "say what to bound: --runs-max, --pending-rows-max or --running-rows-max";
            return Err(Failure::usage(text));
        }
        Ok(v1::SetQuotaRequest {
            create: self.create,
            pending_rows_max: self.pending_rows_max,
            running_rows_max: self.running_rows_max,
            runs_max: self.runs_max,
            ..Default::default()
        })
    }
}

impl Verb for SetQuotaArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Sets the quota of each namespace, and prints the quota that now applies.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let wanted = self.wanted()?;
        for_each_name(self.names, globals.format, globals.again, async |namespace, format| {
            set(
                &globals.connect,
                format,
                v1::SetQuotaRequest { namespace, ..wanted.clone() },
                globals.again,
            )
            .await
        })
        .await
    }
}

impl Checked for SetQuotaArgs {
    fn requests(&self, _namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let wanted = self.wanted()?;
        for_each(&self.names, |name| v1::SetQuotaRequest {
            namespace: name.clone(),
            ..wanted.clone()
        })
    }
}

impl Planned for SetQuotaArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.names, async |name| plan(reader, name).await).await
    }
}

async fn plan(reader: &Reader, name: &str) -> anyhow::Result<Plan> {
    let now = match super::describe::fetch(&reader.client, name).await {
        Ok(found) => super::describe::usage(found),
        Err(error) if error.exit_code() == 4 => "it does not exist".to_owned(),
        Err(error) => return Err(error.into()),
    };
    Ok(Plan::new(format!("set the quota of namespace {name}"), now))
}

async fn set(
    connect: &ConnectArgs,
    format: Format,
    wanted: v1::SetQuotaRequest,
    again: Option<RequestName>,
) -> anyhow::Result<()> {
    let client = connect.settings()?.client(None)?;
    let request = |id| v1::SetQuotaRequest { request: Some(id), ..wanted };
    let answer =
        numbered(&client, "set the quota", again, request, |channel, request| async move {
            services::namespaces(channel).set_quota(request).await
        })
        .await?;
    let namespace = answer.namespace.unwrap_or_default().into();
    output::emit(format, &Described { namespace })
}
