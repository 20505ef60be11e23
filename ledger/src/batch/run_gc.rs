//! Garbage collection of a run: it is sealed into a manifest, deleted, and gone.
//!
//! *Invariant:* a run is sealed only if it has ended and was not reopened since its manifest was made, and a sealed
//! run is never reopened. So none of its rows can be decided any more, and its manifest stays true. No later command
//! names a part that the manifest does not name, so a run is swept after it was sealed, and never before. A sealed
//! run takes at most [`limits::SEALED_BYTES_MAX`]. A deleted run keeps its name until its objects are gone, so that a
//! request for it gets its state; a new run of that name has a folder of its own.
//!
//! Absent: the manifest and the objects. The leader writes the manifest before it proposes `Seal`, and
//! removes the objects before it proposes `ForgetRun`.

use crate::batch::run::{InFlight, PauseState, Run, RunHead, RunState};
use crate::kernel::codec;
use crate::kernel::id::{LedgerMs, RunNo};
use crate::kernel::limits;
use crate::machine::command::BlobRef;
use crate::machine::ledger::Ledger;
use serde::{Deserialize, Serialize};

/// The location of a sealed run's rows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sealed {
    /// The manifest.
    pub manifest: BlobRef,
    /// When it was sealed.
    pub at: LedgerMs,
    /// Segments that it had.
    pub segments: u32,
    /// Whether the objects that its manifest does not name are gone.
    pub swept: bool,
}

/// The leader's pending work to delete runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgettable {
    /// Runs to seal: ended for longer than their time to live.
    pub seal: Vec<RunNo>,
    /// Runs to sweep: sealed; remove objects that their manifests do not name.
    pub sweep: Vec<RunNo>,
    /// Runs to delete: sealed for longer than their retention.
    pub delete: Vec<RunNo>,
    /// Runs to forget: deleted; remove their objects.
    pub forget: Vec<RunNo>,
}

impl Ledger {
    /// What is due by `now`, the leader's time: in an idle cluster the log's own time stands still for a while. The
    /// defaults apply to runs without own settings; a `retention_ms` of 0 keeps sealed runs forever. Nothing is due for
    /// the run of a batch that has not ended, because the batch's output is made from the run's rows.
    pub fn forgettable(&self, now: LedgerMs, run_ttl_ms: u64, retention_ms: u64) -> Forgettable {
        let or = |own: u64, default: u64| if own == 0 { default } else { own };
        let since = |at: LedgerMs| now.0.saturating_sub(at.0);
        let mut due = Forgettable::default();
        let ended = self.runs.values().filter(|run| run.ended());
        for run in ended.filter(|run| self.check_unused_by_batch(run.no).is_ok()) {
            let (head, spec) = (&run.head, &run.head.spec);
            let keep_ms = or(spec.retention_ms, retention_ms);
            match &head.sealed {
                _ if head.state == RunState::Deleting => due.forget.push(run.no),
                None if since(head.ended_at) >= or(spec.run_ttl_ms, run_ttl_ms) => {
                    due.seal.push(run.no);
                }
                Some(sealed) if keep_ms > 0 && since(sealed.at) >= keep_ms => {
                    due.delete.push(run.no);
                }
                Some(sealed) if !sealed.swept => due.sweep.push(run.no),
                _ => {}
            }
        }
        due
    }

    /// Drops everything that is kept per row, part and segment of a run that has ended.
    pub(super) fn drop_rows(&mut self, no: RunNo) {
        self.runs.drop_rows(no);
        self.refresh_active(no);
    }
}

impl Run {
    /// The change of the run itself. [`Runs::drop_rows`](crate::batch::runs::Runs::drop_rows) removes its records.
    pub(super) fn drop_rows(&mut self) {
        self.segments = Vec::new();
        self.parts = Vec::new();
        self.failures.clear();
        self.head.done_histories = 0;
        self.head.pause = PauseState::default();
        self.flight = InFlight::default();
        self.head.next_fresh = self.head.rows;
        self.head.reused_ahead = 0;
        self.head.counts.dropped = self.head.rows - self.head.counts.done - self.head.counts.failed;
        shrink(&mut self.head);
    }

    /// Whether its rows are kept here, and not in a manifest or nowhere.
    pub(crate) fn has_rows(&self) -> bool {
        self.head.sealed.is_none() && self.head.state != RunState::Deleting
    }

    /// How many segments it has or had.
    pub(crate) fn segment_count(&self) -> u32 {
        self.head.sealed.as_ref().map_or(self.segments.len() as u32, |s| s.segments)
    }
}

/// Drops the parts of the spec that only an open run needs, until it fits. Its digest stays, and so does its store
/// with its objects; the manifest has everything.
fn shrink(head: &mut RunHead) {
    if codec::encode(&head).len() <= limits::SEALED_BYTES_MAX {
        return;
    }
    let spec = &mut head.spec;
    for text in [
        &mut spec.sampling_json,
        &mut spec.options_json,
        &mut spec.engine.options_json,
        &mut spec.engine.revision,
        &mut spec.engine.task,
        &mut spec.input_name,
    ] {
        *text = String::new();
    }
    spec.selector.clear();
    spec.require.clear();
}
