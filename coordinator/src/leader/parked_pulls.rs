//! Pulls for which there was no work, held back until there is some.
//!
//! Slots that fit the same runs wait in one queue, so that pending rows are compared with each queue and not with each
//! slot.
//!
//! *Invariant:* each slot has at most one parked pull. A newer message of the slot first answers the parked pull as
//! empty, so nothing waits behind it. A parked pull proposes nothing. The pull of a closed stream never replaces that
//! of an open one. The queues release only as many pulls as there are pending rows, minus the rows that claims in
//! progress ask for. Each claim is an operation in the log: otherwise a thousand idle slots would propose a thousand
//! claims for one row.

use crate::leader::state::Outbox;
use parking_lot::Mutex;
use rollout_ledger::id::SlotRef;
use rollout_ledger::{CohortNo, Ledger};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// One pull that waits.
pub(crate) struct Pull {
    pub(crate) slot: SlotRef,
    /// The worker process that pulls.
    pub(crate) instance: u64,
    pub(crate) seq: u64,
    pub(crate) rows_max: u32,
    pub(crate) out: Outbox,
}

/// A slot as a hash key.
type SlotKey = (u64, u16);

fn key(slot: SlotRef) -> SlotKey {
    (slot.session.0, slot.slot.0)
}

/// A pull that waits, and its place in its cohort's queue.
struct QueuedPull {
    pull: Pull,
    cohort: Option<CohortNo>,
    order: u64,
}

/// By cohort and order.
type Queues = BTreeMap<CohortNo, BTreeMap<u64, SlotRef>>;

fn remove_from(queues: &mut Queues, cohort: CohortNo, order: u64) {
    let Some(queue) = queues.get_mut(&cohort) else { return };
    queue.remove(&order);
    if queue.is_empty() {
        queues.remove(&cohort);
    }
}

#[derive(Default)]
struct State {
    pulls: HashMap<SlotKey, QueuedPull>,
    /// The waiting pulls of each cohort, longest wait first, without the stuck ones.
    queues: Queues,
    /// Pulls that got nothing although their cohort had pending rows. The next [`ParkedPulls::sweep`] puts them back.
    /// Until then they may steal like all others.
    stuck: Queues,
    /// Slots whose pulls may have been answered while they waited.
    answered: Vec<SlotRef>,
    orders_given: u64,
    /// The ledger's eligibility version for which the queues were built.
    version: u64,
}

impl State {
    fn insert(&mut self, pull: Pull, cohort: Option<CohortNo>) {
        self.remove(pull.slot);
        self.orders_given += 1;
        let order = self.orders_given;
        if let Some(cohort) = cohort {
            self.queues.entry(cohort).or_default().insert(order, pull.slot);
        }
        self.pulls.insert(key(pull.slot), QueuedPull { pull, cohort, order });
    }

    fn remove(&mut self, slot: SlotRef) -> Option<Pull> {
        let QueuedPull { pull, cohort, order } = self.pulls.remove(&key(slot))?;
        self.unqueue(cohort, order);
        Some(pull)
    }

    fn unqueue(&mut self, cohort: Option<CohortNo>, order: u64) {
        let Some(cohort) = cohort else { return };
        remove_from(&mut self.queues, cohort, order);
        remove_from(&mut self.stuck, cohort, order);
    }

    /// Rebuilds the queues from the current cohorts of all pulls.
    fn sort_again(&mut self, ledger: &Ledger) {
        self.version = ledger.eligibility_version();
        self.stuck.clear();
        self.queues.clear();
        for waiting in self.pulls.values_mut() {
            waiting.cohort = ledger.cohort(waiting.pull.slot);
            if let Some(cohort) = waiting.cohort {
                self.queues.entry(cohort).or_default().insert(waiting.order, waiting.pull.slot);
            }
        }
    }
}

/// The pulls that wait.
#[derive(Default)]
pub(crate) struct ParkedPulls {
    state: Mutex<State>,
    /// Pulls that were taken out to claim rows and whose claims are not known to be applied, with how many rows they
    /// claim.
    claiming: Mutex<HashMap<(SlotKey, u64), (SlotRef, u32)>>,
}

