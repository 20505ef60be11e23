//! Owns: the finished rows of all slots of this worker, combined by run into parts, until the leader has answered for
//! them. A part is one object in the store and one request.
//!
//! Invariant: a finished row is in exactly one part. Every slot adds to an open part; the slot that closes a part
//! stores, reports and settles it. A part closes no later than its rows allow, and at the latest when its run has
//! nothing more for the slots that wrote it. Open parts are bounded in rows and bytes; too many closed parts stop the
//! slots from starting rows.
//! Absent: the upload and the exchange, which the closing slot does, and how many rows a slot asks for.

mod backlog;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use self::backlog::Backlog;
use crate::config::PartConfig;
use crate::lease_table::LeaseTable;
use crate::leased_rows::{LeasedRows, NamedRows};
use crate::part::{Finished, OpenPart, PartId};
use crate::spool::{SpoolHandle, SpoolRoom};

/// When a slot has free places and gets no rows, its part closes at this age, because a quota may be waiting for these
/// rows. If the part's run has no more rows to grant, the part closes this long after the last row of a slot that
/// holds no other rows: the ledger gives a slot a trial only once the slot holds no rows.
const STARVED_AFTER: Duration = Duration::from_secs(1);
/// Delay after a run's last row, in an idle slot.
const QUIET_IDLE: Duration = Duration::from_millis(100);
/// Delay after a run's last row, in a slot busy with other runs.
const QUIET_BUSY: Duration = Duration::from_millis(500);
/// Rows and bytes of all open parts; above either, the oldest closes. The ledger bounds what a slot holds to twice
/// this number of rows.
const OPEN_ROWS_MAX: usize = 8192;
const OPEN_BYTES_MAX: usize = 64 << 20;
/// How many runs without more rows to grant are remembered.
const TAILS_MAX: usize = 1024;

/// How busy a slot is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotLoad {
    /// It has waiting rows, or no free place.
    Busy,
    /// It has free places, and its pull waits at the leader.
    Starved,
    /// It holds no unfinished row.
    Idle,
    /// It drains and holds no unfinished row.
    Leaving,
}

/// Why a part was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    /// It has the maximum number of rows or bytes.
    Size,
    Age,
    /// A slot has free places and gets no rows.
    Starved,
    /// The worker holds no unfinished row of the run.
    Quiet,
    Drain,
    /// Open parts of all runs together exceed their bounds of rows or bytes.
    Bounds,
}

impl Reason {
    fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Age => "age",
            Self::Starved => "starved",
            Self::Quiet => "quiet",
            Self::Drain => "drain",
            Self::Bounds => "bounds",
        }
    }
}

/// The combiner's record of a slot.
pub(crate) struct Member {
    pub(crate) lease_table: Arc<Mutex<LeaseTable>>,
    pub(crate) spool: SpoolHandle,
    /// Notified when another slot changes something of this slot's.
    pub(crate) changed: Arc<Notify>,
}

pub(crate) struct Combiner {
    config: PartConfig,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    slots: BTreeMap<u32, Member>,
    /// By run.
    open: BTreeMap<u32, Open>,
    closed: Backlog,
    /// Runs that have no more rows to grant, as the leader last reported.
    tails: BTreeSet<u32>,
    next: u64,
}

struct Open {
    part: OpenPart,
    close_by: Instant,
    /// Since when the worker holds no unfinished row of the run.
    quiet: Option<Instant>,
    /// When each slot last wrote to it.
    written: BTreeMap<u32, Instant>,
}

impl Open {
    fn is_of(&self, slot: u32) -> bool {
        self.part.files.iter().any(|(of, _)| *of == slot)
    }

