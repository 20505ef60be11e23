//! Decides which idle slot steals from which busy slot, by the queues that workers report.
//!
//! A slot whose backlog is empty, that has pulled, and for which nothing is pending (the idle slot) gets half of the
//! unstarted rows of the busiest slot (the victim), at most [`ROWS_MAX`] rows. The leader asks the victim first,
//! because only its worker knows what it has started meanwhile. The victim drops the rows and names them in its next
//! exchange, which becomes one `Steal`.
//!
//! Busy slots are listed by the needs of the runs that they hold, so that slots that wait for another model are not
//! compared with busy ones.
//!
//! *Invariant:* at most one steal request is open for each victim and each idle slot. An answer to a request that this
//! leader has not sent, or has given up, returns the rows: they are pending.
//!
//! Absent: rows. The ledger moves them; everything here is in memory and lost with its epoch.

use parking_lot::Mutex;
use rollout_ledger::id::{RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::{CohortNo, Ledger, NeedNo, limits};
use rollout_proto::v1;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rows of one steal.
const ROWS_MAX: u32 = 32;
/// An unanswered steal request is forgotten after this time.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// How many busy slots of one need the leader compares with an idle slot before it concludes that none can give rows.
const COMPARED_MAX: usize = 64;

/// Queries that stealing makes of the ledger.
pub(crate) trait Fit {
    /// The needs that the slots of a cohort meet.
    fn needs(&self, cohort: CohortNo) -> Vec<NeedNo>;
    /// Whether a slot may get rows of other slots.
    fn takes(&self, idle_slot: SlotRef) -> bool;
    /// The runs of which `victim` holds rows that `idle_slot` may be given.
    fn runs(&self, victim: SlotRef, idle_slot: SlotRef) -> Vec<RunNo>;
}

impl Fit for Ledger {
    fn needs(&self, cohort: CohortNo) -> Vec<NeedNo> {
        self.cohort_needs(cohort)
    }

    fn takes(&self, idle_slot: SlotRef) -> bool {
        self.takes_others_rows(idle_slot)
    }

    fn runs(&self, victim: SlotRef, idle_slot: SlotRef) -> Vec<RunNo> {
        self.stealable(victim, idle_slot)
    }
}

/// What a slot last reported.
#[derive(Clone, Debug, Default)]
struct Load {
    queued: u32,
    running: u32,
    concurrency: u32,
    /// The needs of the runs whose rows it holds, while it has a backlog.
    needs: Vec<NeedNo>,
}

struct OpenRequest {
    id: u64,
    idle_slot: SlotRef,
    at: Instant,
}

/// A request to a busy slot to give up rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StealRequest {
    pub(crate) victim: SlotRef,
    pub(crate) id: u64,
    pub(crate) rows_max: u32,
    pub(crate) runs: Vec<RunNo>,
}

type Busy = BTreeSet<(Reverse<u32>, SlotRef)>;

#[derive(Default)]
struct State {
    loads: BTreeMap<SessionId, BTreeMap<SlotNo, Load>>,
    /// Slots with a backlog and no open steal request, by need; the busiest first.
    busy: BTreeMap<NeedNo, Busy>,
    /// Open steal requests, by victim.
    requests: BTreeMap<SlotRef, OpenRequest>,
    last_id: u64,
}

impl State {
    fn load(&self, slot: SlotRef) -> Option<&Load> {
        self.loads.get(&slot.session)?.get(&slot.slot)
    }

    /// Changes the load of a slot, and updates the lists of busy ones.
    fn change(&mut self, slot: SlotRef, change: impl FnOnce(&mut Load)) {
        self.unlist(slot);
        change(self.loads.entry(slot.session).or_default().entry(slot.slot).or_default());
        self.list(slot);
    }

    fn list(&mut self, slot: SlotRef) {
        let Some(load) = self.loads.get(&slot.session).and_then(|slots| slots.get(&slot.slot))
        else {
            return;
        };
        if load.queued > 0 && !self.requests.contains_key(&slot) {
            for need in &load.needs {
                self.busy.entry(*need).or_default().insert((Reverse(load.queued), slot));
            }
        }
    }

    fn unlist(&mut self, slot: SlotRef) {
        let Some(load) = self.loads.get(&slot.session).and_then(|slots| slots.get(&slot.slot))
        else {
            return;
        };
        for need in &load.needs {
            let Some(busy) = self.busy.get_mut(need) else { continue };
            busy.remove(&(Reverse(load.queued), slot));
            if busy.is_empty() {
                self.busy.remove(need);
            }
        }
    }

    fn ask(&mut self, victim: SlotRef, request: OpenRequest) {
        self.unlist(victim);
        self.requests.insert(victim, request);
    }

