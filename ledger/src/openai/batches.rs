//! All batches, their indexes, and which of their records differ from the image.
//!
//! *Invariant:* the functions of this file keep the indexes: a batch is found by its id, by its run, and by what makes
//! its creation idempotent; those that have not ended are counted by namespace and by API key; those that have are
//! listed by the time at which their records are removed. An idempotency key is remembered for
//! [`limits::IDEMPOTENCY_MS`], so only older batches make room.
//!
//! Absent: rules for changes, which are beside the operations, and records of the image (`batch_image.rs`).

use crate::kernel::counts::Counts;
use crate::kernel::deadline_queue::DeadlineQueue;
use crate::kernel::id::{BatchNo, LedgerMs, RunNo};
use crate::kernel::limits;
use crate::kernel::reply::Rejection;
use crate::machine::command::SegmentDecl;
use crate::openai::batch::{Batch, Stage};
use std::collections::{BTreeMap, BTreeSet};

/// A namespace and the client's own idempotency key.
type OwnKey = (String, String);

/// What the batches of a namespace, or all batches, use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BatchUse {
    pub(super) batches: u64,
    /// Bytes of texts in their records.
    pub(super) bytes: u64,
}

/// All batches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batches {
    pub(super) by_no: BTreeMap<BatchNo, Batch>,
    /// The segments of batches in validation.
    pub(super) segments: BTreeMap<BatchNo, Vec<SegmentDecl>>,
    // Derived.
    pub(super) index: Index,
    /// Records that differ from the image.
    pub(super) dirty: BTreeSet<BatchNo>,
    /// The same of segments: the batch and the number of the record.
    pub(super) dirty_segments: BTreeSet<(BatchNo, u32)>,
    /// Batches whose segments were removed.
    pub(super) emptied: BTreeSet<BatchNo>,
}

/// Derived from the records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Index {
    ids: BTreeMap<String, BatchNo>,
    by_namespace: BTreeMap<String, BTreeSet<BatchNo>>,
    by_run: BTreeMap<RunNo, BatchNo>,
    /// By the hash of namespace and idempotency key: the latest.
    idempotency: BTreeMap<[u8; 32], BatchNo>,
    own_keys: BTreeMap<OwnKey, BatchNo>,
    /// Those that have not ended.
    open: BTreeSet<BatchNo>,
    open_in: Counts,
    open_of_key: Counts,
    used_in: BTreeMap<String, BatchUse>,
    used: BatchUse,
    /// When records are removed.
    ends: DeadlineQueue<BatchNo>,
}

fn own_key(batch: &Batch) -> Option<OwnKey> {
    batch.spec.rollout_key().map(|key| (batch.namespace.clone(), key.to_owned()))
}

impl Index {
    /// Adds a batch that is newer than all others.
    pub(super) fn add(&mut self, no: BatchNo, batch: &Batch) {
        self.ids.insert(batch.id.clone(), no);
        self.by_namespace.entry(batch.namespace.clone()).or_default().insert(no);
        if let Some(hash) = batch.idempotency {
            self.idempotency.insert(hash, no);
        }
        if let Some(key) = own_key(batch) {
            self.own_keys.insert(key, no);
        }
        self.open.insert(no);
        self.open_in.add(&batch.namespace);
        self.open_of_key.add(&batch.key);
        self.used_in.entry(batch.namespace.clone()).or_default().batches += 1;
        self.used.batches += 1;
        self.add_bytes(batch, batch.text_bytes());
        self.start(no, batch);
        if batch.has_ended() {
            self.end(no, batch);
        }
    }

    fn add_bytes(&mut self, batch: &Batch, bytes: u64) {
        self.used_in.entry(batch.namespace.clone()).or_default().bytes += bytes;
        self.used.bytes += bytes;
    }

    fn start(&mut self, no: BatchNo, batch: &Batch) {
        if let Some(run) = batch.run() {
            self.by_run.insert(run, no);
        }
    }

    fn end(&mut self, no: BatchNo, batch: &Batch) {
        if self.open.remove(&no) {
            self.open_in.remove(&batch.namespace);
            self.open_of_key.remove(&batch.key);
        }
        self.ends.set(&no, batch.kept_until());
    }

