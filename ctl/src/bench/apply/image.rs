//! The bytes that an image of a fleet with many rows in flight writes when little changes.

use serde::Serialize;

use super::ledger_fixture::{Size, bytes_of};
use super::loss::busy;
use crate::output::{Report, u64_string};

/// Rounds of a second, each of which ends with an image.
const ROUNDS: u32 = 5;

#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImageFigures {
    pub(super) cluster_version: u32,
    pub(super) slots: u32,
    pub(super) runs: u32,
    /// Leases in flight.
    pub(super) attempts: u64,
    /// Slots that complete their rows and claim again, between two images.
    pub(super) changes: u32,
    #[serde(serialize_with = "u64_string")]
    pub(super) image_bytes: u64,
    pub(super) bytes_per_change: u64,
    /// By the kind of record.
    pub(super) bytes_by_tag: std::collections::BTreeMap<char, u64>,
    /// How long gathering it takes, while a member holds its lock.
    pub(super) image_ms: f64,
}

impl Report for ImageFigures {
    const KIND: &'static str = "BenchApplyImage";

    fn table(&self) -> String {
        let tags: Vec<String> =
            self.bytes_by_tag.iter().map(|(tag, bytes)| format!("{tag} {bytes}")).collect();
        format!(
            "{} attempts of {} runs, {} changes, cluster version {}: image {} bytes, {} a change, {:.2} ms\n  {}\n",
            self.attempts,
            self.runs,
            self.changes,
            self.cluster_version,
            self.image_bytes,
            self.bytes_per_change,
            self.image_ms,
            tags.join(", "),
        )
    }
}

pub(super) fn measure(size: Size, rows_of_each: u32, changes: u32) -> anyhow::Result<ImageFigures> {
    let mut fixture = busy(size, rows_of_each)?;
    fixture.image();
    let attempts = fixture.pullers.iter().map(|puller| puller.held.len() as u64).sum();
    let (mut bytes, mut ms) = (0, 0.0);
    let mut bytes_by_tag = std::collections::BTreeMap::new();
    let mut next = 0;
    for _ in 0..ROUNDS {
        for _ in 0..changes {
            // One attempt ends, as if a slot had finished the rows of one grant, and the slot pulls again.
            let at = next % fixture.pullers.len();
            next += 7;
            fixture.complete_first(at)?;
            fixture.claim(at, rows_of_each)?;
        }
        let (delta, took) = fixture.image();
        bytes += bytes_of(&delta);
        ms += took.as_secs_f64() * 1e3;
        for (key, value) in &delta.puts {
            let tag = key.first().copied().map_or('-', char::from);
            *bytes_by_tag.entry(tag).or_default() +=
                (key.len() + value.len()) as u64 / u64::from(ROUNDS);
        }
    }
    let image_bytes = bytes / u64::from(ROUNDS);
    Ok(ImageFigures {
        cluster_version: size.cluster_version,
        slots: size.slots,
        runs: size.runs,
        attempts,
        changes,
        image_bytes,
        bytes_per_change: image_bytes / u64::from(changes.max(1)),
        bytes_by_tag,
        image_ms: ms / f64::from(ROUNDS),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = ImageFigures {
            cluster_version: 3,
            slots: 2000,
            runs: 20,
            attempts: 40_000,
            changes: 100,
            image_bytes: 85_000,
            bytes_per_change: 850,
            bytes_by_tag: [('O', 10_000), ('W', 75_000)].into(),
            image_ms: 1.25,
        };
        crate::golden::report("bench-apply-image.txt", &report);
    }
}
