//! Image records of runs.
//!
//! *Invariant:* as in [`crate::machine::image`]. Keys: `R` a run's head; `P` some of its parts, by run and chunk; `T`
//! a row's failure record, by run and row.
//! Absent: records of rows in flight (`flight_image.rs`), and of segments and outcomes (`outcome_image.rs`).

use super::Runs;
use crate::batch::failure_record::FailureRecord;
use crate::batch::flight_image::FLIGHT_TAGS;
use crate::batch::incident::{Incident, NamedSlot};
use crate::batch::run::{PauseState, Run, RunHead};
use crate::kernel::codec;
use crate::kernel::dirty_set::DirtySet;
use crate::kernel::id::{RunNo, SegmentNo};
use crate::machine::command::PartDecl;
use crate::machine::image::{ImageDelta, run_key};
use crate::machine::image_load::{LoadError, bad, number, read};
use std::collections::BTreeSet;

/// Parts of one run that share a record.
pub(super) const PARTS_PER_RECORD: u32 = 256;

/// The records of runs that differ from the image on disk, or whose index entries are stale.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyRuns {
    /// Heads, with the rows in flight.
    pub(super) heads: DirtySet<RunNo>,
    pub(super) segments: BTreeSet<(RunNo, SegmentNo)>,
    pub(super) parts: BTreeSet<(RunNo, u32)>,
    pub(super) failures: BTreeSet<(RunNo, u64)>,
    /// Runs whose segments, parts and failure records were all removed at once.
    pub(super) emptied: BTreeSet<RunNo>,
}

fn parts_record(run: &Run, chunk: u32) -> Option<Vec<u8>> {
    run.parts.chunks(PARTS_PER_RECORD as usize).nth(chunk as usize).map(|c| codec::encode(&c))
}

fn head_record(head: &RunHead) -> Vec<u8> {
    match head.pause == PauseState::default() {
        true => codec::encode(head),
        false => codec::encode(&(head, &head.pause)),
    }
}

fn encode_failure_record(record: &FailureRecord) -> Vec<u8> {
    #[cfg(feature = "seeded-bugs")]
    let record = &crate::machine::seeded::imaged_failure_record(record);
    match &record.incident {
        None => codec::encode(record),
        Some(incident) if incident.earlier.is_empty() => codec::encode(&(record, incident)),
        Some(incident) => codec::encode(&(record, incident, &incident.earlier)),
    }
}

/// Reads a run's head. The state of its pauses follows it unless that is the default, from cluster version 3 on.
fn load_head(key: &[u8], value: &[u8]) -> Result<RunHead, LoadError> {
    if let Some(head) = codec::decode(value) {
        return Ok(head);
    }
    let (head, pause): (RunHead, PauseState) = read(key, value)?;
    // The default is never written, and every worker has a name.
    if pause == PauseState::default() || pause.refused.as_deref() == Some("") {
        return Err(bad(key));
    }
    Ok(RunHead { pause, ..head })
}

/// Reads a row's failure record. From cluster version 3 on an incident may follow it, and from version 4 on the slots
/// that failed the row before.
fn load_failure_record(key: &[u8], value: &[u8]) -> Result<FailureRecord, LoadError> {
    if let Some(record) = codec::decode(value) {
        return Ok(record);
    }
    if let Some((record, incident)) = codec::decode::<(FailureRecord, Incident)>(value) {
        return Ok(FailureRecord { incident: Some(incident), ..record });
    }
    let (record, incident, earlier): (FailureRecord, Incident, Vec<NamedSlot>) = read(key, value)?;
    let incident = Incident { earlier, ..incident };
    // An empty list is never written.
    if incident.earlier.is_empty() || incident.check().is_err() {
        return Err(bad(key));
    }
    Ok(FailureRecord { incident: Some(incident), ..record })
}