impl ParkedPulls {
    /// Parks a pull, unless its stream is closed or a newer pull of its slot waits.
    pub(crate) fn park(&self, pull: Pull, ledger: &Ledger) {
        if pull.out.is_closed() {
            return;
        }
        let mut state = self.state.lock();
        let present = state.pulls.get(&key(pull.slot)).map(|waiting| &waiting.pull);
        if present.is_some_and(|present| !present.out.is_closed() && present.seq > pull.seq) {
            return;
        }
        let cohort = ledger.cohort(pull.slot);
        // Its answer may already exist: stolen rows that were granted to this pull while its worker had another
        // stream.
        if ledger.has_answered(pull.slot, pull.seq) {
            state.answered.push(pull.slot);
        }
        state.insert(pull, cohort);
    }

    /// Takes a slot's pull out, if one waits.
    pub(crate) fn take(&self, slot: SlotRef) -> Option<Pull> {
        self.state.lock().remove(slot)
    }

    /// Takes out the pulls that can be served now: from an answer that exists already or, if they `may_claim`, with
    /// rows that no claim in progress covers. The caller must settle each ([`settled`](Self::settled)). The time is
    /// proportional to the waiting cohorts and to the pulls that are taken out, not to those that continue to wait.
    pub(crate) fn take_ready(&self, ledger: &Ledger, may_claim: bool) -> Vec<Pull> {
        let (mut state, mut claiming) = (self.state.lock(), self.claiming.lock());
        let state = &mut *state;
        if state.version != ledger.eligibility_version() {
            state.sort_again(ledger);
        }
        let mut ready = Vec::new();
        for slot in std::mem::take(&mut state.answered) {
            let waiting = state.pulls.get(&key(slot)).map(|waiting| &waiting.pull);
            if waiting.is_some_and(|pull| ledger.has_answered(slot, pull.seq)) {
                ready.extend(state.remove(slot));
            }
        }
        if !may_claim {
            return ready;
        }
        let mut forecast = ledger.claim_forecast();
        for &(slot, rows_max) in claiming.values() {
            forecast.would_grant(slot, rows_max);
        }
        let cohorts: Vec<CohortNo> = state.queues.keys().copied().collect();
        for cohort in cohorts {
            while forecast.has_work(cohort) {
                let Some((&order, &slot)) =
                    state.queues.get(&cohort).and_then(|q| q.first_key_value())
                else {
                    break;
                };
                if forecast.is_capped(slot) {
                    break; // the whole cohort is too: it has one namespace
                }
                let rows_max =
                    state.pulls.get(&key(slot)).map_or(0, |waiting| waiting.pull.rows_max);
                if !forecast.would_grant(slot, rows_max) {
                    state.unqueue(Some(cohort), order);
                    state.stuck.entry(cohort).or_default().insert(order, slot);
                    continue;
                }
                if let Some(pull) = state.remove(slot) {
                    claiming.insert((key(slot), pull.seq), (slot, rows_max));
                    ready.push(pull);
                }
            }
        }
        ready
    }

    /// Records that the claim of a pull that was taken out is applied, or never will be.
    pub(crate) fn settled(&self, slot: SlotRef, seq: u64) {
        self.claiming.lock().remove(&(key(slot), seq));
        self.may_be_answered(slot);
    }

    /// Records that a slot was granted rows: if its pull waits, the answer may exist.
    pub(crate) fn may_be_answered(&self, slot: SlotRef) {
        let mut state = self.state.lock();
        if state.pulls.contains_key(&key(slot)) {
            state.answered.push(slot);
        }
    }

    /// The cohorts with waiting pulls.
    pub(crate) fn cohorts(&self) -> Vec<CohortNo> {
        let state = self.state.lock();
        let cohorts: BTreeSet<CohortNo> =
            state.queues.keys().chain(state.stuck.keys()).copied().collect();
        cohorts.into_iter().collect()
    }

    /// The slots of a cohort with waiting pulls, longest wait first.
    pub(crate) fn slots(&self, cohort: CohortNo) -> Vec<SlotRef> {
        let state = self.state.lock();
        let queues = [state.queues.get(&cohort), state.stuck.get(&cohort)];
        let mut slots: Vec<(u64, SlotRef)> =
            queues.into_iter().flatten().flatten().map(|(order, slot)| (*order, *slot)).collect();
        // At most two sorted runs, which the sort merges.
        slots.sort();
        slots.into_iter().map(|(_, slot)| slot).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.state.lock().pulls.is_empty()
    }

