//! Image records of batches.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `E\x05` and the number of a batch; `E\x06`, the number of a
//! batch in validation, and that of a record with up to [`SEGMENTS_PER_RECORD`] of its segments. They are below the tag
//! of join tokens, as the keys of files are.

use crate::kernel::codec;
use crate::kernel::id::BatchNo;
use crate::machine::command::SegmentDecl;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, number, read};
use crate::openai::batch::{Batch, Stage};
use crate::openai::batches::{Batches, Index, SEGMENTS_PER_RECORD};

const BATCH: u8 = 5;
const SEGMENTS: u8 = 6;

fn batch_key(no: BatchNo) -> Vec<u8> {
    key(b'E', &[&[BATCH], &no.0.to_be_bytes()])
}

fn segments_key(no: BatchNo, record: &[u8]) -> Vec<u8> {
    key(b'E', &[&[SEGMENTS], &no.0.to_be_bytes(), record])
}

impl Batches {
    /// Whether a record with this key is one of a batch.
    pub(crate) fn owns(key: &[u8]) -> bool {
        matches!(key, [b'E', BATCH | SEGMENTS, ..])
    }

    /// Takes the records that changed since the last call.
    pub(crate) fn drain(&mut self, delta: &mut ImageDelta) {
        for no in std::mem::take(&mut self.emptied) {
            delta.delete_prefixes.push(segments_key(no, &[]));
        }
        for no in std::mem::take(&mut self.dirty) {
            delta.set(batch_key(no), self.by_no.get(&no).map(codec::encode));
        }
        for (no, record) in std::mem::take(&mut self.dirty_segments) {
            let all = self.segments.get(&no).map(|all| all.chunks(SEGMENTS_PER_RECORD));
            let chunk = all.and_then(|mut all| all.nth(record as usize));
            delta.set(segments_key(no, &record.to_be_bytes()), chunk.map(|c| codec::encode(&c)));
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty.clear();
        self.dirty_segments.clear();
        self.emptied.clear();
    }

    pub(crate) fn each_batch(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, batch) in &self.by_no {
            each(&batch_key(*no), &codec::encode(batch));
        }
    }

    pub(crate) fn each_segments(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, segments) in &self.segments {
            for (record, chunk) in (0u32..).zip(segments.chunks(SEGMENTS_PER_RECORD)) {
                each(&segments_key(*no, &record.to_be_bytes()), &codec::encode(&chunk));
            }
        }
    }

    /// Reads a record. Those of one batch's segments come in their order.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let no = BatchNo(u64::from_be_bytes(number(key, 2)?));
        if key.get(1) == Some(&BATCH) {
            let batch: Batch = read(key, value)?;
            self.by_no.insert(no, batch);
            return Ok(());
        }
        let record = u32::from_be_bytes(number(key, 10)?) as usize;
        let chunk: Vec<SegmentDecl> = read(key, value)?;
        let segments = self.segments.entry(no).or_default();
        if segments.len() != record * SEGMENTS_PER_RECORD || chunk.is_empty() {
            return Err(bad(key));
        }
        segments.extend(chunk);
        Ok(())
    }

    /// Refuses segments that belong to no batch in validation, and batches whose segments are not all there.
    pub(crate) fn check_loaded(&self) -> Result<(), LoadError> {
        for (no, batch) in &self.by_no {
            let rows = match &batch.stage {
                Stage::Validating(cursor) => cursor.rows,
                _ => 0,
            };
            let segments = self.segments.get(no).into_iter().flatten();
            if segments.map(|segment| u64::from(segment.rows)).sum::<u64>() != rows {
                return Err(bad(&batch_key(*no)));
            }
        }
        match self.segments.keys().find(|no| !self.by_no.contains_key(no)) {
            Some(no) => Err(bad(&segments_key(*no, &[]))),
            None => Ok(()),
        }
    }

    /// Rebuilds what is derived.
    pub(crate) fn derive(&mut self) {
        self.index = Index::default();
        for (no, batch) in &self.by_no {
            self.index.add(*no, batch);
        }
    }
}
