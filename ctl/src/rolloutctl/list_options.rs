//! Which items of a list are shown, and in which order: `--selector`, `--sort-by`, `--limit`, `--no-headers`.
//!
//! Invariant: keys are those of the list's JSON, so every printed field is a key; a key that no item has is refused
//! with the existing keys. Absent: filtering by the cluster; the whole list is read.

use std::cmp::Ordering;

use serde::Serialize;
use serde_json::Value;

use super::Failure;
use crate::output::{self, counted};
use crate::stdio::print_note;

/// The order of the listed elements, and which of them are listed.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "List")]
pub(crate) struct OrderArgs {
    /// Sort by a field of the JSON, such as name or counts.failed; a leading - sorts in descending
    /// order
    #[arg(long, value_name = "[-]KEY", allow_hyphen_values = true)]
    sort_by: Option<String>,
    /// Only elements whose JSON fields match: KEY=VALUE or KEY!=VALUE; several conditions must all
    /// hold
    #[arg(short = 'l', long, value_name = "KEY=VALUE", value_delimiter = ',')]
    selector: Vec<Condition>,
}

/// Which elements of a list are shown.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "List")]
pub(crate) struct ListOptions {
    #[command(flatten)]
    order: OrderArgs,
    /// Maximum number of elements
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    #[command(flatten)]
    titles: TitleArgs,
}

/// Whether a table has its titles.
#[derive(Debug, Clone, Copy, Default, clap::Args)]
#[command(next_help_heading = "List")]
pub(crate) struct TitleArgs {
    /// Omit the column titles
    #[arg(long)]
    no_headers: bool,
}

impl TitleArgs {
    /// Applies the table settings to the whole process.
    pub(super) fn apply(self) {
        if self.no_headers {
            output::leave_out_titles();
        }
    }
}

/// One condition of a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Condition {
    key: String,
    value: String,
    equal: bool,
}

impl std::str::FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = || format!("{text:?} is neither KEY=VALUE nor KEY!=VALUE");
        let (key, value) = text.split_once('=').ok_or_else(bad)?;
        let (key, equal) = match key.strip_suffix('!') {
            Some(key) => (key, false),
            None => (key, true),
        };
        match key.is_empty() {
            true => Err(bad()),
            false => Ok(Self { key: key.to_owned(), value: value.to_owned(), equal }),
        }
    }
}

impl ListOptions {
    /// Keeps the selected items, in the requested order.
    ///
    /// # Errors
    /// Exit status 2 for a key that no item has.
    pub(super) fn apply<T: Serialize>(&self, list: &mut Vec<T>) -> anyhow::Result<()> {
        self.titles.apply();
        let more = self.select(list)?;
        if more > 0 {
            print_note(format_args!("{} not shown: --limit", counted(more as u64, "more line")));
        }
        Ok(())
    }

    /// Returns how many items the limit omits.
    fn select<T: Serialize>(&self, list: &mut Vec<T>) -> anyhow::Result<usize> {
        self.order.apply(list)?;
        Ok(cut(list, self.limit.unwrap_or(usize::MAX)))
    }
}

/// Keeps the first items, and returns how many were dropped.
pub(super) fn cut<T>(list: &mut Vec<T>, limit: usize) -> usize {
    let more = list.len().saturating_sub(limit);
    list.truncate(limit);
    more
}

impl OrderArgs {
    /// Whether the whole list is needed to know which items come first.
    pub(super) fn is_requested(&self) -> bool {
        self.sort_by.is_some() || !self.selector.is_empty()
    }

    /// Keeps the selected items, in the requested order.
    ///
    /// # Errors
    /// Exit status 2 for a key that no item has.
    pub(super) fn apply<T: Serialize>(&self, list: &mut Vec<T>) -> anyhow::Result<()> {
        let mut pairs = Vec::with_capacity(list.len());
        for thing in list.drain(..) {
            pairs.push((serde_json::to_value(&thing)?, thing));
        }
        for condition in &self.selector {
            check_key(&condition.key, &pairs)?;
            pairs.retain(|(json, _)| {
                let holds = at(json, &condition.key).is_some_and(|v| text(v) == condition.value);
                holds == condition.equal
            });
        }
        if let Some(key) = &self.sort_by {
            let (key, largest_first) = match key.strip_prefix('-') {
                Some(key) => (key, true),
                None => (key.as_str(), false),
            };
            check_key(key, &pairs)?;
            pairs.sort_by(|(a, _), (b, _)| {
                let order = compare(at(a, key), at(b, key));
                if largest_first { order.reverse() } else { order }
            });
        }
        list.extend(pairs.into_iter().map(|(_, thing)| thing));
        Ok(())
    }
}

