//! `rolloutctl dataset create NAME`: the data that training jobs read.
//!
//! Invariant: the same name and spec are the same dataset; another spec under a taken name is refused.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::Dataset;
use crate::output::counted;
use crate::output::{self, Report};
use crate::rolloutctl::dry_run::{Checked, Plan, Planned, PlannedRequest, Reader, one, planned};
use crate::rolloutctl::request::Numbered;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// What it is.
#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// The dataset's name
    pub(in crate::rolloutctl) name: String,
    /// URI for the reader; {shard} or {shard:5} stands for a shard's number
    #[arg(long)]
    uri: String,
    /// Number of samples
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
    /// Samples per shard; the last shard may have fewer
    #[arg(long, value_name = "NUMBER", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    shard_samples: u32,
    /// Format name for the reader, such as parquet or webdataset
    #[arg(long, value_name = "TEXT", default_value = "")]
    format: String,
    /// Read the shards by number in every epoch, instead of in a different order per epoch
    #[arg(long)]
    in_order: bool,
    /// Seed of the order of the epochs
    #[arg(long, value_name = "NUMBER", default_value_t = 42)]
    seed: u64,
    /// Metadata for the reader; repeatable
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
}

impl CreateArgs {
    pub(in crate::rolloutctl) fn spec(&self) -> v1::DatasetSpec {
        v1::DatasetSpec {
            uri: self.uri.clone(),
            format: self.format.clone(),
            samples: self.samples,
            shard_samples: self.shard_samples,
            in_order: self.in_order,
            seed: self.seed,
            metadata: self.metadata.iter().cloned().collect(),
        }
    }
}

#[derive(Serialize)]
struct Created {
    dataset: Dataset,
}

impl Report for Created {
    const KIND: &'static str = "DatasetCreated";

    fn table(&self) -> String {
        let d = &self.dataset;
        let (samples, shards) = (counted(d.samples, "sample"), counted(d.shards.into(), "shard"));
        format!("dataset {} has {samples} in {shards}\n", d.name)
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("it has no =")?;
    Ok((key.to_owned(), value.to_owned()))
}

impl Verb for CreateArgs {
    const KIND: Kind<Self> = Kind::Change { numbered: true, confirm: false, dry_run: planned };

    /// Creates it, or finds it.
    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let number = Numbered::new(&client, globals.again).await?;
        let spec = self.spec();
        let request = v1::CreateDatasetRequest {
            request: Some(number.id()),
            namespace: settings.namespace.clone(),
            name: self.name,
            spec: Some(spec),
        };
        let answer = client
            .with_leader("create dataset", |channel| {
                let request = request.clone();
                async move { services::datasets(channel).create_dataset(request).await }
            })
            .await
            .map_err(|error| number.failed(error))?;
        output::emit(
            globals.format,
            &Created { dataset: answer.dataset.unwrap_or_default().into() },
        )
    }
}

impl Checked for CreateArgs {
    fn requests(&self, namespace: &str) -> anyhow::Result<Vec<PlannedRequest>> {
        let request = v1::CreateDatasetRequest {
            request: None,
            namespace: namespace.to_owned(),
            name: self.name.clone(),
            spec: Some(self.spec()),
        };
        one(&self.name, &request)
    }
}

impl Planned for CreateArgs {
    async fn plan(self, reader: &Reader) -> anyhow::Result<Plan> {
        let found = super::find(reader, &self.name).await?;
        let now = match &found {
            None => "it does not exist",
            Some(found) if found.spec == Some(self.spec()) => {
                "it exists with the same definition: no change"
            }
            Some(_) => "it exists with a different definition",
        };
        Ok(Plan::new(format!("create dataset {}", self.name), now))
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Created { dataset: sample() };
        crate::golden::report("dataset-create.txt", &report);
    }
}
