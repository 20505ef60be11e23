//! Who steals from whom: chosen by the leader from what workers say of their queues.
//!
//! A slot whose backlog is empty, that has pulled, and for which nothing is pending, gets half of
//! what the busiest slot has not started, at most [`ROWS_MAX`] rows. The busiest one is asked
//! first: it alone knows what it has started meanwhile, drops the rows, and names them in its next
//! exchange, which becomes one `Steal`.
//!
//! *Invariant:* at most one question is open a victim and a thief. An answer to a question that this
//! leader has not asked, or has given up, gives the rows back: they are pending.
//!
//! Absent on purpose: rows. The ledger moves them; all of this is memory, and lost with its epoch.

use parking_lot::Mutex;
use rollout_ledger::Ledger;
use rollout_ledger::id::{RunNo, SessionId, SlotNo, SlotRef};
use rollout_ledger::limits;
use rollout_proto::v1;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rows of one theft.
const ROWS_MAX: u32 = 32;
/// A question without an answer is forgotten after this.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// What a slot last said of itself.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    queued: u32,
    running: u32,
    concurrency: u32,
}

struct Asked {
    id: u64,
    thief: SlotRef,
    at: Instant,
}

/// A question to a slot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) victim: SlotRef,
    pub(crate) id: u64,
    pub(crate) rows_max: u32,
    pub(crate) runs: Vec<RunNo>,
}

#[derive(Default)]
struct State {
    loads: BTreeMap<SlotRef, Load>,
    /// Open questions, by victim.
    asked: BTreeMap<SlotRef, Asked>,
    last_id: u64,
}

/// The leader's view of backlogs, and its open questions.
#[derive(Default)]
pub(crate) struct Stealing {
    state: Mutex<State>,
    /// Something has changed since victims were last looked for.
    due: AtomicBool,
}

impl Stealing {
    /// A worker has said how much its slots have to do. True where one of them has nothing.
    pub(crate) fn heard(&self, session: SessionId, slots: &[v1::SlotLoad]) -> bool {
        let mut state = self.state.lock();
        let mut idle = false;
        for load in slots.iter().take(limits::SLOTS_MAX) {
            let Ok(number) = u16::try_from(load.slot) else { continue };
            let slot = SlotRef { session, slot: SlotNo(number) };
            let v1::SlotLoad { queued, running, concurrency, .. } = *load;
            idle |= queued == 0;
            state.loads.insert(slot, Load { queued, running, concurrency });
        }
        drop(state);
        self.look_again();
        idle
    }

    /// How many rows a slot's engine runs at once, by its own word.
    pub(crate) fn concurrency(&self, slot: SlotRef) -> u32 {
        self.state.lock().loads.get(&slot).map_or(0, |load| load.concurrency)
    }

    /// Rows were granted to a slot: it has them in its queue until it says otherwise.
    pub(crate) fn granted(&self, slot: SlotRef, rows: u64) {
        if let Some(load) = self.state.lock().loads.get_mut(&slot) {
            load.queued = load.queued.saturating_add(rows as u32);
        }
    }

    /// Something has changed: a pull waits, or an answer has come.
    pub(crate) fn look_again(&self) {
        self.due.store(true, Ordering::Release);
    }

    /// Whether there is a reason to look for victims since it was last asked.
    pub(crate) fn take_due(&self) -> bool {
        self.due.swap(false, Ordering::AcqRel)
    }

    /// Whom to ask now, for these slots whose pulls wait because nothing is left for them.
    pub(crate) fn choose(&self, thieves: &[SlotRef], ledger: &Ledger) -> Vec<Ask> {
        self.choose_at(Instant::now(), thieves, |victim, thief| ledger.stealable(victim, thief))
    }

