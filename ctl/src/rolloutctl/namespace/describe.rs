//! `rolloutctl namespace describe NAME`.

use rollout_proto::{Client, ClientError, services, v1};
use serde::Serialize;

use super::summary::Namespace;
use crate::completer::{self, Names};
use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::read::read;
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which namespace.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The namespace's name, or several
    #[arg(value_name = "NAME", required = true, add = completer::of(Names::Namespaces))]
    names: Vec<String>,
}

#[derive(Serialize)]
pub(super) struct Described {
    pub(super) namespace: Namespace,
}

impl Report for Described {
    const KIND: &'static str = "Namespace";

    fn table(&self) -> String {
        self.namespace.described()
    }
}

pub(in crate::rolloutctl) async fn fetch(
    client: &Client,
    name: &str,
) -> Result<v1::NamespaceInfo, ClientError> {
    let request = v1::DescribeNamespaceRequest { namespace: name.to_owned() };
    let answer = read(client, "describe namespace", &request, |channel, request| async move {
        services::namespaces(channel).describe_namespace(request).await
    })
    .await?;
    Ok(answer.namespace.unwrap_or_default())
}

/// The namespace in one line, for a plan.
pub(in crate::rolloutctl) fn usage(wire: v1::NamespaceInfo) -> String {
    let n = Namespace::from(wire);
    format!(
        "runs {}, pending rows {}, running rows {}",
        n.runs.text(),
        n.pending_rows.text(),
        n.running_rows.text()
    )
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
    let client = connect.settings()?.client(None)?;
    let namespace = fetch(&client, &name).await?.into();
    output::emit(format, &Described { namespace })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let namespace = Namespace::sample();
        crate::golden::report("namespace-describe.txt", &Described { namespace });
    }
}
