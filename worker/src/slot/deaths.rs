//! Owns: how a slot reports its engine's deaths: the lost rows, with the evidence.
//!
//! Invariant: a death names every row that was started and had not ended, over all leases, and no other. Waiting rows
//! wait for the next engine, or go back to the leader if none starts.
//! Absent: which row is guilty. The ledger finds out.

use rollout_proto::v1::{self, FailureClass};

use super::failure_report::FailureReport;
use super::results::MESSAGE_BYTES_MAX;
use super::shorten::shortened;
use super::{Event, Slot};
use crate::engine::evidence::classify;
use crate::engine::{Death, News};
use crate::leased_rows::LeasedRows;

impl Slot {
    /// Waits for the engine's next news.
    pub(super) fn listen(&mut self) {
        let engine = self.engine.clone();
        self.tasks.spawn(async move { Event::Engine(engine.news().await) });
    }

    pub(super) fn news(&mut self, news: News) {
        self.listen();
        match news {
            News::Ready => {
                self.engine_up = true;
                self.note_loaded();
                self.failing.over();
                self.set_ineligible(None);
            }
            News::Died(death) => self.died(*death),
        }
    }

    fn died(&mut self, death: Death) {
        self.engine_up = false;
        let started: LeasedRows = {
            let lease_table = self.lease_table.lock();
            let rows = death.rows.iter().copied();
            rows.filter(|(lease, row)| lease_table.is_running(*lease, *row)).collect()
        };
        let (class, code) = classify(&death.evidence);
        metrics::counter!("rollout_worker_engine_deaths_total", "code" => code).increment(1);
        metrics::counter!("rollout_worker_rows_total", "outcome" => "engine_died")
            .increment(started.len() as u64);
        if class == FailureClass::OutOfMemory {
            self.out_of_memory(self.concurrency.generation());
        }
        // Rows that were revoked a moment ago, and that the engine still had, ran as well.
        let unwanted = death.unwanted + death.rows.len().saturating_sub(started.len());
        let started = self.company_spares(started, unwanted);
        self.end_all(&started);
        let message = shortened(&death.message, MESSAGE_BYTES_MAX);
        let exception = death.evidence.crash.as_ref().map(|crash| crash.exception.clone());
        let report = v1::EngineDeath {
            number: 0, // Assigned when it is sent.
            started: started.to_wire(),
            class: class.into(),
            code: code.to_owned(),
            message,
            evidence: Some(v1::Evidence {
                exit_code: death.evidence.exit_code,
                signal: death.evidence.signal,
                exception: exception.unwrap_or_default(),
                text: None,
            }),
        };
        self.report(FailureReport::Death(report), started, death.last_words);
        if death.down {
            self.set_ineligible(Some(death.message));
            self.give_back_queued();
        }
    }

    /// A row that ran beside unwanted rows, of which the leader knows nothing, did not run alone: it is neither to
    /// blame nor cleared, and goes back to be retried.
    fn company_spares(&mut self, started: LeasedRows, unwanted: usize) -> LeasedRows {
        if unwanted == 0 || started.len() != 1 {
            return started;
        }
        for (lease, row) in started.iter() {
            self.give_back(lease, vec![row]);
        }
        LeasedRows::default()
    }

    /// Memory ran out, so fewer rows run at once.
    pub(super) fn out_of_memory(&mut self, generation: u64) {
        let before = self.concurrency.limit();
        self.concurrency.out_of_memory(generation);
        if self.concurrency.limit() != before {
            tracing::warn!(
                slot = self.index,
                rows = self.concurrency.limit(),
                "engine out of memory; reducing concurrency"
            );
        }
        self.lease_table.lock().set_concurrency(self.concurrency.limit());
    }

    pub(super) fn row_succeeded(&mut self) {
        let before = self.concurrency.limit();
        self.concurrency.finished();
        if self.concurrency.limit() != before {
            self.lease_table.lock().set_concurrency(self.concurrency.limit());
        }
    }
}
