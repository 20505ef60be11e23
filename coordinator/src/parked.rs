//! Pulls that found nothing to give, held back until there is something.
//!
//! *Invariant:* one parked pull a slot. A newer message of the slot answers the parked one first,
//! empty; so nothing waits behind it. A parked pull proposes nothing. The pull of a stream that has
//! gone never takes the place of one that is listened to. No more pulls are taken out for pending rows
//! than these suffice for, those included whose claims are under way: each claim is an operation in the
//! log, and a thousand idle slots would make a thousand of them of one row.

use crate::leading::Outbox;
use parking_lot::Mutex;
use rollout_ledger::Ledger;
use rollout_ledger::id::SlotRef;
use std::collections::HashMap;

/// One pull that waits.
pub(crate) struct Pull {
    pub(crate) slot: SlotRef,
    /// The process that pulls.
    pub(crate) instance: u64,
    pub(crate) seq: u64,
    pub(crate) rows_max: u32,
    pub(crate) out: Outbox,
}

/// The pulls that wait.
#[derive(Default)]
pub(crate) struct Parked {
    pulls: Mutex<HashMap<SlotKey, Pull>>,
    /// The pulls that were taken out to be granted something, and are not known to be applied; with what they ask for.
    claiming: Mutex<HashMap<(SlotKey, u64), (SlotRef, u32)>>,
}

/// A slot as a hash key.
type SlotKey = (u64, u16);

fn key(slot: SlotRef) -> SlotKey {
    (slot.session.0, slot.slot.0)
}

impl Parked {
    /// Lets a pull wait, unless nobody listens for its answer, or a newer one of its slot waits.
    pub(crate) fn park(&self, pull: Pull) {
        if pull.out.is_closed() {
            return;
        }
        let mut pulls = self.pulls.lock();
        let present = pulls.get(&key(pull.slot));
        if present.is_some_and(|present| !present.out.is_closed() && present.seq > pull.seq) {
            return;
        }
        pulls.insert(key(pull.slot), pull);
    }

    /// Takes a slot's pull out, if one waits.
    pub(crate) fn take(&self, slot: SlotRef) -> Option<Pull> {
        self.pulls.lock().remove(&key(slot))
    }

    /// Takes out those that would get something now: an answer that they were given before, or, if they `may_claim`, rows
    /// that no claim under way asks for. Each has to be [`settled`](Self::settled).
    pub(crate) fn take_ready(&self, ledger: &Ledger, may_claim: bool) -> Vec<Pull> {
        let (mut pulls, mut claiming) = (self.pulls.lock(), self.claiming.lock());
        let mut outlook = ledger.outlook();
        for &(slot, rows_max) in claiming.values() {
            outlook.ask(slot, rows_max);
        }
        let ready = pulls.extract_if(|slot, pull| {
            if ledger.has_answered(pull.slot, pull.seq) {
                return true;
            }
            let claims = may_claim && outlook.ask(pull.slot, pull.rows_max);
            if claims {
                claiming.insert((*slot, pull.seq), (pull.slot, pull.rows_max));
            }
            claims
        });
        ready.map(|(_, pull)| pull).collect()
    }

    /// The claim of a pull that was taken out is applied, or never will be.
    pub(crate) fn settled(&self, slot: SlotRef, seq: u64) {
        self.claiming.lock().remove(&(key(slot), seq));
    }

    /// The slots whose pulls wait, in order.
    pub(crate) fn slots(&self) -> Vec<SlotRef> {
        let mut slots: Vec<SlotRef> = self.pulls.lock().values().map(|p| p.slot).collect();
        slots.sort_unstable();
        slots
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pulls.lock().is_empty()
    }

