//! `rolloutctl run delete NAME`: an ended run with its input, results and record.
//!
//! Invariant: nothing is deleted without a yes, on the terminal or as a flag; repeating it changes nothing.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use rollout_proto::{CallOptions, Client, ClientError, ErrorCode, services, v1};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::output::{self, Format, Report};

/// Which run.
#[derive(Debug, clap::Args)]
pub(crate) struct DeleteArgs {
    /// The run's name
    name: String,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
    /// Return when all its objects are gone and its name is free
    #[arg(long)]
    wait: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Deleted {
    name: String,
    gone: bool,
}

impl Report for Deleted {
    const KIND: &'static str = "RunDeleted";

    fn table(&self) -> String {
        match self.gone {
            true => format!("run {} is gone\n", self.name),
            false => format!("run {} is being deleted\n", self.name),
        }
    }
}

/// Between two looks whether it is gone.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Asks, deletes, and waits where that is wanted.
pub(crate) async fn run(
    connect: &ConnectArgs,
    format: Format,
    args: DeleteArgs,
) -> anyhow::Result<()> {
    let settings = connect.settings()?;
    if !args.yes && !agreed(&args.name)? {
        anyhow::bail!("run {} was not deleted: say yes, or --yes", args.name);
    }
    let client = settings.client(None)?;
    let session = client.open_session("rolloutctl").await?;
    let pending = session.request();
    let request = v1::DeleteRunRequest {
        request: Some(pending.id()),
        namespace: settings.namespace.clone(),
        name: args.name.clone(),
    };
    client
        .with_leader("delete run", |channel| {
            let request = request.clone();
            async move { services::runs(channel).delete_run(request).await }
        })
        .await?;
    pending.ack();
    while args.wait && there(&client, &settings.namespace, &args.name).await? {
        tokio::time::sleep(LOOK_EVERY).await;
    }
    output::emit(format, &Deleted { name: args.name, gone: args.wait })
}

fn agreed(name: &str) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        return Ok(false);
    }
    eprint!("delete run {name} with its input and its results? [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

async fn there(client: &Client, namespace: &str, name: &str) -> Result<bool, ClientError> {
    let request =
        v1::DescribeRunRequest { namespace: namespace.to_owned(), name: name.to_owned(), run: 0 };
    let described = client
        .with_leader_opts("describe run", CallOptions::read(), |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await }
        })
        .await;
    match described {
        Ok(_) => Ok(true),
        Err(ClientError::Rpc(error)) if error.code == ErrorCode::RunNotFound => Ok(false),
        Err(error) => Err(error),
    }
}
