//! `rolloutctl dataset describe NAME`.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::shown::Dataset;
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report, count};

/// Which dataset.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The dataset's name
    name: String,
}

#[derive(Serialize)]
struct Described {
    dataset: Dataset,
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
        text
    }
}

/// Prints it.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: DescribeArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let request =
        v1::DescribeDatasetRequest { namespace: settings.namespace.clone(), name: args.name };
    let answer = settings
        .client(None)?
        .with_leader_opts("describe dataset", CallOptions::read(), |channel| {
            let request = request.clone();
            async move { services::datasets(channel).describe_dataset(request).await }
        })
        .await?;
    output::emit(format, &Described { dataset: answer.dataset.unwrap_or_default().into() })
}