    fn close(&mut self, victim: SlotRef) {
        self.requests.remove(&victim);
        self.list(victim);
    }

    fn close_overdue(&mut self, now: Instant) {
        let overdue =
            self.requests.iter().filter(|(_, a)| now.duration_since(a.at) >= REQUEST_TIMEOUT);
        let overdue: Vec<SlotRef> = overdue.map(|(victim, _)| *victim).collect();
        overdue.into_iter().for_each(|victim| self.close(victim));
    }

    /// The busy slots of these needs, the busiest first.
    fn busiest(&self, needs: &[NeedNo]) -> impl Iterator<Item = (u32, SlotRef)> {
        let lists = needs.iter().filter_map(|need| self.busy.get(need));
        let mut heads: Vec<_> = lists.map(|list| list.iter().copied().peekable()).collect();
        let mut last = None;
        std::iter::from_fn(move || {
            loop {
                let least = |head: &mut std::iter::Peekable<_>| head.peek().copied();
                let first = heads.iter_mut().filter_map(least).min()?;
                for head in &mut heads {
                    head.next_if_eq(&first);
                }
                if last != Some(first) {
                    last = Some(first);
                    return Some((first.0.0, first.1));
                }
            }
        })
    }
}

/// The leader's view of backlogs, and its open steal requests.
#[derive(Default)]
pub(crate) struct Stealing {
    state: Mutex<State>,
    /// Something has changed since the last search for victims.
    due: AtomicBool,
}

impl Stealing {
    /// Records the loads that a worker reports. Returns true if one of its slots has an empty queue. `needs` are those
    /// of the runs whose rows a slot holds.
    pub(crate) fn record_loads(
        &self,
        session: SessionId,
        slots: &[v1::SlotLoad],
        needs: impl Fn(SlotRef) -> Vec<NeedNo>,
    ) -> bool {
        let mut idle = false;
        let mut loads = Vec::with_capacity(slots.len().min(limits::SLOTS_MAX));
        for load in slots.iter().take(limits::SLOTS_MAX) {
            let in_bounds = |number: &u16| usize::from(*number) < limits::SLOTS_MAX;
            let Some(number) = u16::try_from(load.slot).ok().filter(in_bounds) else { continue };
            let slot = SlotRef { session, slot: SlotNo(number) };
            let v1::SlotLoad { queued, running, concurrency, .. } = *load;
            idle |= queued == 0;
            let needs = if queued > 0 { needs(slot) } else { Vec::new() };
            loads.push((slot, Load { queued, running, concurrency, needs }));
        }
        let mut state = self.state.lock();
        for (slot, load) in loads {
            state.change(slot, |entry| *entry = load);
        }
        drop(state);
        self.look_again();
        idle
    }

    /// How many rows a slot's engine runs at once, as its worker reports.
    pub(crate) fn concurrency(&self, slot: SlotRef) -> u32 {
        self.state.lock().load(slot).map_or(0, |load| load.concurrency)
    }

    /// Adds granted rows to a slot's queue, where they count until it reports otherwise. `needs` are those of all rows
    /// that it holds.
    pub(crate) fn granted(&self, slot: SlotRef, rows: u64, needs: Vec<NeedNo>) {
        let mut state = self.state.lock();
        if state.load(slot).is_some() {
            state.change(slot, |load| {
                load.queued = load.queued.saturating_add(rows as u32);
                load.needs = needs;
            });
        }
    }

    /// Marks that something has changed: a pull waits, or an answer has arrived.
    pub(crate) fn look_again(&self) {
        self.due.store(true, Ordering::Release);
    }

    /// Whether there is a reason to search for victims.
    pub(crate) fn is_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// Like [`is_due`](Self::is_due), and clears the mark.
    pub(crate) fn take_due(&self) -> bool {
        self.due.swap(false, Ordering::AcqRel)
    }

    /// The slots to ask now, on behalf of slots of these cohorts whose pulls wait because no rows are left for them.
    pub(crate) fn choose(
        &self,
        now: Instant,
        cohorts: &[CohortNo],
        waiting: impl Fn(CohortNo) -> Vec<SlotRef>,
        fit: &impl Fit,
    ) -> Vec<StealRequest> {
        let mut state = self.state.lock();
        state.close_overdue(now);
        let mut requests = Vec::new();
        for &cohort in cohorts {
            let needs = fit.needs(cohort);
            if needs.iter().any(|need| state.busy.contains_key(need)) {
                choose_for(&mut state, now, (&needs, waiting(cohort)), fit, &mut requests);
            }
        }
        if !state.requests.is_empty() {
            self.look_again(); // an open question may time out
        }
        requests
    }

