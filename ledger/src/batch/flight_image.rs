//! Image records of what workers hold of a run.
//!
//! *Invariant:* as in [`crate::machine::image`]. From [`SCHEDULING_VERSION`] on a record changes only with its contents: `O`
//! has one attempt, by run and number; `V` some of the returned rows, by run and chunk; and `F` the rest, which is
//! small. Below that version `F` has everything, as builds of version 2 read it. The command that raises the version
//! marks everything, so that the next delta converts the image. Loading accepts both layouts.

use crate::batch::attempts::Attempts;
use crate::batch::bisection::{BisectionGroup, GroupNo};
use crate::batch::disjoint_attempts::DisjointAttempts;
use crate::batch::grant::Grant;
use crate::batch::returned_rows::{ROWS_PER_RECORD, Returned};
use crate::batch::run::{InFlight, Run};
use crate::kernel::codec;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SlotRef};
use crate::kernel::rows::Rows;
use crate::machine::image::{ImageDelta, run_key};
use crate::machine::image_load::{LoadError, bad, number, read};
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The tags of records, besides `F`, that a run has only while rows are in flight.
pub(crate) const FLIGHT_TAGS: [u8; 2] = [b'O', b'V'];

/// [`InFlight`] without the parts that have separate records. Its encoding is that of an [`InFlight`], field by
/// field.
#[derive(Serialize)]
struct Rest<'a> {
    returned: Returned,
    grants: Attempts,
    lapsed: DisjointAttempts,
    speculative: DisjointAttempts,
    groups: &'a BTreeMap<GroupNo, BisectionGroup>,
    excluded: &'a BTreeMap<GroupNo, (SlotRef, LedgerMs)>,
    groups_made: GroupNo,
}

/// One attempt: at least one of these.
#[derive(Serialize)]
struct AttemptRecord<'a> {
    grant: Option<&'a Grant>,
    lapsed: Option<&'a Grant>,
    speculative: Option<&'a Grant>,
}

#[derive(Deserialize)]
struct LoadedAttempt {
    grant: Option<Grant>,
    lapsed: Option<Grant>,
    speculative: Option<Grant>,
}

fn attempt_key(no: RunNo, attempt: Attempt) -> Vec<u8> {
    run_key(b'O', no, &attempt.0.to_be_bytes())
}

fn chunk_key(no: RunNo, chunk: u64) -> Vec<u8> {
    // A run's rows fit 32 bits.
    run_key(b'V', no, &(chunk as u32).to_be_bytes())
}

fn flight_record(flight: &InFlight, version: u32) -> Vec<u8> {
    if version < SCHEDULING_VERSION {
        return codec::encode(flight);
    }
    let InFlight { groups, excluded, groups_made, .. } = flight;
    codec::encode(&Rest {
        returned: Returned::default(),
        grants: Attempts::default(),
        lapsed: DisjointAttempts::default(),
        speculative: DisjointAttempts::default(),
        groups,
        excluded,
        groups_made: *groups_made,
    })
}

fn attempt_record(flight: &InFlight, attempt: Attempt) -> Option<Vec<u8>> {
    let (grant, lapsed) = (flight.grants.get(&attempt), flight.lapsed.get(&attempt));
    let speculative = flight.speculative.get(&attempt);
    grant.or(lapsed).or(speculative)?;
    Some(codec::encode(&AttemptRecord { grant, lapsed, speculative }))
}

impl InFlight {
    fn attempts(&self) -> BTreeSet<Attempt> {
        let all = self.grants.keys().chain(self.lapsed.keys()).chain(self.speculative.keys());
        all.copied().collect()
    }

    fn take_changed(&mut self) -> (BTreeSet<Attempt>, BTreeSet<u64>) {
        let mut attempts = self.grants.take_changed();
        attempts.append(&mut self.lapsed.take_changed());
        attempts.append(&mut self.speculative.take_changed());
        self.avoided.forget_changes();
        (attempts, self.returned.take_changed())
    }

    /// Nothing of it differs from the image.
    pub(crate) fn mark_none(&mut self) {
        self.take_changed();
    }
}

