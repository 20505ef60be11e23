//! Owns: how the details of a failure reach the leader: a long text first goes to the stores of the runs.
//!
//! Invariant: a text is durable in each of those runs' stores before a report names it. A store that is slow or
//! refuses costs the text, never the report, which waits at most a few seconds. Runs of several namespaces share no
//! text.
//! Absent: the handling of a failure.

use std::collections::BTreeSet;
use std::time::Duration;

use rollout_proto::v1;
use rollout_storage::evidence_key;
use tokio::time::timeout;

use super::shorten::shortened;
use super::upload::Uploader;
use super::{Event, Slot};
use crate::engine::LAST_WORDS_BYTES_MAX;
use crate::leased_rows::LeasedRows;

/// How long a report waits for its text.
const TEXT_TIMEOUT: Duration = Duration::from_secs(3);
/// Texts of a slot that are written at a time; further reports go without.
const TEXTS_MAX: usize = 8;

/// A failure to be reported.
#[derive(Debug)]
pub(super) enum FailureReport {
    Death(v1::EngineDeath),
    Failure(v1::FailedAttempt),
}

/// A report whose text has been written, or was not written in time.
#[derive(Debug)]
pub(super) struct ReportWithText {
    report: FailureReport,
    rows: LeasedRows,
    text: Option<v1::BlobRef>,
}

impl Slot {
    /// Reports that ended rows failed. An empty text counts as none.
    pub(super) fn report(&mut self, report: FailureReport, rows: LeasedRows, text: String) {
        let runs: BTreeSet<u32> = rows.iter().map(|((run, _), _)| run).collect();
        if text.is_empty() || runs.is_empty() || self.waiting_reports >= TEXTS_MAX {
            return self.send_report(ReportWithText { report, rows, text: None });
        }
        self.waiting_reports += 1;
        let (uploader, slot) = (self.uploader.clone(), self.index);
        self.tasks.spawn(async move {
            let kept = timeout(TEXT_TIMEOUT, uploader.keep_text(runs, text)).await;
            let text = kept.unwrap_or_else(|_| Err("it took too long".to_owned()));
            let text = text.inspect_err(|reason| {
                tracing::warn!(slot, reason, "a failure is reported without its text");
            });
            Event::TextWritten(ReportWithText { report, rows, text: text.ok() })
        });
    }

    /// The report's text is stored, or will not be.
    pub(super) fn text_written(&mut self, ready: ReportWithText) {
        self.waiting_reports -= 1;
        self.send_report(ready);
    }

    fn send_report(&mut self, ready: ReportWithText) {
        let ReportWithText { report, rows, text } = ready;
        match report {
            FailureReport::Death(mut death) => {
                death.evidence.get_or_insert_default().text = text;
                self.exchanges.death(death, &rows);
            }
            FailureReport::Failure(mut failure) => {
                if text.is_some() {
                    failure.evidence.get_or_insert_default().text = text;
                }
                self.exchanges.failure(failure, &rows);
            }
        }
    }
}

impl Uploader {
    /// Writes a text for each of the runs; the returned name is valid in any of them.
    async fn keep_text(self, runs: BTreeSet<u32>, text: String) -> Result<v1::BlobRef, String> {
        let text = shortened(&text, LAST_WORDS_BYTES_MAX);
        let bytes = bytes::Bytes::from(text);
        let digest = *blake3::hash(&bytes).as_bytes();
        let mut infos = Vec::with_capacity(runs.len());
        for run in runs {
            infos.push(self.runs.get(run).await.map_err(|error| error.to_string())?);
        }
        if infos.windows(2).any(|two| two[0].namespace != two[1].namespace) {
            return Err("the rows belong to several namespaces".to_owned());
        }
        let mut key = String::new();
        for run in infos {
            let store = self.stores.get(&run.store_url).map_err(|error| error.to_string())?;
            key = evidence_key(&run.namespace, &run.folder, &digest);
            store.put(&key, bytes.clone()).await.map_err(|error| error.to_string())?;
        }
        Ok(v1::BlobRef { key, digest: digest.to_vec().into(), bytes: bytes.len() as u64 })
    }
}
