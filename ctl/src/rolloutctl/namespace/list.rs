//! `rolloutctl namespace list`: those that the certificate names.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::summary::Namespace;
use crate::output::{self, Align, Report, Table};
use crate::rolloutctl::list_options::ListOptions;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

#[derive(Serialize)]
struct NamespaceList {
    namespaces: Vec<Namespace>,
}

impl Report for NamespaceList {
    const KIND: &'static str = "NamespaceList";

    fn table(&self) -> String {
        let mut table = Table::new(&["NAME", "RUNS", "PENDING ROWS", "RUNNING ROWS"])
            .align(1, Align::Right)
            .align(2, Align::Right)
            .align(3, Align::Right);
        for namespace in &self.namespaces {
            table.row([
                namespace.name.clone(),
                namespace.runs.text(),
                namespace.pending_rows.text(),
                namespace.running_rows.text(),
            ]);
        }
        table.to_string()
    }
}

/// Which namespaces.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    options: ListOptions,
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let client = globals.connect.settings()?.client(None)?;
        let answer = client
            .with_leader_opts("list namespaces", CallOptions::read(), |channel| async move {
                services::namespaces(channel).list_namespaces(v1::ListNamespacesRequest {}).await
            })
            .await?;
        let mut namespaces: Vec<Namespace> =
            answer.namespaces.into_iter().map(Namespace::from).collect();
        self.options.apply(&mut namespaces)?;
        output::emit(globals.format, &NamespaceList { namespaces })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let namespaces = vec![Namespace::sample()];
        crate::golden::report("namespace-list.txt", &NamespaceList { namespaces });
    }
}
