//! Image records of the outcomes of a segment's rows.
//!
//! *Invariant:* as in [`crate::machine::image`]. A segment in which nothing was decided before
//! [`SCHEDULING_VERSION`](crate::SCHEDULING_VERSION) has its outcomes in records `Y` of [`ROWS_PER_RECORD`] rows, by
//! run, segment and block; a block without outcomes has no record, and the segment's own record `S` is short. So
//! deciding a row writes its block and not its segment. An older segment keeps its layout, all of it in `S`:
//! converting all of them at once would take seconds on every member.

use crate::batch::run::Run;
use crate::batch::runs::Runs;
use crate::batch::segment::{Outcome, Segment};
use crate::kernel::codec;
use crate::kernel::id::{RunNo, SegmentNo};
use crate::machine::command::BlobRef;
use crate::machine::image::{ImageDelta, run_key};
use crate::machine::image_load::{LoadError, bad, read};
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use serde::Serialize;

/// Rows that share a record. A segment has at most as many blocks as [`Segment`] has marks.
pub(crate) const ROWS_PER_RECORD: usize = 256;

/// A [`Segment`] without its outcomes. Its encoding is that of one, field by field.
#[derive(Serialize)]
struct Head<'a> {
    first_row: u64,
    rows: u32,
    blob: &'a BlobRef,
    decided: u32,
    outcomes: &'a [Outcome],
}

fn block_key(no: RunNo, SegmentNo(number): SegmentNo, block: u8) -> Vec<u8> {
    let [a, b, c, d] = number.to_be_bytes();
    run_key(b'Y', no, &[a, b, c, d, block])
}

fn segment_record(segment: &Segment) -> Vec<u8> {
    if !segment.split {
        return codec::encode(segment);
    }
    let Segment { first_row, rows, ref blob, decided, .. } = *segment;
    codec::encode(&Head { first_row, rows, blob, decided, outcomes: &[] })
}

fn block_record(segment: &Segment, block: u8) -> Option<Vec<u8>> {
    let outcomes = segment.outcomes.chunks(ROWS_PER_RECORD).nth(block.into())?;
    let any = outcomes.iter().any(|outcome| *outcome != Outcome::NONE);
    any.then(|| codec::encode(&outcomes))
}

impl Runs {
    /// Drains the changes of a segment.
    pub(super) fn drain_segment(&mut self, no: RunNo, number: SegmentNo, delta: &mut ImageDelta) {
        let key = run_key(b'S', no, &number.0.to_be_bytes());
        let run = self.get_mut(&no);
        let Some(segment) = run.and_then(|run| run.segments.get_mut(number.0 as usize)) else {
            return delta.deletes.push(key);
        };
        delta.puts.push((key, segment_record(segment)));
        for block in segment.take_changed() {
            delta.set(block_key(no, number, block), block_record(segment, block));
        }
    }
}

impl Ledger {
    pub(crate) fn each_segment(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in self.runs.iter() {
            for (number, segment) in (0u32..).zip(&run.segments) {
                each(&run_key(b'S', *no, &number.to_be_bytes()), &segment_record(segment));
            }
        }
    }

    pub(crate) fn each_block(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in self.runs.iter() {
            for (number, segment) in (0u32..).zip(&run.segments).filter(|s| s.1.split) {
                for block in 0..segment.blocks() {
                    if let Some(record) = block_record(segment, block) {
                        each(&block_key(*no, SegmentNo(number), block), &record);
                    }
                }
            }
        }
    }

    /// From here on outcomes of segments without any are kept in blocks.
    pub(crate) fn split_segments(&mut self) {
        let split = self.meta.version() >= SCHEDULING_VERSION;
        for segment in self.runs.values_mut().flat_map(|run| &mut run.segments) {
            segment.split |= split && segment.outcomes.is_empty();
        }
    }
}

impl Run {
    /// Takes a record `Y`; that of its segment came before.
    pub(crate) fn load_block(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let rest = key.get(5..).and_then(|rest| rest.split_first_chunk());
        let Some((number, &[block])) = rest else { return Err(bad(key)) };
        let outcomes: Vec<Outcome> = read(key, value)?;
        let segment = self.segments.get_mut(u32::from_be_bytes(*number) as usize);
        let segment = segment.ok_or_else(|| bad(key))?;
        // A segment with its outcomes in its own record has no other records.
        if segment.outcomes.is_empty() {
            segment.split = true;
            segment.outcomes = vec![Outcome::NONE; segment.rows as usize].into_boxed_slice();
        }
        let place = segment.outcomes.chunks_mut(ROWS_PER_RECORD).nth(block.into());
        match place.filter(|place| segment.split && place.len() == outcomes.len()) {
            Some(place) => place.copy_from_slice(&outcomes),
            None => return Err(bad(key)),
        }
        Ok(())
    }
}