    /// Drops the pulls of streams that have gone.
    pub(crate) fn sweep(&self) {
        self.pulls.lock().retain(|_, p| !p.out.is_closed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rollout_ledger::id::{CoordEpoch, LedgerMs, RunNo, SegmentNo, SessionId, SlotNo};
    use rollout_ledger::{
        BlobRef, Body, Command, EngineSpec, EntryId, OpKind, Registration, Reply, RunSpec,
        SegmentDecl, SlotOffer,
    };
    use tokio::sync::mpsc;

    fn pull(seq: u64, out: &Outbox) -> Pull {
        let slot = SlotRef { session: SessionId(1), slot: SlotNo(0) };
        Pull { slot, instance: 1, seq, rows_max: 1, out: out.clone() }
    }

    #[test]
    fn a_pull_that_nobody_listens_for_takes_no_place() {
        let parked = Parked::default();
        let ((old, gone), (new, _listens)) = (mpsc::channel(1), mpsc::channel(1));
        parked.park(pull(3, &old));
        drop(gone);
        // The worker repeats it on its next stream; what was under way for the old one comes after.
        parked.park(pull(3, &new));
        parked.park(pull(3, &old));
        parked.sweep();
        let kept = parked.take(pull(3, &new).slot).expect("it waits");
        assert!(kept.out.same_channel(&new));
    }

    #[test]
    fn an_older_pull_takes_no_newer_ones_place() {
        let parked = Parked::default();
        let (out, _listens) = mpsc::channel(1);
        parked.park(pull(4, &out));
        parked.park(pull(3, &out));
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

    /// A ledger with a run, and as many slots for it as a worker may have.
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
        let created = op(&mut ledger, OpKind::CreateRun { namespace, name, spec, folder });
        let Reply::Run { run, .. } = created else { panic!("{created:?}") };
        (ledger, run, (0..64).map(|slot| SlotRef { session, slot: SlotNo(slot) }).collect())
    }

    fn append(ledger: &mut Ledger, run: RunNo, number: u32, rows: u32) {
        let segment = SegmentDecl { number: SegmentNo(number), rows, blob: BlobRef::default() };
        let added = op(ledger, OpKind::AddSegments { run, segments: vec![segment] });
        assert!(!matches!(added, Reply::Rejected(_)), "{added:?}");
    }

    fn claim(ledger: &mut Ledger, pull: &Pull) -> u64 {
        let Pull { slot, instance, seq, rows_max, .. } = *pull;
        match op(ledger, OpKind::Claim { slot, instance, seq, rows_max }) {
            Reply::Granted(grants) => grants.iter().map(|grant| grant.held.rows.len()).sum(),
            reply => panic!("{reply:?}"),
        }
    }

    #[test]
    fn a_pending_row_takes_out_one_pull_of_many_and_no_other_while_its_claim_is_under_way() {
        let (mut ledger, run, slots) = fleet();
        let parked = Parked::default();
        let (out, _listens) = mpsc::channel(1);
        for &slot in &slots {
            parked.park(Pull { slot, instance: 1, seq: 1, rows_max: 512, out: out.clone() });
        }
        assert!(parked.take_ready(&ledger, true).is_empty());
        append(&mut ledger, run, 0, 1);
        assert!(parked.take_ready(&ledger, false).is_empty(), "nothing may be granted now");
        let first = parked.take_ready(&ledger, true);
        assert_eq!(first.len(), 1);
        assert!(parked.take_ready(&ledger, true).is_empty(), "the row is asked for");
        // More rows than that claim asks for are worth another one.
        append(&mut ledger, run, 1, 600);
        let second = parked.take_ready(&ledger, true);
        assert_eq!(second.len(), 1);
        assert_eq!(claim(&mut ledger, &first[0]), 512);
        assert_eq!(claim(&mut ledger, &second[0]), 89);
        parked.settled(first[0].slot, 1);
        parked.settled(second[0].slot, 1);
        assert!(parked.take_ready(&ledger, true).is_empty());
        assert_eq!(parked.slots().len(), 62);
    }

    #[test]
    fn a_claim_that_came_to_nothing_leaves_the_row_to_another_pull() {
        let (mut ledger, run, slots) = fleet();
        let parked = Parked::default();
        let (out, _listens) = mpsc::channel(1);
        for &slot in &slots[..2] {
            parked.park(Pull { slot, instance: 1, seq: 1, rows_max: 512, out: out.clone() });
        }
        append(&mut ledger, run, 0, 1);
        let taken = parked.take_ready(&ledger, true);
        let [lost] = &taken[..] else { panic!("not one") };
        parked.settled(lost.slot, lost.seq);
        let taken = parked.take_ready(&ledger, true);
        let [next] = &taken[..] else { panic!("not one") };
        assert_ne!(next.slot, lost.slot);
        assert_eq!(claim(&mut ledger, next), 1);
        // The stream of the first one broke before it had its answer, and it asks again.
        parked.settled(next.slot, next.seq);
        parked.park(Pull { out: out.clone(), ..*next });
        let again = parked.take_ready(&ledger, false);
        assert_eq!(again.iter().map(|p| p.slot).collect::<Vec<_>>(), [next.slot]);
    }
}
