//! `rolloutctl dataset list`: every dataset of the namespace, or of all.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::summary::Dataset;
use crate::output::{self, Align, Report, Table, count};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::namespace::all_namespaces::AllNamespaces;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which datasets.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    all_namespaces: AllNamespaces,
    #[command(flatten)]
    options: ListOptions,
}

#[derive(Serialize)]
struct DatasetList {
    datasets: Vec<Dataset>,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
    /// Whether it covers several namespaces.
    #[serde(skip)]
    all_namespaces: bool,
}

impl Report for DatasetList {
    const KIND: &'static str = "DatasetList";

    fn table(&self) -> String {
        let namespace: &[&str] = if self.all_namespaces { &["NAMESPACE"] } else { &[] };
        let mut table = Table::new(namespace)
            .and(&["NAME", "SAMPLES", "SHARDS", "FORMAT", "URI"])
            .align(namespace.len() + 1, Align::Right)
            .align(namespace.len() + 2, Align::Right);
        for dataset in &self.datasets {
            let namespace = self.all_namespaces.then(|| dataset.namespace.clone());
            let cells = [
                dataset.name.clone(),
                count(dataset.samples),
                count(dataset.shards.into()),
                dataset.format.clone(),
                dataset.uri.clone(),
            ];
            table.row(namespace.into_iter().chain(cells));
        }
        table.to_string() + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let namespace = self.all_namespaces.namespace(settings.namespace);
        let request = v1::ListDatasetsRequest { namespace };
        let sourced = unconfirmed::read_from_any(
            &client,
            "list datasets",
            &request,
            async |channel, request| services::datasets(channel).list_datasets(request).await,
        );
        let SourcedAnswer { answer, unconfirmed } = sourced.await?;
        let mut datasets: Vec<Dataset> = answer.datasets.into_iter().map(Dataset::from).collect();
        self.options.apply(&mut datasets)?;
        let all_namespaces = self.all_namespaces.is_requested();
        let list = DatasetList { datasets, unconfirmed, all_namespaces };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::super::summary::sample;
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report =
            DatasetList { datasets: vec![sample()], unconfirmed: None, all_namespaces: false };
        crate::golden::report("dataset-list.txt", &report);
    }
}
