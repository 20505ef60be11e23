//! `rolloutctl dataset describe NAME`.

use rollout_proto::{Client, ClientError, services, v1};
use serde::Serialize;

use super::summary::Dataset;
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report, count};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which dataset.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The dataset's name, or several
    #[arg(value_name = "NAME", required = true)]
    names: Vec<String>,
}

#[derive(Serialize)]
struct Described {
    dataset: Dataset,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
}

impl Report for Described {
    const KIND: &'static str = "Dataset";

    fn table(&self) -> String {
        let d = &self.dataset;
        let order = match d.in_order {
            true => "by number".to_owned(),
            false => format!("shuffled by seed {} (version {})", d.seed, d.order_version),
        };
        let mut text = format!(
            "name     {}\nuri      {}\nformat   {}\nsamples  {}\nshards   {} of {} samples\norder    {order}\n",
            d.name,
            d.uri,
            d.format,
            count(d.samples),
            count(d.shards.into()),
            count(d.shard_samples.into()),
        );
        for (key, value) in &d.metadata {
            text.push_str(&format!("  {key} = {value}\n"));
        }
        text + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

/// Asks the leader for it.
pub(in crate::rolloutctl) async fn fetch(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<v1::Dataset, ClientError> {
    let request =
        v1::DescribeDatasetRequest { namespace: namespace.to_owned(), name: name.to_owned() };
    let answer = read(client, "describe dataset", &request, |channel, request| async move {
        services::datasets(channel).describe_dataset(request).await
    })
    .await?;
    Ok(answer.dataset.unwrap_or_default())
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
    let client = settings.client(None)?;
    let request = v1::DescribeDatasetRequest { namespace: settings.namespace, name };
    let sourced = unconfirmed::read_from_any(
        &client,
        "describe dataset",
        &request,
        async |channel, request| services::datasets(channel).describe_dataset(request).await,
    );
    let SourcedAnswer { answer, unconfirmed } = sourced.await?;
    let dataset = answer.dataset.unwrap_or_default().into();
    let described = Described { dataset, unconfirmed };
    output::emit(format, &described)?;
    unconfirmed::end(described.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = Described { dataset: sample(), unconfirmed: None };
        crate::golden::report("dataset-describe.txt", &report);
    }
}
