//! Which row of a run a name on the command line means.
//!
//! Invariant: a number is a row's number and needs no reading of the input; 64 hexadecimal digits are the item's ID,
//! and any other text is the row's own ID in the input. If several rows have it, it means the first.
//! Absent: an index: the run's segments are read in order until one has the row.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use futures::{StreamExt, TryStreamExt};
use rollout_batch::export::listing;
use rollout_batch::export::parts::{digest_of, fetch};
use rollout_proto::{Client, v1};
use rollout_storage::{BlobStore, Segment};
use serde::Deserialize;
use serde_json::Value;

use super::super::exit::Failure;
use super::run_objects::RunObjects;

/// Segments that are read concurrently.
const SEGMENTS_AHEAD: usize = 4;

/// A row, as users name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RowName {
    Number(u64),
    Id { item: Option<[u8; 32]>, own: String },
}

impl FromStr for RowName {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text.parse() {
            Ok(number) => Self::Number(number),
            Err(_) => {
                let item = blake3::Hash::from_hex(text).ok().map(|hash| *hash.as_bytes());
                Self::Id { item, own: text.to_owned() }
            }
        })
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Id { own, .. } => own.fmt(f),
        }
    }
}

impl RowName {
    pub(super) async fn number(
        &self,
        client: &Client,
        namespace: &str,
        run: &str,
    ) -> anyhow::Result<u64> {
        let (item, own) = match self {
            Self::Number(number) => return Ok(*number),
            Self::Id { item, own } => (item.as_ref(), own.as_str()),
        };
        let RunObjects { described, store } = RunObjects::of(client, namespace, run).await?;
        let store = store?;
        let listed = listing(client, &store, &described).await?.segments;
        let found = listed.map(|segment| async {
            let segment = segment?;
            anyhow::Ok(row_of(&store, &segment, item, own).await?)
        });
        let mut found = std::pin::pin!(found.buffered(SEGMENTS_AHEAD));
        while let Some(row) = found.try_next().await? {
            if let Some(row) = row {
                return Ok(row);
            }
        }
        Err(Failure::not_found(format!("run {run} has no row with the id {own}")).into())
    }
}

async fn row_of(
    store: &BlobStore,
    listed: &v1::ReadResultsResponse,
    item: Option<&[u8; 32]>,
    own: &str,
) -> anyhow::Result<Option<u64>> {
    let blob = listed.blob.clone().unwrap_or_default();
    let segment = Segment::decode(fetch(store, &blob.key, &digest_of(&blob)?).await?)?;
    Ok(position(&segment, item, own).map(|position| listed.first_row + position))
}

fn position(segment: &Segment, item: Option<&[u8; 32]>, own: &str) -> Option<u64> {
    let means = |row: rollout_storage::SegmentRow<'_>| {
        item == Some(&row.item_id) || own_id(row.body).is_some_and(|id| id == own)
    };
    segment.rows().position(means).map(|position| position as u64)
}

/// The ID that the user gave a row.
fn own_id(body: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Row {
        id: Option<Value>,
        custom_id: Option<Value>,
    }
    let row: Row = serde_json::from_slice(body).ok()?;
    match row.id.or(row.custom_id)? {
        Value::String(id) => Some(id),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_storage::SegmentWriter;

    #[test]
    fn a_number_is_a_row_and_anything_else_an_id() {
        let parse = |text: &str| text.parse::<RowName>().unwrap();
        assert_eq!(parse("17"), RowName::Number(17));
        let hex = "ab".repeat(32);
        assert_eq!(parse(&hex), RowName::Id { item: Some([0xab; 32]), own: hex.clone() });
        assert_eq!(parse("q-17"), RowName::Id { item: None, own: "q-17".into() });
        assert_eq!(parse("-1"), RowName::Id { item: None, own: "-1".into() });
    }

    #[test]
    fn a_row_is_found_by_either_id() {
        let mut writer = SegmentWriter::new();
        writer.push([1; 32], 1, br#"{"id":"a","prompt":"x"}"#).unwrap();
        writer.push([2; 32], 2, br#"{"prompt":"b","id":7}"#).unwrap();
        writer.push([3; 32], 3, br#"{"prompt":"c","id":"\u0062"}"#).unwrap();
        let segment = Segment::decode(writer.finish()).unwrap();
        assert_eq!(position(&segment, None, "a"), Some(0));
        assert_eq!(position(&segment, None, "b"), Some(2), "a prompt is no id");
        assert_eq!(position(&segment, Some(&[2; 32]), "02"), Some(1));
        assert_eq!(position(&segment, Some(&[4; 32]), "04"), None);
    }
}
