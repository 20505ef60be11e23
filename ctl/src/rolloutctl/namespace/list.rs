//! `rolloutctl namespace list`: those that the certificate names.

use rollout_proto::{CallOptions, services, v1};
use serde::Serialize;

use super::shown::Namespace;
use crate::connect::ConnectArgs;
use crate::output::{self, Align, Format, Report, Table};
use crate::rolloutctl::choose::ChooseArgs;

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
                namespace.runs.told(),
                namespace.pending_rows.told(),
                namespace.running_rows.told(),
            ]);
        }
        table.to_string()
    }
}

/// Prints them.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    choose: ChooseArgs,
) -> anyhow::Result<()> {
    let client = connect.settings()?.client(None)?;
    let answer = client
        .with_leader_opts("list namespaces", CallOptions::read(), |channel| async move {
            services::namespaces(channel).list_namespaces(v1::ListNamespacesRequest {}).await
        })
        .await?;
    let mut namespaces: Vec<Namespace> =
        answer.namespaces.into_iter().map(Namespace::from).collect();
    choose.apply(&mut namespaces)?;
    output::emit(format, &NamespaceList { namespaces })
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