    /// Removes a batch that has ended.
    fn remove(&mut self, no: BatchNo, batch: &Batch) {
        self.ids.remove(&batch.id);
        if let Some(all) = self.by_namespace.get_mut(&batch.namespace) {
            all.remove(&no);
            if all.is_empty() {
                self.by_namespace.remove(&batch.namespace);
            }
        }
        if let Some(run) = batch.run() {
            self.by_run.remove(&run);
        }
        if let Some(hash) = batch.idempotency.filter(|hash| self.idempotency.get(hash) == Some(&no))
        {
            self.idempotency.remove(&hash);
        }
        if let Some(key) = own_key(batch) {
            self.own_keys.remove(&key);
        }
        let bytes = batch.text_bytes();
        if let Some(used) = self.used_in.get_mut(&batch.namespace) {
            used.batches -= 1;
            used.bytes -= bytes;
            if used.batches == 0 {
                self.used_in.remove(&batch.namespace);
            }
        }
        self.used.batches -= 1;
        self.used.bytes -= bytes;
        self.ends.set(&no, None);
    }
}

impl Batches {
    pub(super) fn no(&self, id: &str) -> Option<BatchNo> {
        self.index.ids.get(id).copied()
    }

    pub(super) fn get(&self, id: &str) -> Option<&Batch> {
        self.by_no.get(&self.no(id)?)
    }

    /// The batch whose run this is or was.
    pub(super) fn of_run(&self, run: RunNo) -> Option<&Batch> {
        self.by_no.get(self.index.by_run.get(&run)?)
    }

    /// Those that have not ended, in the order of creation.
    pub(super) fn open(&self) -> impl Iterator<Item = (BatchNo, &Batch)> {
        self.index.open.iter().filter_map(|no| Some((*no, self.by_no.get(no)?)))
    }

    pub(super) fn open_count(&self) -> usize {
        self.index.open.len()
    }

    pub(super) fn open_in(&self, namespace: &str) -> usize {
        self.index.open_in.get(namespace)
    }

    pub(super) fn open_of_key(&self, key: &str) -> usize {
        self.index.open_of_key.get(key)
    }

