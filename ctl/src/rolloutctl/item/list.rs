//! `rolloutctl item list RUN --state failed`: rows of a run in one state.

use rollout_proto::{services, v1};
use serde::Serialize;

use super::show::Item;
use crate::completer::{self, Names};
use crate::output::{self, Align, Report, Table, counted};
use crate::rolloutctl::Failure;
use crate::rolloutctl::list_options::{OrderArgs, TitleArgs, cut};
use crate::rolloutctl::unconfirmed::{self, SourcedAnswer, Unconfirmed};
use crate::rolloutctl::verb::{Globals, Kind, Verb};
use crate::stdio::print_note;

/// The call, in errors.
const WHAT: &str = "list items";
/// Rows per request.
const PAGE: u32 = 500;
/// Rows that can be sorted, because they are all in memory.
const ORDERED_MAX: u64 = 100_000;

/// Why nothing is printed.
const TOO_MANY: &str = "more than 100,000 rows are in this state, too many to order or select from: begin at a later row \
     (--from), or read them without --sort-by and --selector (--limit 0 -o jsonl)";

/// The states that can be listed.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum State {
    Failed,
    Waiting,
    Running,
    Pending,
    Done,
}

impl State {
    fn wire(self) -> v1::ItemState {
        match self {
            State::Failed => v1::ItemState::Failed,
            State::Waiting => v1::ItemState::Waiting,
            State::Running => v1::ItemState::Running,
            State::Pending => v1::ItemState::Pending,
            State::Done => v1::ItemState::Done,
        }
    }
}

/// Which rows to list.
#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// The run's name
    #[arg(add = completer::of(Names::Runs))]
    run: String,
    /// State of the rows
    #[arg(long, value_enum, default_value = "failed")]
    state: State,
    /// Maximum number of rows; 0: all. With --sort-by or --selector, the command fails if more than
    /// 100,000 rows are in this state
    #[arg(long, value_name = "ROWS", default_value_t = 100)]
    limit: u64,
    /// First row to list
    #[arg(long, value_name = "ROW", default_value_t = 0)]
    from: u64,
    // With these, all rows in the state are read before the limit cuts.
    #[command(flatten)]
    order: OrderArgs,
    #[command(flatten)]
    titles: TitleArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ItemList {
    items: Vec<Item>,
    /// The row to continue from; none if these were all.
    next_row: Option<String>,
    /// None if the leader answered.
    unconfirmed: Option<Unconfirmed>,
}

impl Report for ItemList {
    const KIND: &'static str = "ItemList";

    fn table(&self) -> String {
        let titles = ["ROW", "STATE", "WHERE", "STRIKES", "CLASS", "CODE", "MESSAGE"];
        let mut table = Table::new(&titles).align(0, Align::Right).align(3, Align::Right);
        for item in &self.items {
            let last = item.history.last();
            let text = |text: Option<&String>| text.cloned().unwrap_or_else(|| "-".into());
            table.row([
                item.row.to_string(),
                item.state.into(),
                item.place(),
                item.strikes.to_string(),
                text(last.map(|last| &last.class)),
                text(last.map(|last| &last.code)),
                text(last.map(|last| &last.message)),
            ]);
        }
        let mut text = table.to_string();
        if let Some(next) = &self.next_row {
            text.push_str(&format!("there are more: --from {next}\n"));
        }
        text + &unconfirmed::line(self.unconfirmed.as_ref())
    }
}

impl Verb for ListArgs {
    const KIND: Kind<Self> = Kind::ReadOnly;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let settings = globals.connect.settings()?;
        let client = settings.client(None)?;
        let limit = if self.limit == 0 { u64::MAX } else { self.limit };
        let most = if self.order.is_requested() { ORDERED_MAX } else { limit };
        let mut items: Vec<Item> = Vec::new();
        let page = |from_row: u64, had: usize| v1::ListItemsRequest {
            namespace: settings.namespace.clone(),
            run: self.run.clone(),
            state: self.state.wire() as i32,
            from_row,
            limit: most.saturating_sub(had as u64).min(PAGE.into()) as u32,
        };
        let call = async |channel, request| services::items(channel).list_items(request).await;
        let first = page(self.from, 0);
        let sourced = unconfirmed::read_from_any(&client, WHAT, &first, call).await?;
        let SourcedAnswer { mut answer, unconfirmed } = sourced;
        let mut next_row = loop {
            items.extend(answer.items.into_iter().map(Item::from));
            let next = match answer.next_row {
                0 => break None,
                next if items.len() as u64 >= most => break Some(next.to_string()),
                next => page(next, items.len()),
            };
            answer =
                unconfirmed::read_from(&client, WHAT, &next, unconfirmed.as_ref(), call).await?;
        };
        if self.order.is_requested() {
            if next_row.take().is_some() {
                return Err(Failure::usage(TOO_MANY).into());
            }
            self.order.apply(&mut items)?;
            let more = cut(&mut items, usize::try_from(limit).unwrap_or(usize::MAX));
            if more > 0 {
                print_note(format_args!("{} not shown: --limit", counted(more as u64, "more row")));
            }
        }
        self.titles.apply();
        let list = ItemList { items, next_row, unconfirmed };
        output::emit(globals.format, &list)?;
        unconfirmed::end(list.unconfirmed.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_where_rows_are_and_how_they_failed_last() {
        let failed = v1::FailedTry {
            class: "engine_died".into(),
            code: "SIGKILL".into(),
            message: "signal 9".into(),
            ruling: v1::Ruling::Poison as i32,
            ..v1::FailedTry::default()
        };
        let poison = v1::Item {
            row: 17,
            state: v1::ItemState::Failed as i32,
            strikes: 2,
            history: vec![failed],
            ..v1::Item::default()
        };
        let runs = v1::Item {
            row: 18,
            state: v1::ItemState::Running as i32,
            worker: "w1".into(),
            attempt: (7 << 13) + 1,
            trial_rows: 4,
            ..v1::Item::default()
        };
        let at = |worker: &str| v1::SlotName { worker: worker.into(), slot: 1 };
        let avoids = v1::Item {
            row: 19,
            state: v1::ItemState::Pending as i32,
            avoids: vec![at("w1"), at("w2")],
            avoids_ms: 412_000,
            ..v1::Item::default()
        };
        let items = vec![poison.into(), runs.into(), avoids.into()];
        let list = ItemList { items, next_row: Some("20".into()), unconfirmed: None };
        crate::golden::report("item-list.txt", &list);
        let table = list.table();
        assert!(table.contains("17  failed   -"), "{table}");
        assert!(table.contains("engine_died  SIGKILL  signal 9"), "{table}");
        assert!(table.contains("w1/0 (attempt 7.1), on trial (4 rows)"), "{table}");
        assert!(table.contains("pending  avoids w1/1 and w2/1 for 412s at most"), "{table}");
        assert!(table.ends_with("there are more: --from 20\n"), "{table}");
    }
}