    fn choose_at(
        &self,
        now: Instant,
        thieves: &[SlotRef],
        fitting: impl Fn(SlotRef, SlotRef) -> Vec<RunNo>,
    ) -> Vec<Ask> {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.asked.retain(|_, a| now.duration_since(a.at) < ASK_TIMEOUT);
        let mut busy: BTreeSet<(Reverse<u32>, SlotRef)> = state
            .loads
            .iter()
            .filter(|(slot, load)| load.queued > 0 && !state.asked.contains_key(slot))
            .map(|(slot, load)| (Reverse(load.queued), *slot))
            .collect();
        let mut waiting: BTreeSet<SlotRef> = state.asked.values().map(|a| a.thief).collect();
        let mut asks = Vec::new();
        for &thief in thieves {
            let Some(load) = state.loads.get(&thief).filter(|l| l.queued == 0) else { continue };
            if busy.is_empty() || !waiting.insert(thief) {
                continue;
            }
            // The only row of a queue is of use to a slot that starts it at once: two full ones
            // would hand it to and fro.
            let least = if load.running < load.concurrency { 1 } else { 2 };
            let found = busy
                .iter()
                .filter(|(queued, victim)| queued.0 >= least && *victim != thief)
                .map(|&(queued, victim)| (queued, victim, fitting(victim, thief)))
                .find(|(_, _, runs)| !runs.is_empty());
            let Some((Reverse(queued), victim, runs)) = found else { continue };
            busy.remove(&(Reverse(queued), victim));
            state.last_id += 1;
            let id = state.last_id;
            state.asked.insert(victim, Asked { id, thief, at: now });
            asks.push(Ask { victim, id, rows_max: queued.div_ceil(2).min(ROWS_MAX), runs });
        }
        if !state.asked.is_empty() {
            self.look_again(); // An open question may run out of time.
        }
        asks
    }

    /// Those of these slots that could start more than they have, with how much, and that nobody has
    /// anything for: no question is open for them, and no backlog has what `fitting` finds.
    pub(crate) fn idle(
        &self,
        slots: &[SlotRef],
        fitting: impl Fn(SlotRef, SlotRef) -> Vec<RunNo>,
    ) -> Vec<(SlotRef, u32)> {
        let state = self.state.lock();
        let asks: BTreeSet<SlotRef> = state.asked.values().map(|a| a.thief).collect();
        let room = |slot: &SlotRef| {
            let load = state.loads.get(slot).filter(|load| load.queued == 0)?;
            let room = load.concurrency.saturating_sub(load.running);
            let mut busy = state.loads.iter().filter(|other| other.1.queued > 0);
            let nothing = room > 0
                && !asks.contains(slot)
                && !busy.any(|(victim, _)| !fitting(*victim, *slot).is_empty());
            nothing.then_some((*slot, room))
        };
        slots.iter().filter_map(room).collect()
    }

    /// The slot that a victim's answer is for, if this leader has asked and still waits. What the
    /// victim has left is `queued - given` until it says otherwise.
    pub(crate) fn answered(&self, victim: SlotRef, id: u64, given: u64) -> Option<SlotRef> {
        let mut state = self.state.lock();
        self.look_again();
        let load = state.loads.entry(victim).or_default();
        // Whoever gives up nothing has nothing, whatever it said before.
        load.queued = if given == 0 { 0 } else { load.queued.saturating_sub(given as u32) };
        let asked = state.asked.get(&victim).filter(|a| a.id == id)?;
        let thief = asked.thief;
        let in_time = asked.at.elapsed() < ASK_TIMEOUT;
        state.asked.remove(&victim);
        in_time.then_some(thief)
    }

    /// A question could not be asked.
    pub(crate) fn unasked(&self, victim: SlotRef) {
        self.state.lock().asked.remove(&victim);
    }