    /// When a slot that wrote to it will close it, and why.
    fn closes(&self, slot: u32, load: SlotLoad, tail: bool) -> (Instant, Reason) {
        let opened = self.part.opened;
        let busy = load == SlotLoad::Busy;
        let written = self.written.get(&slot).copied().unwrap_or(opened);
        let starved = match (tail, load) {
            (_, SlotLoad::Busy) | (true, SlotLoad::Starved) => None,
            (false, _) => Some((opened + STARVED_AFTER, Reason::Starved)),
            (true, SlotLoad::Idle | SlotLoad::Leaving) => {
                Some((written + STARVED_AFTER, Reason::Starved))
            }
        };
        let drain = (load == SlotLoad::Leaving).then_some((opened, Reason::Drain));
        let wait = if busy { QUIET_BUSY } else { QUIET_IDLE };
        let quiet = self.quiet.map(|since| (since + wait, Reason::Quiet));
        let all = [starved, drain, quiet].into_iter().flatten();
        all.chain([(self.close_by, Reason::Age)])
            .min_by_key(|(at, _)| *at)
            .unwrap_or((opened, Reason::Age))
    }
}

impl Combiner {
    pub(crate) fn new(config: PartConfig) -> Self {
        Self { config, inner: Mutex::default() }
    }

    /// Adds a slot. The numbers of its parts from an earlier process, if any, are below `next`.
    pub(crate) fn join(&self, slot: u32, member: Member, next: u64) {
        let mut inner = self.inner.lock();
        inner.next = inner.next.max(next);
        inner.slots.insert(slot, member);
    }

    /// Adds an ended row, and keeps it in its slot's spool; returns the parts that this closes. Its part is closed by
    /// `close_by`.
    pub(crate) fn add(
        &self,
        (slot, run): (u32, u32),
        mut row: Finished,
        room: SpoolRoom<'_>,
        close_by: Instant,
        now: Instant,
    ) -> Vec<OpenPart> {
        row.slot = slot;
        let mut inner = self.inner.lock();
        let mut closed = Vec::new();
        if inner.open.get(&run).is_some_and(|open| !open.part.fits(&row)) {
            closed.extend(inner.close(run, Reason::Size));
        }
        let open = inner.open_for(run, close_by, now);
        open.close_by = open.close_by.min(close_by);
        let id = open.part.id;
        // Before the lock is released: the slot that closes the part syncs its files and must find the row there.
        room.append(id, row.clone());
        open.part.files.insert((slot, id));
        open.written.insert(slot, now);
        open.part.push(row);
        if open.part.is_full(&self.config) {
            closed.extend(inner.close(run, Reason::Size));
        } else {
            inner.look_for_quiet(run, Some(slot), now);
        }
        while let Some(oldest) = inner.oldest_beyond_bounds() {
            closed.extend(inner.close(oldest, Reason::Bounds));
        }
        closed
    }

    /// Closes the parts that a slot wrote to and that are due.
    pub(crate) fn due(&self, slot: u32, load: SlotLoad, now: Instant) -> Vec<OpenPart> {
        let mut inner = self.inner.lock();
        let due = inner.of_slot(slot, load).filter(|(_, at, _)| *at <= now);
        let due: Vec<(u32, Reason)> = due.map(|(run, _, reason)| (run, reason)).collect();
        due.into_iter().filter_map(|(run, reason)| inner.close(run, reason)).collect()
    }

    /// When the next part is due.
    pub(crate) fn next_due(&self, slot: u32, load: SlotLoad) -> Option<Instant> {
        self.inner.lock().of_slot(slot, load).map(|(_, at, _)| at).min()
    }

    /// Rows of a run were granted.
    pub(crate) fn granted(&self, run: u32) {
        let mut inner = self.inner.lock();
        inner.tails.remove(&run);
        if let Some(open) = inner.open.get_mut(&run) {
            open.quiet = None;
        }
    }

    /// The leader reports that a run has no more rows to grant: its results are not urgent until its last row has
    /// ended, or until a slot holds nothing else.
    pub(crate) fn at_tail(&self, run: u32) {
        let mut inner = self.inner.lock();
        if inner.tails.len() >= TAILS_MAX {
            inner.tails.clear();
        }
        inner.tails.insert(run);
    }

    /// Rows have ended, or were revoked, without a result.
    pub(crate) fn rows_left(&self, now: Instant) {
        let mut inner = self.inner.lock();
        let runs: Vec<u32> = inner.open.keys().copied().collect();
        runs.into_iter().for_each(|run| inner.look_for_quiet(run, None, now));
    }

