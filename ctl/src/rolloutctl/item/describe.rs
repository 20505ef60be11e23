//! `rolloutctl item describe RUN ROW|ID`: one row, and everything that the cluster remembers of it.

use rollout_proto::{services, v1};
use rollout_storage::BlobStore;
use serde::Serialize;

use super::find::RowName;
use super::show::Item;
use crate::completer::{self, Names};
use crate::output::{self, Report, Table};
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// Which row to describe.
#[derive(Debug, clap::Args)]
pub(crate) struct DescribeArgs {
    /// The run's name
    #[arg(add = completer::of(Names::Runs))]
    run: String,
    /// Row number (from 0 in input order), item id (64 hex digits), or the `id` of the input line
    /// (slow: reads the run's segments)
    #[arg(value_name = "ROW|ID", allow_hyphen_values = true)]
    row: RowName,
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
        let row = self.row.number(&client, &settings.namespace, &self.run).await?;
        let request = v1::DescribeItemRequest {
            namespace: settings.namespace.clone(),
            run: self.run.clone(),
            row,
        };
        let sourced = unconfirmed::read_from_any(
            &client,
            "describe item",
            &request,
            async |channel, request| services::items(channel).describe_item(request).await,
        );
        let SourcedAnswer { answer, unconfirmed } = sourced.await?;
        let mut item = Item::from(answer.item.unwrap_or_default());
        if item.history.iter().any(|failed| failed.text.is_some()) {
            let (run, namespace) = (self.run, settings.namespace);
            let request = v1::DescribeRunRequest { namespace, name: run, run: 0 };
            let call = async |channel, request| services::runs(channel).describe_run(request).await;
            let from = unconfirmed.as_ref();
            let described =
                unconfirmed::read_from(&client, "describe the run", &request, from, call);
            item.read_texts(BlobStore::open(&described.await?.store_url)).await;
        }
        let segment_row = item.row.saturating_sub(answer.segment_first_row).to_string();
        let segment_key = answer.segment.unwrap_or_default().key;
        let described = ItemDescription { item, segment_key, segment_row, unconfirmed };
        output::emit(globals.format, &described)?;
        unconfirmed::end(described.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Format;

    #[test]
    fn a_description_tells_the_whole_history() {
        let suspect = v1::FailedTry {
            worker: "w1".into(),
            class: "engine_died".into(),
            ruling: v1::Ruling::Suspect as i32,
            among: 32,
            evidence: Some(v1::Evidence { signal: Some(9), ..v1::Evidence::default() }),
            ..v1::FailedTry::default()
        };
        let poison =
            v1::FailedTry { ruling: v1::Ruling::Poison as i32, among: 0, ..suspect.clone() };
        let item = v1::Item {
            row: 20,
            state: v1::ItemState::Failed as i32,
            strikes: 2,
            history: vec![suspect, poison],
            ..v1::Item::default()
        };
        let report = ItemDescription {
            item: item.into(),
            segment_key: "default/chat/segments/ab".into(),
            segment_row: "20".into(),
            unconfirmed: None,
        };
        crate::golden::report("item-describe.txt", &report);
        let text = report.table();
        assert!(text.contains("suspect (one of 32)  signal 9"), "{text}");
        assert!(text.contains("Strikes   2\n"), "{text}");
        let json = output::render(Format::Json, &report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["data"]["history"][1]["ruling"], "poison");
        assert_eq!(value["data"]["row"], "20");
    }

    #[test]
    fn a_duplicated_row_is_shown_under_both_that_have_it() {
        let holder = v1::Holder { worker: "w2".into(), slot: 3, attempt: (9 << 13) + 4 };
        let item = v1::Item {
            state: v1::ItemState::Running as i32,
            worker: "w1".into(),
            attempt: (7 << 13) + 1,
            duplicate: Some(holder),
            ..v1::Item::default()
        };
        let (segment_key, segment_row) = (String::new(), "0".into());
        let report =
            ItemDescription { item: item.into(), segment_key, segment_row, unconfirmed: None };
        let text = report.table();
        assert!(text.contains("w1/0 (attempt 7.1), and w2/3 (attempt 9.4)\n"), "{text}");
        let json = output::render(Format::Json, &report).unwrap();
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let wanted = serde_json::json!({ "worker": "w2", "slot": 3, "attempt": "9.4" });
        assert_eq!(value["data"]["duplicate"], wanted);
        assert_eq!(value["data"]["worker"], "w1");
    }
}