/// The value at a path of names; a missing name is searched among the labels.
fn at<'a>(json: &'a Value, path: &str) -> Option<&'a Value> {
    let found = path.split('.').try_fold(json, |value, name| value.get(name));
    found.or_else(|| json.get("labels")?.get(path))
}

/// Refuses a key that no item has.
fn check_key<T>(key: &str, pairs: &[(Value, T)]) -> Result<(), Failure> {
    let Some((first, _)) = pairs.first() else { return Ok(()) };
    if pairs.iter().any(|(json, _)| at(json, key).is_some()) {
        return Ok(());
    }
    let mut keys = Vec::new();
    names(first, "", &mut keys);
    Err(Failure::usage(format!("nothing in the list has {key}; there are {}", keys.join(", "))))
}

/// The paths to plain values.
fn names(json: &Value, before: &str, into: &mut Vec<String>) {
    let Value::Object(map) = json else { return };
    for (name, value) in map {
        let path = if before.is_empty() { name.clone() } else { format!("{before}.{name}") };
        match value {
            Value::Object(_) => names(value, &path, into),
            Value::Array(_) => {}
            _ => into.push(path),
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// Compares numbers as numbers, even if they are strings in the JSON; an item without the value comes first.
fn compare(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    let [a, b] = [a, b].map(|value| value.map(text).unwrap_or_default());
    // Whole numbers keep every digit.
    if let (Ok(a), Ok(b)) = (a.parse::<i128>(), b.parse::<i128>()) {
        return a.cmp(&b);
    }
    match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(&b),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: ListOptions,
    }

    fn chosen(args: &[&str]) -> Result<Vec<String>, String> {
        let mut list = vec![
            json!({"name": "a", "state": "running", "counts": {"rows": "9"}, "labels": {"zone": "x"}}),
            json!({"name": "b", "state": "paused", "counts": {"rows": "10"}, "labels": {"zone": "y"}}),
            json!({"name": "c", "state": "running", "counts": {"rows": "100"}, "labels": {"zone": "x"}}),
        ];
        let args = std::iter::once("x").chain(args.iter().copied());
        let cli = Cli::try_parse_from(args).map_err(|error| error.to_string())?;
        cli.options.select(&mut list).map_err(|error| error.to_string())?;
        Ok(list.iter().map(|thing| text(&thing["name"])).collect())
    }

    #[test]
    fn a_list_that_is_ordered_or_selected_from_is_needed_whole() {
        let parse = |args: &[&str]| {
            let args = std::iter::once("x").chain(args.iter().copied());
            Cli::try_parse_from(args).expect("fine").options.order.is_requested()
        };
        assert!(!parse(&["--limit", "2"]));
        assert!(parse(&["--sort-by", "row"]) && parse(&["-l", "state=failed"]));
        let mut list = vec![1, 2, 3];
        assert_eq!((cut(&mut list, 2), list), (1, vec![1, 2]));
    }

    #[test]
    fn things_are_ordered_by_numbers_and_chosen_by_fields_and_labels() {
        assert_eq!(chosen(&[]).unwrap(), ["a", "b", "c"]);
        assert_eq!(chosen(&["--sort-by", "counts.rows"]).unwrap(), ["a", "b", "c"]);
        assert_eq!(chosen(&["--sort-by", "-counts.rows", "--limit", "2"]).unwrap(), ["c", "b"]);
        assert_eq!(chosen(&["-l", "state=running,name!=a"]).unwrap(), ["c"]);
        assert_eq!(chosen(&["--selector", "zone=y"]).unwrap(), ["b"]);
        assert_eq!(chosen(&["-l", "state=none"]).unwrap(), [""; 0]);
    }

    #[test]
    fn a_key_that_no_item_has_is_refused_with_the_existing_keys() {
        let error = chosen(&["--sort-by", "rows"]).unwrap_err();
        assert!(error.contains("there are ") && error.contains("counts.rows"), "{error}");
        assert!(chosen(&["-l", "state"]).is_err());
    }
}