    /// Removes rows of a slot from open parts; returns the files in its spool that are now empty.
    pub(crate) fn take_away(&self, slot: u32, named: &NamedRows) -> Vec<PartId> {
        let mut inner = self.inner.lock();
        let mut emptied = Vec::new();
        inner.open.retain(|run, Open { part, .. }| {
            let before = part.rows.len();
            part.retain(|row| row.slot != slot || !named.contains((*run, row.attempt), row.row));
            if part.rows.len() < before && part.rows.iter().all(|row| row.slot != slot) {
                let files = part.files.extract_if(.., |(of, _)| *of == slot);
                emptied.extend(files.map(|(_, file)| file));
            }
            !part.rows.is_empty()
        });
        emptied
    }

    /// Adds a part of an earlier process, which is closed as it is.
    pub(crate) fn recovered(&self, slot: u32, mut part: OpenPart) -> OpenPart {
        let mut inner = self.inner.lock();
        part.files = BTreeSet::from([(slot, part.id)]);
        part.rows.iter_mut().for_each(|row| row.slot = slot);
        part.id = inner.new_id(part.id.run);
        inner.closed.insert(&part);
        part
    }

    /// Keeps only the rows of a part that their slots must still report.
    pub(crate) fn keep_wanted(&self, part: &mut OpenPart) {
        let inner = self.inner.lock();
        let (lease_tables, run) = (inner.lease_tables_of(part), part.id.run);
        let wanted = |row: &Finished| {
            lease_tables
                .get(&row.slot)
                .is_some_and(|lease_table| lease_table.is_ended((run, row.attempt), row.row))
        };
        part.retain(wanted);
    }

    /// Whether the part has such a row.
    pub(crate) fn is_wanted(&self, part: &OpenPart) -> bool {
        let inner = self.inner.lock();
        let (lease_tables, run) = (inner.lease_tables_of(part), part.id.run);
        part.rows.iter().any(|row| {
            lease_tables
                .get(&row.slot)
                .is_some_and(|lease_table| lease_table.is_ended((run, row.attempt), row.row))
        })
    }

    /// Returns when all rows of a part are durable on this host.
    pub(crate) async fn sync(&self, part: &OpenPart) {
        for (spool, file) in self.spools(&part.files) {
            spool.sync(file).await;
        }
    }

    /// A closed part lost some of its rows, which another report now covers.
    pub(crate) fn shrunk(&self, part: &OpenPart) {
        self.inner.lock().closed.shrunk(part);
    }

    /// Takes the rows of a closed part, which another report covers from now on.
    pub(crate) fn give_up_rows(&self, id: PartId) -> LeasedRows {
        let mut all = LeasedRows::default();
        self.inner.lock().closed.take_rows(id).values().for_each(|rows| all.extend(rows));
        all
    }

    pub(crate) fn rows_in(&self, id: PartId) -> usize {
        let inner = self.inner.lock();
        inner.closed.get(id).map_or(0, |closed| closed.rows.values().map(LeasedRows::len).sum())
    }

    /// The leader has answered for a part, or it is no longer wanted.
    pub(crate) async fn settle(&self, id: PartId) {
        let files = {
            let mut inner = self.inner.lock();
            let full = inner.is_backlogged();
            let Some(closed) = inner.closed.remove(id) else { return };
            for (slot, rows) in &closed.rows {
                if let Some(member) = inner.slots.get(slot) {
                    member.lease_table.lock().settle(rows);
                }
            }
            for (slot, member) in &inner.slots {
                // Each of these slots may start rows again, or end.
                if full || closed.files.iter().any(|(of, _)| of == slot) {
                    member.changed.notify_one();
                }
            }
            closed.files
        };
        for (spool, file) in self.spools(&files) {
            spool.remove(file).await;
        }
    }

    /// The leader has answered for rows that are in no part; they may belong to any slot.
    pub(crate) fn settle_rows(&self, rows: &LeasedRows) {
        if rows.is_empty() {
            return;
        }
        for member in self.inner.lock().slots.values() {
            member.lease_table.lock().settle(rows);
        }
    }

