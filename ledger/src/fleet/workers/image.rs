//! Image records of workers and their slots.
//!
//! *Invariant:* as in [`crate::machine::image`]. From [`SCHEDULING_VERSION`] on, `W` has a worker and what its slots offer,
//! and `Z` has what one slot holds, by session and slot; a slot that holds nothing has no `Z`. So a grant writes only
//! the record of its slot. Below that version `W` has everything, as builds of version 2 read it. Loading accepts
//! both layouts.

use super::Workers;
use crate::batch::slot_incidents::SlotIncident;
use crate::fleet::slot::Slot;
use crate::fleet::worker::Worker;
use crate::kernel::codec;
use crate::kernel::dirty_set::DirtySet;
use crate::kernel::id::{Attempt, LedgerMs, RunNo, SessionId, SlotNo, SlotRef};
use crate::kernel::reply::GrantedRows;
use crate::machine::image::{ImageDelta, key};
use crate::machine::image_load::{LoadError, bad, number, read};
use crate::machine::version_gate::SCHEDULING_VERSION;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// The records of workers and slots that differ from the image, or whose index entries are stale.
#[derive(Clone, Debug, Default)]
pub(super) struct DirtyWorkers {
    pub(super) workers: DirtySet<SessionId>,
    pub(super) slots: DirtySet<SlotRef>,
}

/// A slot without its offer.
#[derive(Serialize, Deserialize)]
struct SlotRecord<'a> {
    held: Cow<'a, BTreeSet<(RunNo, Attempt)>>,
    rows_held: u64,
    rows_done: u64,
    last_pull: u64,
    last_grant: Cow<'a, [GrantedRows]>,
    trial: Option<(RunNo, Attempt)>,
    deaths: u64,
    incidents: Cow<'a, [SlotIncident]>,
    cordoned_until: Option<LedgerMs>,
    last_death: u64,
    cordon: Option<Cow<'a, str>>,
}

fn worker_key(session: SessionId) -> Vec<u8> {
    key(b'W', &[&session.0.to_be_bytes()])
}

fn slot_key(at: SlotRef) -> Vec<u8> {
    key(b'Z', &[&at.session.0.to_be_bytes(), &at.slot.0.to_be_bytes()])
}

/// A slot with an offer that holds nothing and never held anything.
fn blank(slot: &Slot) -> Slot {
    Slot { offer: slot.offer.clone(), offer_no: slot.offer_no, ..Slot::default() }
}

fn worker_record(worker: &Worker, version: u32) -> Vec<u8> {
    if version < SCHEDULING_VERSION {
        return codec::encode(worker);
    }
    let slots = worker.slots.iter().map(blank).collect();
    codec::encode(&Worker { slots, ..worker.clone() })
}

/// `None` for a slot that holds nothing.
fn slot_record(slot: &Slot) -> Option<Vec<u8>> {
    // Every field is named, so that a new one is not forgotten.
    let Slot {
        offer: _,
        offer_no: _,
        counted: _,
        held,
        rows_held,
        rows_done,
        last_pull,
        last_grant,
        trial,
        deaths,
        incidents,
        cordoned_until,
        last_death,
        cordon,
    } = slot;
    let record = SlotRecord {
        held: Cow::Borrowed(held),
        rows_held: *rows_held,
        rows_done: *rows_done,
        last_pull: *last_pull,
        last_grant: Cow::Borrowed(last_grant),
        trial: *trial,
        deaths: *deaths,
        incidents: Cow::Borrowed(incidents),
        cordoned_until: *cordoned_until,
        last_death: *last_death,
        cordon: cordon.as_deref().map(Cow::Borrowed),
    };
    let record = codec::encode(&record);
    // After the version, each number, each length and each option is one zero byte.
    record.iter().skip(1).any(|byte| *byte != 0).then_some(record)
}

impl Workers {
    /// Takes the records that changed since the last call, in the layout of this cluster version.
    pub(crate) fn drain(&mut self, version: u32, delta: &mut ImageDelta) {
        let slots = self.dirty.slots.take_image();
        let mut workers = self.dirty.workers.take_image();
        if version < SCHEDULING_VERSION {
            workers.extend(slots.iter().map(|slot| slot.session));
        } else {
            for at in slots {
                delta.set(slot_key(at), self.slot(at).and_then(slot_record));
            }
        }
        for id in workers {
            let worker = self.by_session.get(&id);
            delta.set(worker_key(id), worker.map(|worker| worker_record(worker, version)));
        }
    }

    pub(crate) fn each_worker(&self, version: u32, each: &mut impl FnMut(&[u8], &[u8])) {
        for (id, worker) in &self.by_session {
            each(&worker_key(*id), &worker_record(worker, version));
        }
    }

    pub(crate) fn each_slot(&self, version: u32, each: &mut impl FnMut(&[u8], &[u8])) {
        if version < SCHEDULING_VERSION {
            return;
        }
        for (_, at, slot) in self.slots() {
            if let Some(record) = slot_record(slot) {
                each(&slot_key(at), &record);
            }
        }
    }

    /// The version was raised: every worker has another layout from here on.
    pub(crate) fn mark_all(&mut self) {
        let all: Vec<_> = self.by_session.values().map(|w| (w.id, w.slots.len())).collect();
        for (session, slots) in all {
            self.mark(session);
            self.mark_slots(session, slots);
        }
    }

    /// Forgets which records differ from the image, because there is no image yet.
    pub(crate) fn forget_dirty(&mut self) {
        self.dirty = DirtyWorkers::default();
    }

    /// Reads a record `W`.
    pub(crate) fn load(&mut self, key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        self.by_session.insert(SessionId(u64::from_be_bytes(number(key, 1)?)), read(key, value)?);
        Ok(())
    }

    /// Takes a record `Z`, which comes after its worker's.
    pub(crate) fn load_slot(&mut self, record_key: &[u8], value: &[u8]) -> Result<(), LoadError> {
        let session = SessionId(u64::from_be_bytes(number(record_key, 1)?));
        let slot = SlotNo(u16::from_be_bytes(number(record_key, 9)?));
        let record: SlotRecord<'_> = read(record_key, value)?;
        let worker = self.by_session.get_mut(&session).ok_or_else(|| bad(record_key))?;
        let slot = worker.slots.get_mut(usize::from(slot.0)).ok_or_else(|| bad(record_key))?;
        *slot = Slot {
            held: record.held.into_owned(),
            rows_held: record.rows_held,
            rows_done: record.rows_done,
            last_pull: record.last_pull,
            last_grant: record.last_grant.into_owned(),
            trial: record.trial,
            deaths: record.deaths,
            incidents: record.incidents.into_owned(),
            cordoned_until: record.cordoned_until,
            last_death: record.last_death,
            cordon: record.cordon.map(Cow::into_owned),
            ..blank(slot)
        };
        Ok(())
    }
}
