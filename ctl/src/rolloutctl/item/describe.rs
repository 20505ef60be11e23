//! `rolloutctl item describe RUN ROW|ID...`: everything that the cluster remembers of rows.

use rollout_proto::{Client, services, v1};
use rollout_storage::BlobStore;
use serde::Serialize;

use super::find::RowName;
use super::show::Item;
use crate::completer::{self, Names};
use crate::output::{self, Format, Report, Table};
use crate::rolloutctl::for_each_name::for_each_name;
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which rows to describe.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The run's name
    #[arg(add = completer::of(Names::Runs))]
    run: String,
    /// Row number (from 0 in input order), item id (64 hex digits), or the `id` of the input line. Both ids are slow:
    /// they read the run's segments. A number is always a row number
    #[arg(required = true, value_name = "ROW|ID", allow_hyphen_values = true)]
    rows: Vec<RowName>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemDescription {
    #[serde(flatten)]
    item: Item,
    /// The object with its input, and the row in it.
    segment_key: String,
    segment_row: String,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
}

impl Report for ItemDescription {
    const KIND: &'static str = "Item";

    fn table(&self) -> String {
        let item = &self.item;
        let mut text = String::new();
        let mut line = |title: &str, value: String| {
            text.push_str(&format!("{title:<10}{value}\n"));
        };
        line("Row", item.row.to_string());
        line("State", item.state.into());
        line("Where", item.place());
        line("Input", format!("{} row {}", self.segment_key, self.segment_row));
        line("Strikes", item.strikes.to_string());
        if item.history.is_empty() {
            line("History", "none".into());
            return text + &unconfirmed::line(self.unconfirmed.as_ref());
        }
        let titles =
            ["TIME", "WORKER", "ATTEMPT", "CLASS", "CODE", "RULING", "EVIDENCE", "MESSAGE"];
        let mut table = Table::new(&titles);
        for failed in &item.history {
            table.row([
                failed.at.clone().unwrap_or_else(|| "-".into()),
                failed.worker.clone(),
                failed.attempt.clone(),
                failed.class.clone(),
                failed.code.clone(),
                failed.meaning(),
                failed.evidence(),
                failed.message.clone(),
            ]);
        }
        text.push_str(&format!("\nFailed attempts (the latest {})\n{table}", item.history.len()));
        for failed in &item.history {
            let Some(long_text) = &failed.text else { continue };
            let (attempt, worker) = (&failed.attempt, &failed.worker);
            let (key, shown) = (&long_text.key, long_text.display());
            let title = format!("\nText of attempt {attempt} on {worker} ({key})\n");
            text.push_str(&title);
            shown.lines().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
        text + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

impl Verb for DescribeArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let Self { run, rows } = self;
        for_each_name(rows, globals.format, None, async |row, format| {
            describe(&client, &settings.namespace, &run, row, format).await
        })
        .await
    }
}

async fn describe(
    client: &Client,
    namespace: &str,
    run: &str,
    row: RowName,
    format: Format,
) -> anyhow::Result<()> {
    let row = row.number(client, namespace, run).await?;
    let (namespace, run) = (namespace.to_owned(), run.to_owned());
    let request = v1::DescribeItemRequest { namespace: namespace.clone(), run: run.clone(), row };
    let call = async |channel, request| services::items(channel).describe_item(request).await;
    let sourced = unconfirmed::read_from_any(client, "describe item", &request, call);
    let SourcedAnswer { answer, unconfirmed } = sourced.await?;
    let mut item = Item::from(answer.item.unwrap_or_default());
    if item.history.iter().any(|failed| failed.text.is_some()) {
        let request = v1::DescribeRunRequest { namespace, name: run, run: 0 };
        let call = async |channel, request| services::runs(channel).describe_run(request).await;
        let from = unconfirmed.as_ref();
        let described = unconfirmed::read_from(client, "describe the run", &request, from, call);
        item.read_texts(BlobStore::open(&described.await?.store_url)).await;
    }
    let segment_row = item.row.saturating_sub(answer.segment_first_row).to_string();
    let segment_key = answer.segment.unwrap_or_default().key;
    let described = ItemDescription { item, segment_key, segment_row, unconfirmed };
    output::emit(format, &described)?;
    unconfirmed::end(described.unconfirmed.as_ref())
}