    /// Whether a part has results of a slot.
    pub(crate) fn holds(&self, slot: u32) -> bool {
        let inner = self.inner.lock();
        inner.open.values().any(|open| open.is_of(slot))
            || inner.closed.parts().any(|closed| closed.files.iter().any(|(of, _)| *of == slot))
    }

    pub(crate) fn is_backlogged(&self) -> bool {
        self.inner.lock().is_backlogged()
    }

    fn spools(&self, files: &BTreeSet<(u32, PartId)>) -> Vec<(SpoolHandle, PartId)> {
        let inner = self.inner.lock();
        let of = |(slot, file): &(u32, PartId)| Some((inner.slots.get(slot)?.spool.clone(), *file));
        files.iter().filter_map(of).collect()
    }
}

impl Inner {
    fn new_id(&mut self, run: u32) -> PartId {
        self.next += 1;
        PartId { run, number: self.next - 1 }
    }

    fn open_for(&mut self, run: u32, close_by: Instant, now: Instant) -> &mut Open {
        let next = &mut self.next;
        self.open.entry(run).or_insert_with(|| {
            let id = PartId { run, number: *next };
            *next += 1;
            let part = OpenPart { opened: now, ..OpenPart::new(id) };
            Open { part, close_by, quiet: None, written: BTreeMap::new() }
        })
    }

    fn close(&mut self, run: u32, reason: Reason) -> Option<OpenPart> {
        let Open { part, .. } = self.open.remove(&run)?;
        let reason = reason.name();
        tracing::debug!(
            run,
            rows = part.rows.len(),
            bytes = part.bytes,
            reason,
            "a part is closed"
        );
        metrics::counter!("rollout_worker_parts_closed_total", "reason" => reason).increment(1);
        self.closed.insert(&part);
        Some(part)
    }

    /// The open parts that a slot wrote to: the run, when the slot will close the part, and why.
    fn of_slot(&self, slot: u32, load: SlotLoad) -> impl Iterator<Item = (u32, Instant, Reason)> {
        let own = self.open.iter().filter(move |(_, open)| open.is_of(slot));
        own.map(move |(run, open)| {
            let (at, reason) = open.closes(slot, load, self.tails.contains(run));
            (*run, at, reason)
        })
    }

    /// If the worker holds no unfinished row of the run, records it and notifies the slots that wrote to its part.
    fn look_for_quiet(&mut self, run: u32, asking: Option<u32>, now: Instant) {
        let Some(open) = self.open.get_mut(&run) else { return };
        if self.slots.values().any(|member| member.lease_table.lock().has_run(run)) {
            open.quiet = None;
            return;
        }
        if open.quiet.replace(open.quiet.unwrap_or(now)).is_some() {
            return;
        }
        for (slot, _) in open.part.files.iter().filter(|(slot, _)| asking != Some(*slot)) {
            if let Some(member) = self.slots.get(slot) {
                member.changed.notify_one();
            }
        }
    }

    fn oldest_beyond_bounds(&self) -> Option<u32> {
        let rows: usize = self.open.values().map(|open| open.part.rows.len()).sum();
        let bytes: usize = self.open.values().map(|open| open.part.bytes).sum();
        if rows <= OPEN_ROWS_MAX && bytes <= OPEN_BYTES_MAX {
            return None;
        }
        self.open.iter().min_by_key(|(_, open)| open.part.opened).map(|(run, _)| *run)
    }

    fn is_backlogged(&self) -> bool {
        self.closed.is_full(self.slots.len())
    }

    fn lease_tables_of(&self, part: &OpenPart) -> BTreeMap<u32, MutexGuard<'_, LeaseTable>> {
        let slots: BTreeSet<u32> = part.rows.iter().map(|row| row.slot).collect();
        let of = |slot: u32| Some((slot, self.slots.get(&slot)?.lease_table.lock()));
        slots.into_iter().filter_map(of).collect()
    }
}

#[cfg(test)]
mod tests;