    /// Forgets sessions that have ended.
    pub(crate) fn retain(&self, alive: impl Fn(SessionId) -> bool) {
        let mut state = self.state.lock();
        state.loads.retain(|slot, _| alive(slot.session));
        state.asked.retain(|slot, _| alive(slot.session));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(session: u64) -> SlotRef {
        SlotRef { session: SessionId(session), slot: SlotNo(0) }
    }

    fn heard(stealing: &Stealing, session: u64, queued: u32, running: u32) {
        let load = v1::SlotLoad { slot: 0, queued, running, concurrency: 4 };
        stealing.heard(SessionId(session), &[load]);
    }

    fn ask(stealing: &Stealing, thieves: &[u64]) -> Vec<(u64, u32)> {
        let thieves: Vec<SlotRef> = thieves.iter().map(|s| slot(*s)).collect();
        let asks = stealing.choose_at(Instant::now(), &thieves, |_, _| vec![RunNo(1)]);
        asks.iter().map(|a| (a.victim.session.0, a.rows_max)).collect()
    }

    #[test]
    fn the_busiest_is_asked_for_half_of_its_backlog_and_never_for_more_than_32() {
        let stealing = Stealing::default();
        heard(&stealing, 1, 7, 4);
        heard(&stealing, 2, 9, 4);
        heard(&stealing, 3, 0, 0);
        assert_eq!(ask(&stealing, &[3]), [(2, 5)]);
        let stealing = Stealing::default();
        heard(&stealing, 1, 500, 4);
        heard(&stealing, 2, 500, 4);
        heard(&stealing, 3, 0, 0);
        assert_eq!(ask(&stealing, &[3]), [(1, 32)], "of equals the first");
    }

    #[test]
    fn a_slot_with_a_backlog_or_an_open_question_steals_nothing() {
        let stealing = Stealing::default();
        heard(&stealing, 1, 8, 4);
        heard(&stealing, 2, 1, 0);
        assert_eq!(ask(&stealing, &[2]), []);
        assert_eq!(ask(&stealing, &[9]), [], "nothing was heard of it");
        heard(&stealing, 2, 0, 0);
        heard(&stealing, 3, 0, 0);
        assert_eq!(ask(&stealing, &[2, 3]), [(1, 4)], "one question a victim");
        heard(&stealing, 4, 6, 4);
        assert_eq!(ask(&stealing, &[2]), [], "one question a thief");
        assert_eq!(ask(&stealing, &[3]), [(4, 3)]);
    }

    #[test]
    fn the_only_row_of_a_queue_goes_to_none_but_a_slot_that_starts_it_at_once() {
        let stealing = Stealing::default();
        heard(&stealing, 1, 1, 4);
        heard(&stealing, 2, 0, 4);
        assert_eq!(ask(&stealing, &[2]), []);
        heard(&stealing, 2, 0, 3);
        assert_eq!(ask(&stealing, &[2]), [(1, 1)]);
    }

    #[test]
    fn a_slot_is_idle_when_it_could_start_more_and_nobody_has_a_backlog_for_it() {
        let stealing = Stealing::default();
        let idle = |stealing: &Stealing| {
            stealing.idle(&[slot(2), slot(3), slot(9)], |victim, thief| {
                let fits = victim.session.0 == 1 && thief.session.0 != 3;
                if fits { vec![RunNo(1)] } else { Vec::new() }
            })
        };
        heard(&stealing, 1, 0, 4);
        heard(&stealing, 2, 0, 1);
        heard(&stealing, 3, 0, 4);
        assert_eq!(idle(&stealing), [(slot(2), 3)], "the third runs all that it can");
        heard(&stealing, 1, 2, 4);
        heard(&stealing, 3, 0, 2);
        assert_eq!(idle(&stealing), [(slot(3), 2)], "the second may steal");
        heard(&stealing, 1, 0, 4);
        stealing.granted(slot(3), 1);
        assert_eq!(idle(&stealing), [(slot(2), 3)], "the third was just given something");
    }

    #[test]
    fn an_answer_is_taken_once_from_whom_was_asked_and_in_time() {
        let stealing = Stealing::default();
        heard(&stealing, 1, 8, 4);
        heard(&stealing, 2, 0, 0);
        assert_eq!(ask(&stealing, &[2]), [(1, 4)]);
        assert_eq!(stealing.answered(slot(2), 1, 4), None, "it was not asked");
        assert_eq!(stealing.answered(slot(1), 2, 4), None, "nobody asked that");
        assert_eq!(stealing.answered(slot(1), 1, 4), Some(slot(2)));
        assert_eq!(stealing.answered(slot(1), 1, 4), None);
        heard(&stealing, 1, 8, 4);
        assert_eq!(ask(&stealing, &[2]), [(1, 4)]);
        let later = Instant::now() + ASK_TIMEOUT;
        let asks = stealing.choose_at(later, &[slot(2)], |_, _| vec![RunNo(1)]);
        assert_eq!(asks[0].id, 3, "the question was forgotten, and is asked anew");
        assert_eq!(stealing.answered(slot(1), 2, 4), None, "too late");
    }
}