    /// Drops the pulls of closed streams, and puts stuck pulls back into their queues.
    pub(crate) fn sweep(&self) {
        let mut state = self.state.lock();
        let gone = state.pulls.values().filter(|waiting| waiting.pull.out.is_closed());
        let gone: Vec<SlotRef> = gone.map(|waiting| waiting.pull.slot).collect();
        for slot in gone {
            state.remove(slot);
        }
        for (cohort, mut stuck) in std::mem::take(&mut state.stuck) {
            state.queues.entry(cohort).or_default().append(&mut stuck);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo};
    use rollout_ledger::{
        BlobRef, Body, Command, EngineSpec, EntryId, OpKind, Registration, Reply, RunSpec,
        SegmentDecl, SlotOffer, op,
    };
    use tokio::sync::mpsc;

    fn pull(seq: u64, out: &Outbox) -> Pull {
        let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        Pull { slot, instance: 1, seq, rows_max: 1, out: out.clone() }
    }

    #[test]
    fn the_pull_of_a_closed_stream_is_not_parked() {
        let (parked, ledger) = (ParkedPulls::default(), Ledger::new([1; 16]));
        let ((old, gone), (new, _listens)) = (mpsc::channel(1), mpsc::channel(1));
        parked.park(pull(3, &old), &ledger);
        drop(gone);
        // The worker repeats it on its next stream; the pull of the old stream is parked after that.
        parked.park(pull(3, &new), &ledger);
        parked.park(pull(3, &old), &ledger);
        parked.sweep();
        let kept = parked.take(pull(3, &new).slot).expect("it waits");
        assert!(kept.out.same_channel(&new));
    }

    #[test]
    fn an_older_pull_does_not_replace_a_newer_one() {
        let (parked, ledger) = (ParkedPulls::default(), Ledger::new([1; 16]));
        let (out, _listens) = mpsc::channel(1);
        parked.park(pull(4, &out), &ledger);
        parked.park(pull(3, &out), &ledger);
        assert_eq!(parked.take(pull(0, &out).slot).map(|p| p.seq), Some(4));
    }

    fn apply(ledger: &mut Ledger, body: Body) -> Reply {
        let index = ledger.applied().index + 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let replies = ledger.apply(EntryId { index, term: 1 }, &command.encode());
        replies.expect("it is known").pop().expect("a reply")
    }

    fn op(ledger: &mut Ledger, kind: OpKind) -> Reply {
        apply(ledger, Body::Ops(vec![kind.into()]))
    }

    /// A ledger with a run, and the maximum number of slots of one worker.
    fn fleet() -> (Ledger, RunNo, Vec<SlotRef>) {
        let mut ledger = Ledger::new([1; 16]);
        apply(&mut ledger, Body::OpenEpoch);
        let offer = SlotOffer { models: vec!["m".into()], ..SlotOffer::default() };
        let registration = Registration {
            namespace: "default".into(),
            name: "w".into(),
            instance: 1,
            slots: vec![offer; 64],
            ..Registration::default()
        };
        let registered = op(&mut ledger, OpKind::Register(Box::new(registration)));
        let Reply::Registered { session, .. } = registered else { panic!("{registered:?}") };
        let spec = RunSpec {
            engine: EngineSpec { model: "m".into(), ..EngineSpec::default() },
            weight: 1,
            attempts_max: 1,
            ..RunSpec::default()
        };
        let (name, folder) = ("r".to_owned(), "r/own".to_owned());
        let (namespace, spec) = ("default".to_owned(), Box::new(spec));
        let created =
            op(&mut ledger, OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder }));
        let Reply::Run { run, .. } = created else { panic!("{created:?}") };
        (ledger, run, (0..64).map(|slot| SlotRef { session, slot: SlotNo(slot) }).collect())
    }

    fn append(ledger: &mut Ledger, run: RunNo, number: u32, rows: u32) {
        let segment = SegmentDecl { number: SegmentNo(number), rows, blob: BlobRef::default() };
        let added =
            op(ledger, OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] }));
        assert!(!matches!(added, Reply::Rejected(_)), "{added:?}");
    }

    fn claim(ledger: &mut Ledger, pull: &Pull) -> u64 {
        let Pull { slot, instance, seq, rows_max, .. } = *pull;
        match op(ledger, OpKind::Claim(op::Claim { slot, instance, seq, rows_max })) {
            Reply::Granted(grants) => grants.iter().map(|grant| grant.held.rows.len()).sum(),
            reply => panic!("{reply:?}"),
        }
    }

    #[test]
    fn a_pending_row_takes_out_one_pull_and_no_other_while_the_claim_is_in_progress() {
        let (mut ledger, run, slots) = fleet();
        let parked = ParkedPulls::default();
        let (out, _listens) = mpsc::channel(1);
        for &slot in &slots {
            parked
                .park(Pull { slot, instance: 1, seq: 1, rows_max: 512, out: out.clone() }, &ledger);
        }
        assert!(parked.take_ready(&ledger, true).is_empty());
        append(&mut ledger, run, 0, 1);
        assert!(parked.take_ready(&ledger, false).is_empty(), "nothing may be granted now");
        let first = parked.take_ready(&ledger, true);
        assert_eq!(first.len(), 1);
        assert!(parked.take_ready(&ledger, true).is_empty(), "the row is asked for");
        // More rows than that claim covers are worth another one.
        append(&mut ledger, run, 1, 600);
        let second = parked.take_ready(&ledger, true);
        assert_eq!(second.len(), 1);
        assert_eq!(claim(&mut ledger, &first[0]), 512);
        assert_eq!(claim(&mut ledger, &second[0]), 89);
        parked.settled(first[0].slot, 1);
        parked.settled(second[0].slot, 1);
        assert!(parked.take_ready(&ledger, true).is_empty());
        let waiting: usize =
            parked.cohorts().into_iter().map(|cohort| parked.slots(cohort).len()).sum();
        assert_eq!(waiting, 62);
    }

    #[test]
    fn a_pull_that_no_pending_row_fits_may_still_steal() {
        let (mut ledger, run, slots) = fleet();
        let parked = ParkedPulls::default();
        let (out, _listens) = mpsc::channel(1);
        // The slot is cordoned: there are pending rows for its cohort, but not for it.
        let first = slots[0];
        let cordon = |cordoned| {
            OpKind::Cordon(op::Cordon {
                session: first.session,
                slot: Some(first.slot),
                cordoned,
                reason: String::new(),
            })
        };
        op(&mut ledger, cordon(true));
        for &slot in &slots[..2] {
            parked.park(Pull { slot, instance: 1, seq: 1, rows_max: 8, out: out.clone() }, &ledger);
        }
        append(&mut ledger, run, 0, 64);
        let ready = parked.take_ready(&ledger, true);
        assert_eq!(ready.iter().map(|pull| pull.slot).collect::<Vec<_>>(), slots[1..2]);
        let waiting = || -> Vec<SlotRef> {
            parked.cohorts().into_iter().flat_map(|cohort| parked.slots(cohort)).collect()
        };
        assert_eq!(waiting(), [first], "it is among those for which victims are looked for");
        op(&mut ledger, cordon(false));
        parked.sweep();
        let ready = parked.take_ready(&ledger, true);
        assert_eq!(ready.iter().map(|pull| pull.slot).collect::<Vec<_>>(), [first]);
        assert!(waiting().is_empty());
    }

    #[test]
    fn a_claim_without_rows_leaves_the_row_to_another_pull() {
        let (mut ledger, run, slots) = fleet();
        let parked = ParkedPulls::default();
        let (out, _listens) = mpsc::channel(1);
        for &slot in &slots[..2] {
            parked
                .park(Pull { slot, instance: 1, seq: 1, rows_max: 512, out: out.clone() }, &ledger);
        }
        append(&mut ledger, run, 0, 1);
        let taken = parked.take_ready(&ledger, true);
        let [lost] = &taken[..] else { panic!("not one") };
        parked.settled(lost.slot, lost.seq);
        let taken = parked.take_ready(&ledger, true);
        let [next] = &taken[..] else { panic!("not one") };
        assert_ne!(next.slot, lost.slot);
        assert_eq!(claim(&mut ledger, next), 1);
        // The stream of the first slot broke before the answer arrived, and the slot asks again.
        parked.settled(next.slot, next.seq);
        parked.park(Pull { out: out.clone(), ..*next }, &ledger);
        let again = parked.take_ready(&ledger, false);
        assert_eq!(again.iter().map(|p| p.slot).collect::<Vec<_>>(), [next.slot]);
    }
}