impl Run {
    /// Drains the changes of what workers hold.
    pub(crate) fn drain_flight(&mut self, version: u32, delta: &mut ImageDelta) {
        let no = self.no;
        delta.set(run_key(b'F', no, &[]), Some(flight_record(&self.flight, version)));
        let (attempts, chunks) = self.flight.take_changed();
        if version < SCHEDULING_VERSION {
            return;
        }
        for attempt in attempts {
            delta.set(attempt_key(no, attempt), attempt_record(&self.flight, attempt));
        }
        for chunk in chunks {
            let rows = self.flight.returned.chunk(chunk);
            delta.set(chunk_key(no, chunk), rows.as_ref().map(codec::encode));
        }
    }

    /// Takes a record `F`, of either layout.
    pub(crate) fn load_flight(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let loaded: InFlight = read(key, value)?;
        let flight = &mut self.flight;
        flight.returned.unite(&loaded.returned.to_rows());
        loaded.grants.into_iter().for_each(|(attempt, grant)| flight.grants.insert(attempt, grant));
        for (attempt, grant) in &loaded.speculative {
            flight.speculative.insert(*attempt, grant.clone());
        }
        for (attempt, grant) in &loaded.lapsed {
            flight.lapsed.insert(*attempt, grant.clone());
        }
        (flight.groups, flight.excluded) = (loaded.groups, loaded.excluded);
        flight.groups_made = loaded.groups_made;
        Ok(())
    }

    /// Takes a record `O`.
    pub(crate) fn load_attempt(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let attempt = Attempt(u64::from_be_bytes(number(key, 5)?));
        let LoadedAttempt { grant, lapsed, speculative } = read(key, value)?;
        if grant.is_none() && lapsed.is_none() && speculative.is_none() {
            return Err(bad(key));
        }
        let flight = &mut self.flight;
        grant.into_iter().for_each(|grant| flight.grants.insert(attempt, grant));
        lapsed.into_iter().for_each(|grant| flight.lapsed.insert(attempt, grant));
        speculative.into_iter().for_each(|grant| flight.speculative.insert(attempt, grant));
        Ok(())
    }

    /// Takes a record `V`.
    pub(crate) fn load_returned(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let first = u64::from(u32::from_be_bytes(number(key, 5)?)) * ROWS_PER_RECORD;
        let rows: Rows = read(key, value)?;
        let inside = rows.ranges().first().is_some_and(|range| range.0 >= first);
        if !inside || rows.end() > first + ROWS_PER_RECORD {
            return Err(bad(key));
        }
        self.flight.returned.unite(&rows);
        Ok(())
    }
}

impl Ledger {
    pub(crate) fn each_flight(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in self.runs.iter() {
            each(&run_key(b'F', *no, &[]), &flight_record(&run.flight, self.meta.version()));
        }
    }

    pub(crate) fn each_attempt(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in self.runs.iter().filter(|_| self.meta.version() >= SCHEDULING_VERSION) {
            for attempt in run.flight.attempts() {
                // invariant: it is in one of the maps.
                let record = attempt_record(&run.flight, attempt).unwrap_or_default();
                each(&attempt_key(*no, attempt), &record);
            }
        }
    }

    pub(crate) fn each_returned(&self, each: &mut impl FnMut(&[u8], &[u8])) {
        for (no, run) in self.runs.iter().filter(|_| self.meta.version() >= SCHEDULING_VERSION) {
            for chunk in run.flight.returned.chunks() {
                let rows = run.flight.returned.chunk(chunk).unwrap_or_default();
                each(&chunk_key(*no, chunk), &codec::encode(&rows));
            }
        }
    }

    /// The version was raised from `before`: the image has another layout from here on.
    pub(crate) fn convert_image(&mut self, before: u32) {
        if before >= SCHEDULING_VERSION || self.meta.version() < SCHEDULING_VERSION {
            return;
        }
        self.split_segments();
        self.workers.mark_all();
        self.runs.change_all(|run| {
            let flight = &mut run.flight;
            flight.grants.mark_all();
            flight.lapsed.mark_all();
            flight.speculative.mark_all();
            flight.returned.mark_all();
            flight.excluded.clear();
        });
    }
}
