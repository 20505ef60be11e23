//! `rolloutctl run delete NAME`: an ended run with its input, results and record.
//!
//! Invariant: it deletes nothing without consent, on the terminal or as a flag; repeating it changes nothing.

use std::time::Duration;

use rollout_proto::{Client, ClientError, ErrorCode, services, v1};
use serde::Serialize;

use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::consent::{self, Consent};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which run.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    /// The run's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Runs))]
    pub(in crate::rolloutctl) names: Vec<String>,
    /// Return when all its objects are gone and its name is free
    #[arg(long)]
    wait: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Deleted {
    name: String,
    gone: bool,
}

impl Report for Deleted {
    const KIND: &'static str = "RunDeleted";

    fn table(&self) -> String {
        match self.gone {
            true => format!("run {} is deleted\n", self.name),
            false => format!("run {} is being deleted\n", self.name),
        }
    }
}

/// How often to check whether it is gone.
const LOOK_EVERY: Duration = Duration::from_millis(250);

impl Verb for DeleteArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: true, dry_run: planned };

    /// Asks for consent, deletes and, if requested, waits, for each run.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let DeleteArgs { names, wait } = self;
        for_each_name(names, globals.format, globals.again, async |name, format| {
            delete(&globals.connect, format, (name, wait), globals.again, globals.consent).await
        })
        .await
    }
}

impl Checked for DeleteArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.names, |name| request(namespace, name))
    }
}

impl Planned for DeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let would = |name: &str| format!("delete run {name} with its input, results and record");
        reader.runs(&self.names, would).await
    }
}

/// The request for one run, without its number.
fn request(namespace: &str, name: &str) -> v1::DeleteRunRequest {
    v1::DeleteRunRequest { request: None, namespace: namespace.to_owned(), name: name.to_owned() }
}

async fn delete(
    connect: &ConnectArgs,
    format: Format,
    (name, wait): (String, bool),
    again: Option<RequestName>,
    yes: Consent,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let what = format!("deleting run {name} with its input and its results");
    consent::confirm(&what, &name, yes)?;
    let client = settings.client(None)?;
    let wanted = request(&settings.namespace, &name);
    let request = |id| v1::DeleteRunRequest { request: Some(id), ..wanted };
    numbered(&client, "delete run", again, request, |channel, request| async move {
        services::runs(channel).delete_run(request).await
    })
    .await?;
    while wait && there(&client, &settings.namespace, &name).await? {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    output::emit(format, &Deleted { name, gone: wait })
}

async fn there(client: &Client, namespace: &str, name: &str) -> Result<bool, ClientError> {
    let request =
        v1::DescribeRunRequest { namespace: namespace.to_owned(), name: name.to_owned(), run: 0 };
    let described = read(client, "describe run", &request, |channel, request| async move {
        services::runs(channel).describe_run(request).await
    })
    .await;
    match described {
        Ok(_) => Ok(true),
        Err(ClientError::Rpc(error)) if error.code == ErrorCode::RunNotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Deleted { name: "eval".into(), gone: false };
        crate::golden::report("run-delete.txt", &report);
    }
}