    /// At most `max` of these slots of one cohort that could start more rows than they have, with how many, and for
    /// which no busy slot has any.
    pub(crate) fn idle(
        &self,
        (cohort, slots): (CohortNo, &[SlotRef]),
        max: usize,
        fit: &impl Fit,
    ) -> Vec<(SlotRef, u32)> {
        let state = self.state.lock();
        let idle_slots: BTreeSet<SlotRef> = state.requests.values().map(|a| a.idle_slot).collect();
        let needs = fit.needs(cohort);
        let room = |slot: &SlotRef| {
            let load = state.load(*slot).filter(|load| load.queued == 0)?;
            let room = load.concurrency.saturating_sub(load.running);
            if room == 0 || idle_slots.contains(slot) {
                return None;
            }
            let mut busy = state.busiest(&needs).take(COMPARED_MAX);
            let nothing = !busy.any(|(_, victim)| !fit.runs(victim, *slot).is_empty());
            nothing.then_some((*slot, room))
        };
        slots.iter().filter_map(room).take(max).collect()
    }

    /// Closes a steal request. Returns the idle slot, or `None` if this leader has no such request open. The victim counts
    /// as having `queued - given` rows until it reports otherwise.
    pub(crate) fn answered(&self, victim: SlotRef, id: u64, given: u64) -> Option<SlotRef> {
        let mut state = self.state.lock();
        self.look_again();
        // A slot that gives up no rows has none queued, whatever it reported before.
        if state.load(victim).is_some() {
            state.change(victim, |load| {
                load.queued = if given == 0 { 0 } else { load.queued.saturating_sub(given as u32) };
            });
        }
        let request = state.requests.get(&victim).filter(|a| a.id == id)?;
        let idle_slot = request.idle_slot;
        let in_time = request.at.elapsed() < REQUEST_TIMEOUT;
        state.close(victim);
        in_time.then_some(idle_slot)
    }

    /// Closes a steal request that could not be sent.
    pub(crate) fn forget_request(&self, victim: SlotRef) {
        self.state.lock().close(victim);
    }

    /// Keeps only the sessions for which `alive` is true.
    pub(crate) fn retain(&self, alive: impl Fn(SessionId) -> bool) {
        let mut state = self.state.lock();
        let ended: Vec<SessionId> = state.loads.keys().copied().filter(|id| !alive(*id)).collect();
        for session in ended {
            let slots: Vec<SlotNo> =
                state.loads.get(&session).into_iter().flat_map(|l| l.keys().copied()).collect();
            slots.into_iter().for_each(|slot| state.unlist(SlotRef { session, slot }));
            state.loads.remove(&session);
        }
        state.requests.retain(|slot, _| alive(slot.session));
    }
}

/// Matches idle slots of one cohort with busy ones that hold what they need, the busiest first.
fn choose_for(
    state: &mut State,
    now: Instant,
    (needs, waiting): (&[NeedNo], Vec<SlotRef>),
    fit: &impl Fit,
    requests: &mut Vec<StealRequest>,
) {
    let asking: BTreeSet<SlotRef> = state.requests.values().map(|a| a.idle_slot).collect();
    // A single queued row is of use only to a slot that starts it at once: two full slots would hand it back and
    // forth.
    let (mut free, mut full) = (VecDeque::new(), VecDeque::new());
    for idle_slot in waiting.into_iter().filter(|idle_slot| !asking.contains(idle_slot)) {
        let Some(load) = state.load(idle_slot).filter(|load| load.queued == 0) else { continue };
        match load.running < load.concurrency {
            true => free.push_back(idle_slot),
            false => full.push_back(idle_slot),
        }
    }
    let mut chosen = Vec::new();
    for (queued, victim) in state.busiest(needs) {
        drop_unable(&mut free, fit);
        if free.is_empty() {
            drop_unable(&mut full, fit);
        }
        let idle_slots = if free.is_empty() && queued >= 2 { &mut full } else { &mut free };
        // The following slots have shorter queues.
        let Some(&idle_slot) = idle_slots.front() else { break };
        let runs = fit.runs(victim, idle_slot);
        if !runs.is_empty() {
            idle_slots.pop_front();
            chosen.push((queued, victim, idle_slot, runs));
        }
    }
    for (queued, victim, idle_slot, runs) in chosen {
        state.last_id += 1;
        let id = state.last_id;
        state.ask(victim, OpenRequest { id, idle_slot, at: now });
        requests.push(StealRequest {
            victim,
            id,
            rows_max: queued.div_ceil(2).min(ROWS_MAX),
            runs,
        });
    }
}

/// Drops slots from the front that may not get any rows.
fn drop_unable(idle_slots: &mut VecDeque<SlotRef>, fit: &impl Fit) {
    while idle_slots.front().is_some_and(|idle_slot| !fit.takes(*idle_slot)) {
        idle_slots.pop_front();
    }
}

#[cfg(test)]
mod tests;
