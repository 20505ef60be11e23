//! Owns: appending rows to a run whose input is open.
//!
//! The input is read twice: once to learn which of its rows the run has, once to pack the others. Segments are
//! declared from the number that was read. So if two appends of different rows run at once, one is refused and reads
//! again; if they append the same rows, both succeed.
//! Invariant: an append is a union by item ID: a row that the run has is not added again, so an append may be
//! repeated, interrupted anywhere, and run twice at once. Equal rows without an "id" are counted within one append.
//! Nothing of an input with errors is declared.
//! Absent: closing (`close`), and results of earlier revisions: appended rows run.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt;
use rollout_proto::{Session, v1};
use rollout_storage::{BlobStore, Segment};

use super::close::{ROUNDS_MAX, busy, check_goes_on, lost_to_another};
use super::error::BatchError;
use super::row_join::RowJoin;
use super::upload::{Destination, Uploaded};
use super::{revision, spec, submit, upload};
use crate::export::parts::{digest_of, fetch};
use crate::export::{self, Listing};
use crate::input::admission::Admission;
use crate::input::files::InputFile;
use crate::input::rules::Rules;
use crate::input::scan::{Scan, ScanControl, ScanError, ScanOptions, scan};

/// Segments of the run that are fetched concurrently.
const SEGMENTS_AHEAD: usize = 4;

/// An append to perform.
pub struct Append<'a> {
    /// The session that sends the requests.
    pub session: &'a Session,
    pub namespace: &'a str,
    pub name: &'a str,
    /// The files to append.
    pub files: &'a [InputFile],
    /// How to read the files.
    pub options: ScanOptions,
    /// The progress of the reading.
    pub control: Arc<ScanControl>,
}

/// The outcome of an append.
#[derive(Debug)]
pub enum Appended {
    /// The run has every row.
    Whole {
        /// Rows that were added.
        added: u64,
        /// Rows of the files that the run already had, or that others added meanwhile.
        there: u64,
        /// Rows of the run.
        rows: u64,
    },
    /// The input has errors; nothing was added.
    Refused(Scan),
}

/// How one attempt ended.
enum Round {
    Over(Appended),
    /// Another client was faster; this attempt still added this many rows.
    Again(u64),
}

