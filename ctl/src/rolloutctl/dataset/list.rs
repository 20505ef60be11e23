//! `rolloutctl dataset list`: every dataset of the namespace.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::shown::Dataset;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, count};

#[derive(Serialize)]
struct DatasetList {
    datasets: Vec<Dataset>,
}

impl Report for DatasetList {
    const KIND: &'static str = "DatasetList";

    fn table(&self) -> String {
        let mut table = Table::new(&["NAME", "SAMPLES", "SHARDS", "FORMAT", "URI"])
            .align(1, Align::Right)
            .align(2, Align::Right);
        for dataset in &self.datasets {
            table.row([
                dataset.name.clone(),
                count(dataset.samples),
                count(dataset.shards.into()),
                dataset.format.clone(),
                dataset.uri.clone(),
            ]);
        }
        table.to_string()
    }
}

/// Prints them.
pub(crate) async fn run(connect: &ConnectArgs, format: Format) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let request = v1::ListDatasetsRequest { namespace: settings.namespace.clone() };
    let answer = settings
        .client(None)?
        .with_leader_opts("list datasets", CallOptions::read(), |channel| {
            let request = request.clone();
            async move { services::datasets(channel).list_datasets(request).await }
        })
        .await?;
    let datasets = answer.datasets.into_iter().map(Dataset::from).collect();
    output::emit(format, &DatasetList { datasets })
}

#[cfg(test)]
mod tests {
    use super::super::shown::sample;
    use super::*;

    #[test]
    fn its_output_is_the_one_that_is_kept() {
        let report = DatasetList { datasets: vec![sample()] };
        crate::snapshots::report("dataset-list.txt", &report);
    }
}