impl Runs {
    /// Takes the records that changed since the last call, in the layout of this cluster version.
    pub(crate) fn drain(&mut self, version: u32, delta: &mut ImageDelta) {
        for no in std::mem::take(&mut self.dirty.emptied) {
            let tags = [b'S', b'P', b'T', b'Y'].into_iter().chain(FLIGHT_TAGS);
            delta.delete_prefixes.extend(tags.map(|tag| run_key(tag, no, &[])));
        }
        for no in self.dirty.heads.take_image() {
            let run = self.by_no.get_mut(&no);
            delta.set(run_key(b'R', no, &[]), run.as_ref().map(|r| head_record(&r.head)));
            match run {
                Some(run) => run.drain_flight(version, delta),
                None => delta.deletes.push(run_key(b'F', no, &[])),
            }
        }
        for (no, number) in std::mem::take(&mut self.dirty.segments) {
            self.drain_segment(no, number, delta);
        }
        for (no, chunk) in std::mem::take(&mut self.dirty.parts) {
            let value = self.by_no.get(&no).and_then(|r| parts_record(r, chunk));
            delta.set(run_key(b'P', no, &chunk.to_be_bytes()), value);
        }
        for (no, row) in std::mem::take(&mut self.dirty.failures) {
            let record = self.by_no.get(&no).and_then(|r| r.failures.get(&row));
            let value = record.map(encode_failure_record);
            delta.set(run_key(b'T', no, &row.to_be_bytes()), value);
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty = DirtyRuns::default();
        self.by_no.values_mut().for_each(|run| run.flight.mark_none());
    }

    pub(crate) fn each_part(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in &self.by_no {
            for (chunk, parts) in run.parts.chunks(PARTS_PER_RECORD as usize).enumerate() {
                let number = (chunk as u32).to_be_bytes();
                each(&run_key(b'P', *no, &number), &codec::encode(&parts));
            }
        }
    }

    pub(crate) fn each_head(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in &self.by_no {
            each(&run_key(b'R', *no, &[]), &head_record(&run.head));
        }
    }

    pub(crate) fn each_failure_record(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in &self.by_no {
            for (row, record) in &run.failures {
                each(&run_key(b'T', *no, &row.to_be_bytes()), &encode_failure_record(record));
            }
        }
    }

    /// Reads a record of a run.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let no = RunNo(u32::from_be_bytes(number(key, 1)?));
        let run = self.by_no.entry(no).or_insert_with(|| Run { no, ..Run::default() });
        match key.first() {
            Some(b'R') => run.head = load_head(key, value)?,
            Some(b'F') => run.load_flight(key, value)?,
            Some(b'O') => run.load_attempt(key, value)?,
            Some(b'Y') => run.load_block(key, value)?,
            Some(b'V') => run.load_returned(key, value)?,
            Some(b'S') => {
                let at = u32::from_be_bytes(number(key, 5)?);
                if at as usize != run.segments.len() {
                    return Err(bad(key));
                }
                run.segments.push(read(key, value)?);
            }
            Some(b'P') => {
                let parts: Vec<PartDecl> = read(key, value)?;
                run.parts.extend(parts);
            }
            Some(b'T') => {
                let row = u64::from_be_bytes(number(key, 5)?);
                let record = load_failure_record(key, value)?;
                run.failures.insert(row, record);
            }
            _ => return Err(bad(key)),
        }
        Ok(())
    }

    /// Refuses a run whose records are not all there, or whose counters do not fit its rows.
    pub(crate) fn check_loaded(&self) -> Result<(), LoadError> {
        // A run without a name lacks its own record; a run whose segments do not cover its rows lacks some of them.
        let whole = |run: &Run| {
            let end = run.segments.last().map_or(0, |s| s.end());
            !run.head.name.is_empty() && (end == run.head.rows || !run.has_rows())
        };
        match self.by_no.values().find(|run| !whole(run) || !run.counts_fit()) {
            Some(run) => Err(bad(&run_key(b'R', run.no, &[]))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::incident::EndKind;
    use crate::kernel::id::{LedgerMs, SlotNo};

    fn named(worker: &str) -> NamedSlot {
        NamedSlot { worker: worker.to_owned(), slot: SlotNo(0) }
    }

    /// Loads the record of a row that failed at `c`, with these slots as the earlier ones, and returns its incident.
    fn loaded(until: Option<LedgerMs>, earlier: &[&str]) -> Result<Option<Incident>, LoadError> {
        let (end, at) = (EndKind::RowFailed, named("c"));
        let incident = Incident { end, at, until, died_alone_at: None, earlier: Vec::new() };
        let earlier: Vec<NamedSlot> = earlier.iter().map(|worker| named(worker)).collect();
        let value = codec::encode(&(FailureRecord::default(), incident, earlier));
        let (no, row) = (RunNo(1), 2u64);
        let mut runs = Runs::default();
        runs.load(&run_key(b'T', no, &row.to_be_bytes()), &value)?;
        let record = runs.by_no.get(&no).and_then(|run| run.failures.get(&row));
        Ok(record.and_then(|record| record.incident.clone()))
    }

    #[test]
    fn a_record_of_earlier_slots_that_contradicts_its_incident_is_refused() {
        let open = Some(LedgerMs(600_000));
        let incident = loaded(open, &["b", "a"]).expect("it loads").expect("it has one");
        assert_eq!((incident.until, incident.at.worker.as_str()), (open, "c"));
        assert_eq!(incident.earlier, [named("b"), named("a")]);
        assert_eq!(incident.check(), Ok(()));
        let (twice, own) = (vec!["b", "b"], vec!["b", "c"]);
        let closed = [(None, vec!["b", "a"]), (None, vec![])];
        for (until, earlier) in
            [(open, vec![]), (open, twice), (open, own)].into_iter().chain(closed)
        {
            let refused = loaded(until, &earlier);
            assert!(matches!(refused, Err(LoadError::Record { .. })), "{until:?} {earlier:?}");
        }
    }
}