impl Append<'_> {
    /// Appends the rows that the run lacks.
    pub async fn run(&self) -> Result<Appended, BatchError> {
        let mut before = 0;
        for _ in 0..ROUNDS_MAX {
            match self.round().await? {
                Round::Again(added) => before += added,
                Round::Over(Appended::Whole { added, there, rows }) => {
                    // There are fewer than were added if the run was deleted and created again in between.
                    let there = there.saturating_sub(before);
                    return Ok(Appended::Whole { added: added + before, there, rows });
                }
                Round::Over(refused) => return Ok(refused),
            }
        }
        Err(busy(self.name))
    }

    async fn round(&self) -> Result<Round, BatchError> {
        let client = self.session.client();
        let described = submit::describe(client, self.namespace, self.name).await?;
        let run = described.run.clone().unwrap_or_default();
        check_goes_on(&run)?;
        let store = revision::store_of(&described, self.session.store_url())?;
        let listing = export::listing(client, &store, &described).await?;
        let rules = spec::rules(&listing.spec)?;
        let (read, join) = self.read(rules.clone()).await?;
        if read.error_count > 0 {
            return Ok(Round::Over(Appended::Refused(read)));
        }
        if read.rows == 0 {
            return Err(BatchError::Empty);
        }
        let (admission, existing) = self.join(join, listing, &store).await?;
        if admission.has_conflicts() {
            let options = ScanOptions { admission: Some(admission), ..self.options.clone() };
            let read = upload::check(self.files.to_vec(), rules, options, self.rewound());
            return Ok(Round::Over(Appended::Refused(read.await?)));
        }
        let lacking = admission.lacking();
        let (there, rows) = (read.rows - lacking, existing.rows + lacking);
        let whole = Round::Over(Appended::Whole { added: lacking, there, rows });
        if lacking == 0 {
            return Ok(whole);
        }
        if run.input_closed {
            return Err(self.closed(lacking, read.rows));
        }
        let uploaded = self.upload(rules, admission, (&store, run.folder)).await?;
        let added = self.declare(run.run, existing.segments, uploaded).await?;
        Ok(if added == lacking { whole } else { Round::Again(added) })
    }

    /// The first reading.
    async fn read(&self, rules: Rules) -> Result<(Scan, RowJoin), BatchError> {
        let (files, options) = (self.files.to_vec(), self.options.clone());
        let control = self.rewound();
        let work = move || {
            let mut join = RowJoin::new(rules.task());
            let mut sink = |segment| {
                join.note(&segment);
                Ok(())
            };
            let read = scan(&files, &rules, &options, &control, Some(&mut sink));
            read.map(|read| (read, join))
        };
        Ok(tokio::task::spawn_blocking(work).await.unwrap_or(Err(ScanError::Stopped))?)
    }

    /// Finds the rows that the run lacks, and how many it has.
    async fn join(
        &self,
        mut join: RowJoin,
        listing: Listing<'_>,
        store: &BlobStore,
    ) -> Result<(Admission, ExistingInput), BatchError> {
        let mut existing = ExistingInput::default();
        let fetched = listing.segments.map(|listed| async {
            let blob = listed?.blob.unwrap_or_default();
            let digest = digest_of(&blob).map_err(|error| self.inconsistent(&error))?;
            let bytes = fetch(store, &blob.key, &digest).await?;
            Segment::decode(bytes).map_err(|error| self.inconsistent(&error))
        });
        let mut fetched = std::pin::pin!(fetched.buffered(SEGMENTS_AHEAD));
        while let Some(segment) = fetched.next().await {
            let segment = segment?;
            existing.segments += 1;
            existing.rows += segment.len() as u64;
            join.there(&segment).map_err(|source| self.temporary(source))?;
        }
        let joining = tokio::task::spawn_blocking(move || join.join());
        let joined = joining.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        Ok((joined.map_err(|source| self.temporary(source))?, existing))
    }

    /// The second reading.
    async fn upload(
        &self,
        rules: Rules,
        admission: Admission,
        (store, folder): (&BlobStore, String),
    ) -> Result<Uploaded, BatchError> {
        let options = ScanOptions { admission: Some(admission.clone()), ..self.options.clone() };
        let namespace = self.namespace.to_owned();
        let to = Destination { store: store.clone(), namespace, folder };
        let (files, control) = (self.files.to_vec(), self.rewound());
        let uploaded = upload::upload(files, rules, options, control, &to, |_| {}).await?;
        match admission.is_of(uploaded.scan.ids_digest) && uploaded.scan.error_count == 0 {
            true => Ok(uploaded),
            false => Err(BatchError::InputChanged),
        }
    }

    /// Declares segments from `next` on, and returns how many rows were added to the run.
    async fn declare(&self, run: u32, next: u32, uploaded: Uploaded) -> Result<u64, BatchError> {
        let mut added = 0;
        let segments: Vec<_> = uploaded
            .segments
            .into_iter()
            .map(|segment| v1::SegmentDecl { number: segment.number + next, ..segment })
            .collect();
        for some in segments.chunks(submit::SEGMENTS_PER_REQUEST) {
            match submit::add(self.session, run, some.to_vec(), Vec::new()).await {
                Ok(_) => added += some.iter().map(|s| u64::from(s.rows)).sum::<u64>(),
                Err(error) if lost_to_another(error.code()) => return Ok(added),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(added)
    }

    /// Restarts the displayed progress of reading.
    fn rewound(&self) -> Arc<ScanControl> {
        self.control.bytes.store(0, Ordering::Relaxed);
        self.control.rows.store(0, Ordering::Relaxed);
        Arc::clone(&self.control)
    }

    fn closed(&self, lacking: u64, rows: u64) -> BatchError {
        let what = "is closed for more rows";
        let advice = format!("it lacks {lacking} of these {rows}; submit them as a separate run");
        BatchError::Conflict { name: self.name.to_owned(), what, advice }
    }

    fn inconsistent(&self, error: &dyn std::error::Error) -> BatchError {
        BatchError::Inconsistent { name: self.name.to_owned(), message: error.to_string() }
    }

    fn temporary(&self, source: std::io::Error) -> BatchError {
        let path = self.options.temp_dir.clone();
        BatchError::Scan(ScanError::Temporary { path, source })
    }
}

/// The input that a run has.
#[derive(Debug, Clone, Copy, Default)]
struct ExistingInput {
    segments: u32,
    rows: u64,
}
