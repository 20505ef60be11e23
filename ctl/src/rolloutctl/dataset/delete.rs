//! `rolloutctl dataset delete NAME...`: deletes the cluster's record of a dataset, never the data that it names.
//!
//! Invariant: it deletes nothing without consent, on the terminal or as a flag, nor while a job reads it.

use rollout_proto::{services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report, counted};
use crate::rolloutctl::consent::{self, Consent};
use crate::rolloutctl::dry_run::{
    Checked, Plan, Planned, PlannedRequest, Reader, for_each, planned,
};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::request::{RequestName, numbered};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which dataset.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    /// The dataset's name, or several
    #[arg(value_name = "NAME", required = true)]
    pub(in crate::rolloutctl) names: Vec<String>,
}

#[derive(Serialize)]
struct Deleted {
    name: String,
}

impl Report for Deleted {
    const KIND: &'static str = "DatasetDeleted";

    fn table(&self) -> String {
        format!("dataset {} is deleted; its data stays\n", self.name)
    }
}

impl Verb for DeleteArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: true, dry_run: planned };

    /// Asks for consent and deletes, for each dataset.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        for_each_name(self.names, globals.format, globals.again, async |name, format| {
            delete(&globals.connect, format, name, globals.again, globals.consent).await
        })
        .await
    }
}

impl Checked for DeleteArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        for_each(&self.names, |name| v1::DeleteDatasetRequest {
            request: None,
            namespace: namespace.to_owned(),
            name: name.clone(),
        })
    }
}

impl Planned for DeleteArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        Plan::of_each(&self.names, async |name| plan(reader, name).await).await
    }
}

async fn plan(reader: &Reader, name: &str) -> anyhow::Result<Plan> {
    let found = super::find(reader, name).await?;
    let now = found.map_or("it does not exist".to_owned(), |found| {
        let samples = counted(found.spec.unwrap_or_default().samples, "sample");
        format!("{samples} in {}", counted(found.shards.into(), "shard"))
    });
    Ok(Plan::new(format!("delete dataset {name}; its data stays"), now))
}

async fn delete(
    connect: &ConnectArgs,
    format: Format,
    name: String,
    again: Option<RequestName>,
    yes: Consent,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    consent::confirm(&format!("forgetting dataset {name}"), &name, yes)?;
    let client = settings.client(None)?;
    let request = |id| v1::DeleteDatasetRequest {
        request: Some(id),
        namespace: settings.namespace,
        name: name.clone(),
    };
    numbered(&client, "delete dataset", again, request, |channel, request| async move {
        services::datasets(channel).delete_dataset(request).await
    })
    .await?;
    output::emit(format, &Deleted { name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Deleted { name: "fineweb".into() };
        crate::golden::report("dataset-delete.txt", &report);
    }
}
