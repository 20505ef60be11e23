//! `rolloutctl dataset list`: every dataset of the namespace.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::shown::Dataset;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table, count};
use crate::rolloutctl::choose::ChooseArgs;
use crate::rolloutctl::unconfirmed::{self, Asked, Unconfirmed};

#[derive(Serialize)]
struct DatasetList {
    datasets: Vec<Dataset>,
    /// None: the leader says so.
    unconfirmed: Option<Unconfirmed>,
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
        table.to_string() + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

/// Prints them.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    choose: ChooseArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    let request = v1::ListDatasetsRequest { namespace: settings.namespace.clone() };
    let client = settings.client(None)?;
    let asked = unconfirmed::ask(&client, "list datasets", &request, async |channel, request| {
        services::datasets(channel).list_datasets(request).await
    });
    let Asked { answer, unconfirmed } = asked.await?;
    let mut datasets: Vec<Dataset> = answer.datasets.into_iter().map(Dataset::from).collect();
    choose.apply(&mut datasets)?;
    let list = DatasetList { datasets, unconfirmed };
    output::emit(format, &list)?;
    unconfirmed::end(list.unconfirmed.as_ref())
}

#[cfg(test)]
mod tests {
    use super::super::shown::sample;
    use super::*;

    #[test]
    fn its_output_is_the_one_that_is_kept() {
        let report = DatasetList { datasets: vec![sample()], unconfirmed: None };
        crate::golden::report("dataset-list.txt", &report);
    }
}