    /// Those of a namespace that were created before another one, in the order of creation.
    pub(super) fn in_namespace(
        &self,
        namespace: &str,
        before: BatchNo,
    ) -> impl DoubleEndedIterator<Item = BatchNo> + use<'_> {
        let all = self.index.by_namespace.get(namespace).into_iter();
        all.flat_map(move |all| all.range(..before)).copied()
    }

    /// The batch that an earlier request with the same idempotency key, or with the same key of the client's own, made.
    pub(super) fn made_before(
        &self,
        namespace: &str,
        idempotency: Option<&[u8; 32]>,
        own: Option<&str>,
        now: LedgerMs,
    ) -> Option<&Batch> {
        let by_hash = idempotency.and_then(|hash| self.index.idempotency.get(hash));
        let by_hash = by_hash.and_then(|no| self.by_no.get(no));
        let own = own.map(|own| (namespace.to_owned(), own.to_owned()));
        let by_own = own.and_then(|own| self.by_no.get(self.index.own_keys.get(&own)?));
        by_hash.filter(|batch| batch.remembered_until() > now).or(by_own)
    }

    /// Adds a batch, newer than all others, for which [`Batches::make_room`] has made room.
    pub(super) fn add(&mut self, no: BatchNo, batch: Batch) {
        self.index.add(no, &batch);
        self.dirty.insert(no);
        self.by_no.insert(no, batch);
    }

    /// For a change that concerns no index.
    pub(super) fn change(&mut self, id: &str) -> Option<&mut Batch> {
        let no = self.no(id)?;
        self.dirty.insert(no);
        self.by_no.get_mut(&no)
    }

    /// Appends segments to a batch in validation, which then is at this stage.
    pub(super) fn append(&mut self, id: &str, more: Vec<SegmentDecl>, stage: Stage) {
        let Some(no) = self.no(id) else { return };
        let segments = self.segments.entry(no).or_default();
        let first = segments.len();
        segments.extend(more);
        let records = first / SEGMENTS_PER_RECORD..segments.len().div_ceil(SEGMENTS_PER_RECORD);
        self.dirty_segments.extend(records.map(|record| (no, record as u32)));
        if let Some(batch) = self.change(id) {
            batch.stage = stage;
        }
    }

    /// The segments of a batch in validation.
    pub(super) fn segments_of(&self, id: &str) -> &[SegmentDecl] {
        let no = self.no(id);
        no.and_then(|no| self.segments.get(&no)).map_or(&[], Vec::as_slice)
    }

    /// Takes the segments of a batch whose validation ends.
    fn take_segments(&mut self, no: BatchNo) -> Vec<SegmentDecl> {
        let Some(segments) = self.segments.remove(&no) else { return Vec::new() };
        self.emptied.insert(no);
        self.dirty_segments.retain(|of| of.0 != no);
        segments
    }

    /// Changes the stage of a batch. It has no owner then, and no segments.
    pub(super) fn set_stage(&mut self, id: &str, stage: Stage) {
        let Some(no) = self.no(id) else { return };
        self.take_segments(no);
        let Some(batch) = self.by_no.get_mut(&no) else { return };
        let before = batch.text_bytes();
        batch.stage = stage;
        batch.owner = None;
        let bytes = batch.text_bytes() - before;
        let batch = &*batch;
        self.index.add_bytes(batch, bytes);
        self.index.start(no, batch);
        if batch.has_ended() {
            self.index.end(no, batch);
        }
        self.dirty.insert(no);
    }

    /// Removes ended batches of the namespace, the oldest first, until one more with so many bytes of texts has room.
    ///
    /// # Errors
    /// [`Rejection::Limit`] if those that may be removed are not enough. Then nothing has changed.
    pub(super) fn make_room(
        &mut self,
        namespace: &str,
        bytes: u64,
        now: LedgerMs,
    ) -> Result<(), Rejection> {
        let mut own = self.index.used_in.get(namespace).copied().unwrap_or_default();
        let mut all = self.index.used;
        let mut goes = Vec::new();
        let mut may_go = self.in_namespace(namespace, BatchNo(u64::MAX)).filter_map(|no| {
            let batch = self.by_no.get(&no)?;
            (batch.has_ended() && batch.remembered_until() <= now).then(|| (no, batch.text_bytes()))
        });
        while let Some(over) = over(own, all, bytes) {
            let Some((no, less)) = may_go.next() else { return Err(over) };
            for used in [&mut own, &mut all] {
                used.batches -= 1;
                used.bytes -= less;
            }
            goes.push(no);
        }
        drop(may_go);
        goes.into_iter().for_each(|no| self.remove(no));
        Ok(())
    }

    fn remove(&mut self, no: BatchNo) {
        if let Some(batch) = self.by_no.remove(&no) {
            self.index.remove(no, &batch);
            self.dirty.insert(no);
        }
    }

    /// When the next record is removed.
    pub(crate) fn next_end(&self) -> Option<LedgerMs> {
        self.index.ends.first()
    }

    /// Removes the records whose time is over.
    pub(crate) fn forget_ended(&mut self, now: LedgerMs) {
        for no in self.index.ends.by(now) {
            self.remove(no);
        }
    }

    /// No member of another cluster has any work here.
    pub(crate) fn forget_owners(&mut self) {
        let open: Vec<BatchNo> = self.index.open.iter().copied().collect();
        for no in open {
            if let Some(batch) = self.by_no.get_mut(&no) {
                batch.owner = None;
            }
        }
    }
}

/// Segments of one batch that share a record of the image.
pub(super) const SEGMENTS_PER_RECORD: usize = 256;

/// The bound that one more batch would exceed.
fn over(own: BatchUse, all: BatchUse, bytes: u64) -> Option<Rejection> {
    let limit = |what: &str, max| Some(Rejection::Limit { what: what.into(), max });
    if own.batches >= limits::BATCHES_IN_NAMESPACE_MAX {
        return limit("batches of a namespace", limits::BATCHES_IN_NAMESPACE_MAX);
    }
    if all.batches >= limits::BATCHES_MAX {
        return limit("batches", limits::BATCHES_MAX);
    }
    if own.bytes + bytes > limits::BATCH_BYTES_IN_NAMESPACE_MAX {
        return limit("bytes of a namespace's batches", limits::BATCH_BYTES_IN_NAMESPACE_MAX);
    }
    if all.bytes + bytes > limits::BATCH_BYTES_MAX {
        return limit("bytes of batches", limits::BATCH_BYTES_MAX);
    }
    None
}
