//! Owns: the proof that a run's results are complete and intact.
//!
//! It proves: segments follow one another without a gap; every segment and part has the digest in the ledger; each row
//! has exactly one outcome, and the part that the ledger names for a result contains that row; every item ID matches
//! its row, and no two are the same; the counts are the ledger's; and, with an output directory, its files match the
//! parts, byte for byte.
//! Absent: the replicas' agreement; use `rolloutctl cluster verify` for that.

use std::path::Path;

use rollout_proto::v1;

use super::layout::Layout;
use super::output::Output;
use super::{OnRows, Piece, ReadOutcome, SegmentOutput, Sink, Source, Totals, full_spec, read};
use crate::input::duplicates::{BUDGET_BYTES, Duplicates};
use crate::input::occurrence::Occurrences;
use crate::input::rules::Rules;
use crate::submission::error::BatchError;
use crate::submission::spec;

/// The proven figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Totals over everything read.
    pub totals: Totals,
    /// blake3 over the segments' digests in order.
    pub input_digest: [u8; 32],
}

/// Proves a run, and the files in `output` if given.
pub async fn verify(
    source: &Source<'_>,
    output: Option<(&Path, Layout)>,
    on_rows: &OnRows<'_>,
) -> Result<Verified, BatchError> {
    let summary = source.described.run.clone().unwrap_or_default();
    let run_spec = full_spec(&source.store, source.described).await?;
    let files = match output {
        Some((dir, layout)) => Some(Output::compare(dir, layout, source.described, &run_spec)?),
        None => None,
    };
    let mut digest = blake3::Hasher::new();
    let proof = Proof {
        run: summary.name.clone(),
        rules: spec::rules(&run_spec)?,
        occurrences: Occurrences::new(),
        unique: Duplicates::new(BUDGET_BYTES, &std::env::temp_dir()),
        digest: &mut digest,
        files,
    };
    let ReadOutcome { totals, .. } = read(source, Box::new(proof), on_rows).await?;
    check_counts(&summary, &totals)?;
    Ok(Verified { totals, input_digest: *digest.finalize().as_bytes() })
}

fn check_counts(summary: &v1::RunSummary, totals: &Totals) -> Result<(), BatchError> {
    let counts = summary.counts.unwrap_or_default();
    let pairs = [
        ("rows", totals.rows, counts.rows),
        ("completions", totals.done, counts.done),
        ("failures", totals.failed, counts.failed),
    ];
    for (what, found, ledger) in pairs {
        if found != ledger {
            let message = format!("{found} {what} were found, the ledger counts {ledger}");
            return Err(BatchError::Inconsistent { name: summary.name.clone(), message });
        }
    }
    Ok(())
}

struct Proof<'a> {
    run: String,
    rules: Rules,
    occurrences: Occurrences,
    unique: Duplicates,
    digest: &'a mut blake3::Hasher,
    files: Option<Output<'a>>,
}

impl Proof<'_> {
    fn wrong(&self, message: String) -> BatchError {
        BatchError::Inconsistent { name: self.run.clone(), message }
    }

    /// The expected ID of a row, or why it has none.
    fn item_id(&mut self, body: &[u8]) -> Result<[u8; 32], String> {
        let row = self.rules.stored(body).ok_or("it is no row")?;
        let first = self.rules.item_id(&row, 0);
        if row.id_json.is_some() {
            return Ok(first);
        }
        match self.occurrences.next(&first).map_err(|error| error.to_string())? {
            0 => Ok(first),
            number => Ok(self.rules.item_id(&row, number)),
        }
    }
}

impl Sink for Proof<'_> {
    fn segment(&mut self, output: &SegmentOutput) -> Result<(), BatchError> {
        self.digest.update(&output.digest);
        let segment = output.segment.as_ref().map_err(|lost| self.wrong(lost.clone()))?;
        for (row, number) in segment.rows().zip(output.first_row..) {
            match self.item_id(row.body) {
                Ok(id) if id == row.item_id => {}
                Ok(_) => return Err(self.wrong(format!("row {number} has another row's id"))),
                Err(why) => return Err(self.wrong(format!("row {number}: {why}"))),
            }
            let mut half = [0; 16];
            half.copy_from_slice(&row.item_id[..16]);
            let noted = self.unique.push(u128::from_le_bytes(half), output.number, number);
            noted.map_err(|source| BatchError::Output { path: std::env::temp_dir(), source })?;
        }
        Ok(())
    }

    fn rows(&mut self, piece: &Piece) -> Result<(), BatchError> {
        match &mut self.files {
            Some(files) => files.rows(piece),
            None => Ok(()),
        }
    }

    fn settle(&mut self) -> Result<bool, BatchError> {
        self.files.as_mut().map_or(Ok(false), Sink::settle)
    }

    fn finish(self: Box<Self>) -> Result<(), BatchError> {
        let Self { run, unique, files, .. } = *self;
        let (twice, _) = unique
            .finish(1)
            .map_err(|source| BatchError::Output { path: std::env::temp_dir(), source })?;
        if let Some(twice) = twice.first() {
            let message = format!("rows {} and {} are the same item", twice.first.1, twice.row.1);
            return Err(BatchError::Inconsistent { name: run, message });
        }
        match files {
            Some(files) => Box::new(files).finish(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_over_the_bound_of_rows_without_an_id_is_not_called_invalid() {
        let mut digest = blake3::Hasher::new();
        let mut proof = Proof {
            run: "eval".to_owned(),
            rules: spec::rules(&v1::RunSpec::default()).unwrap(),
            occurrences: Occurrences::with_bounds(1, 1),
            unique: Duplicates::new(BUDGET_BYTES, &std::env::temp_dir()),
            digest: &mut digest,
            files: None,
        };
        proof.item_id(br#"{"prompt":"a"}"#).unwrap();
        let why = proof.item_id(br#"{"prompt":"b"}"#).unwrap_err();
        assert!(why.contains("more than 1 different rows"), "{why}");
        assert_eq!(proof.item_id(b"{").unwrap_err(), "it is no row");
    }
}
