//! The claim forecast: which of many parked pulls would get rows, before any of them is proposed.
//!
//! *Invariant:* a pull stays parked only if the pulls before it claim every row that it could get, so a pending row
//! causes one proposal, whatever the number of parked pulls. If those pulls get fewer or other rows, the parked pull
//! is checked again after they are applied, so no pull waits forever while a row is pending. The cost depends on what
//! the pulls ask for, not on what is pending.
//! Absent: turns among runs of one priority, and which group a slot gets. A pull counts against the first rows in
//! order.

use crate::batch::bisection::GroupNo;
use crate::batch::eligibility::{CohortNo, NeedNo, Turn};
use crate::batch::run::Run;
use crate::fleet::slot::Slot;
use crate::kernel::id::SlotRef;
use crate::kernel::limits;
use crate::machine::ledger::Ledger;
use std::collections::BTreeMap;
use std::iter::Peekable;

/// What the runs of one need have left for the next pull.
struct Left<'a> {
    /// Rows of the visited runs.
    rows: u64,
    /// The rows of each further run.
    more: Box<dyn Iterator<Item = u64> + 'a>,
    /// The groups that no pull has taken.
    groups: Peekable<Box<dyn Iterator<Item = GroupNo> + 'a>>,
}

impl<'a> Left<'a> {
    fn of(ledger: &'a Ledger, need: NeedNo) -> Self {
        let runs = ledger.index.turns_of(need).filter_map(|turn| ledger.runs.get(&turn.run));
        let more = Box::new(runs.map(|run| run.grantable_beside_groups().min(run.room())));
        let runs = ledger.runs_with_groups(need);
        let groups = runs.flat_map(|run| run.ready_groups().map(|(group, _)| group));
        let groups: Box<dyn Iterator<Item = GroupNo> + 'a> = Box::new(groups);
        Self { rows: 0, more, groups: groups.peekable() }
    }

    /// Up to `most` rows. Visits no more runs than needed to find them.
    fn rows(&mut self, most: u64) -> u64 {
        while self.rows < most {
            let Some(rows) = self.more.next() else { break };
            self.rows = self.rows.saturating_add(rows);
        }
        self.rows.min(most)
    }

    fn is_empty(&mut self) -> bool {
        !self.has_group() && self.rows(1) == 0
    }

    /// Checks only the next group.
    fn has_group(&mut self) -> bool {
        self.groups.peek().is_some()
    }
}

/// The pending rows, minus those that pulls have asked for.
pub struct ClaimForecast<'a> {
    ledger: &'a Ledger,
    /// What is left of the needs that pulls were served from.
    needs: BTreeMap<NeedNo, Left<'a>>,
    /// By cohort: nothing is left up to the need with this first turn.
    spent: BTreeMap<CohortNo, Turn>,
    /// Rows that namespaces may still get, by name.
    rooms: BTreeMap<&'a str, u64>,
}

impl Ledger {
    /// The runs with this need that have a group to give.
    fn runs_with_groups(&self, need: NeedNo) -> impl Iterator<Item = &Run> {
        self.run_lists.groups_of(need).filter_map(|no| self.runs.get(&no))
    }

    /// Whether a run with this need has a group for a slot.
    fn has_group_for(&self, slot: SlotRef, pulls: &Slot, need: NeedNo) -> bool {
        let mut runs = self.runs_with_groups(need);
        runs.any(|run| self.offered_group(run, slot, pulls.rows_held() == 0).is_some())
    }

    /// A forecast for pulls that will be proposed together.
    pub fn claim_forecast(&self) -> ClaimForecast<'_> {
        let (needs, spent, rooms) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        ClaimForecast { ledger: self, needs, spent, rooms }
    }
}

impl<'a> ClaimForecast<'a> {
    /// Whether a pull of this slot for at most `rows_max` rows would get anything besides what earlier pulls ask for.
    /// Counts what it would get as asked for.
    pub fn would_grant(&mut self, slot: SlotRef, rows_max: u32) -> bool {
        let ledger: &'a Ledger = self.ledger;
        let Some((worker, pulls)) = ledger.pulling(slot) else { return false };
        let namespace = || ledger.namespace_room(worker.namespace());
        let namespace = *self.rooms.entry(worker.namespace()).or_insert_with(namespace);
        let room = u64::from(limits::SLOT_ROWS_MAX).saturating_sub(pulls.rows_held());
        let most = u64::from(rows_max.min(limits::CLAIM_ROWS_MAX)).min(room).min(namespace);
        let mut wanted = most;
        let Some(cohort) = ledger.index.cohort(pulls.offer_no()) else { return false };
        for (_, need) in ledger.index.giving(cohort, self.spent.get(&cohort).copied()) {
            if wanted == 0 {
                break;
            }
            let left = self.left(need);
            // A group is had alone.
            if left.has_group() && ledger.has_group_for(slot, pulls, need) {
                left.groups.next();
                return true;
            }
            let mut granted = if pulls.cordon().is_none() { left.rows(wanted) } else { 0 };
            // Rows kept from its worker are no work for it.
            let mut runs = ledger.index.turns_of(need).filter_map(|t| ledger.runs.get(&t.run));
            if granted > 0 && !runs.any(|run| ledger.grantable_to(run, worker, slot.slot) > 0) {
                granted = 0;
            }
            left.rows -= granted;
            wanted -= granted;
            if let Some(room) = self.rooms.get_mut(worker.namespace()) {
                *room -= granted;
            }
        }
        wanted < most
    }

    fn left(&mut self, need: NeedNo) -> &mut Left<'a> {
        self.needs.entry(need).or_insert_with(|| Left::of(self.ledger, need))
    }

    /// Whether any slot of a cohort might get something besides what pulls have asked for.
    pub fn has_work(&mut self, cohort: CohortNo) -> bool {
        let ledger: &'a Ledger = self.ledger;
        for (turn, need) in ledger.index.giving(cohort, self.spent.get(&cohort).copied()) {
            if !self.left(need).is_empty() {
                return true;
            }
            self.spent.insert(cohort, turn);
        }
        false
    }

    /// Whether the cap of a slot's namespace leaves nothing besides what pulls have asked for.
    pub fn is_capped(&self, slot: SlotRef) -> bool {
        let Some(worker) = self.ledger.workers.get(&slot.session) else { return false };
        let room = || self.ledger.namespace_room(worker.namespace());
        self.rooms.get(worker.namespace()).copied().unwrap_or_else(room) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::spec::{EngineSpec, RunSpec, SlotOffer};
    use crate::kernel::id::RunNo;
    use crate::kernel::id::{CoordEpoch, LedgerMs, SegmentNo, SlotNo};
    use crate::kernel::reply::Reply;
    use crate::kernel::visits::visits_of;
    use crate::machine::command::op;
    use crate::machine::command::{
        BlobRef, Body, Command, Evidence, FailureClass, OpKind, Registration, SegmentDecl,
    };
    use crate::machine::ledger::EntryId;

    /// A ledger, and the index of its last entry.
    struct Bench(Ledger, u64);

    impl Bench {
        fn new() -> Self {
            let mut bench = Self(Ledger::new([1; 16]), 0);
            bench.apply(Body::OpenEpoch);
            bench
        }

        fn apply(&mut self, body: Body) -> Reply {
            self.1 += 1;
            let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
            let entry = EntryId { index: self.1, term: 1 };
            let mut replies = self.0.apply(entry, &command.encode()).expect("it is known");
            replies.pop().expect("a reply")
        }

        fn op(&mut self, kind: OpKind) -> Reply {
            match self.apply(Body::Ops(vec![kind.into()])) {
                Reply::Rejected(why) => panic!("{why:?}"),
                reply => reply,
            }
        }

        /// A worker with this many slots, each for this model only.
        fn slots(&mut self, model: &str, slots: u16) -> Vec<SlotRef> {
            let offer = SlotOffer { models: vec![model.into()], ..SlotOffer::default() };
            let registration = Registration {
                namespace: "default".into(),
                name: format!("worker-{}", self.1),
                instance: 1,
                slots: vec![offer; slots.into()],
                ..Registration::default()
            };
            match self.op(OpKind::Register(Box::new(registration))) {
                Reply::Registered { session, .. } => {
                    (0..slots).map(|slot| SlotRef { session, slot: SlotNo(slot) }).collect()
                }
                reply => panic!("{reply:?}"),
            }
        }

        fn run(&mut self, model: &str, rows: u32, adjust: impl Fn(&mut RunSpec)) -> RunNo {
            let mut spec = RunSpec {
                engine: EngineSpec { model: model.into(), ..EngineSpec::default() },
                weight: 1,
                attempts_max: 1,
                ..RunSpec::default()
            };
            adjust(&mut spec);
            let name = format!("run-{}", self.1);
            let (folder, spec) = (format!("{name}/own"), Box::new(spec));
            let create = OpKind::CreateRun(op::CreateRun {
                namespace: "default".into(),
                name,
                spec,
                folder,
            });
            let Reply::Run { run, .. } = self.op(create) else { panic!("no run") };
            let segment = SegmentDecl { number: SegmentNo(0), rows, blob: BlobRef::default() };
            self.op(OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] }));
            run
        }

        /// Those of the slots whose pull would be proposed.
        fn asked(&self, slots: &[SlotRef], rows_max: u32) -> Vec<SlotRef> {
            let mut forecast = self.0.claim_forecast();
            slots.iter().copied().filter(|slot| forecast.would_grant(*slot, rows_max)).collect()
        }
    }

    #[test]
    fn a_row_is_worth_one_pull_however_many_wait() {
        let mut bench = Bench::new();
        let slots = bench.slots("m", 64);
        assert!(bench.asked(&slots, 512).is_empty());
        bench.run("m", 1, |_| {});
        assert!(slots.iter().all(|slot| bench.0.has_work_for(*slot)));
        assert_eq!(bench.asked(&slots, 512), slots[..1]);
        bench.run("m", 1000, |_| {});
        assert_eq!(bench.asked(&slots, 512), slots[..2]);
        assert_eq!(bench.asked(&slots, 100), slots[..11], "1001 rows");
        assert!(bench.asked(&slots, 0).is_empty());
    }

    #[test]
    fn a_claim_forecast_visits_no_more_groups_than_pulls_ask_for() {
        const RUNS: usize = 40;
        let mut bench = Bench::new();
        let slots = bench.slots("m", RUNS as u16 + 2);
        let mut held = Vec::new();
        for slot in slots[..RUNS].iter().copied() {
            bench.run("m", 8, |spec| spec.attempts_max = 3);
            let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq: 1, rows_max: 8 });
            let Reply::Granted(grants) = bench.op(claim) else { panic!("no grant") };
            held.push((slot, grants.into_iter().map(|grant| grant.held).collect()));
        }
        for (slot, started) in held {
            bench.op(OpKind::EngineDied(op::EngineDied {
                slot,
                number: 0,
                started,
                class: FailureClass::EngineDied,
                code: String::new(),
                message: String::new(),
                evidence: Evidence::default(),
            }));
        }
        let ready = bench.0.runs.values().map(|run| run.ready_groups().count());
        assert_eq!(ready.sum::<usize>(), 2 * RUNS, "the halves of each");
        assert_eq!(visits_of(|| bench.0.claim_forecast()), 0);
        let idle = &slots[RUNS..];
        let visits = visits_of(|| assert_eq!(bench.asked(idle, 512), idle));
        assert!(visits < RUNS as u64, "{visits} visits");
        bench.0.check_invariants().expect("they hold");
    }

    #[test]
    fn a_pull_leaves_rows_that_it_cannot_have_to_others() {
        let mut bench = Bench::new();
        let (mut slots, of_n) = (bench.slots("m", 8), bench.slots("n", 2));
        slots.extend(&of_n);
        bench.run("m", 1, |_| {});
        bench.run("n", 1, |_| {});
        assert_eq!(bench.asked(&slots, 512), [slots[0], of_n[0]]);
        // A run that may not run gives nothing, and one with a cap gives only up to the cap.
        bench.run("n", 100, |spec| spec.running_rows_max = 5);
        bench.run("n", 100, |spec| spec.selector = [("zone".into(), "b".into())].into());
        assert_eq!(bench.asked(&slots, 6), [slots[0], of_n[0]]);
        assert_eq!(bench.asked(&slots, 3), [slots[0], of_n[0], of_n[1]]);
        let name = "default".into();
        bench.op(OpKind::SetNamespace(op::SetNamespace { name, running_rows_max: 1 }));
        assert_eq!(bench.asked(&slots, 3), [slots[0]], "the namespace has room for one");
    }

    #[test]
    fn no_pull_waits_forever_for_a_row_that_it_could_have() {
        let mut bench = Bench::new();
        let mut slots = bench.slots("m", 5);
        slots.extend(bench.slots("n", 5));
        slots.extend(bench.slots("*", 5));
        let mut pending = 0;
        for (rows, priority) in [(7, 0), (1, 3), (30, 0), (2, 0), (11, 3)] {
            for model in ["m", "n"] {
                bench.run(model, rows, |spec| spec.priority = priority);
                pending += u64::from(rows);
            }
        }
        let mut granted = 0;
        for seq in 1.. {
            let asked = bench.asked(&slots, 4);
            assert_eq!(asked.is_empty(), granted == pending, "{granted} of {pending}");
            if asked.is_empty() {
                break;
            }
            let before = granted;
            for slot in asked {
                let claim = OpKind::Claim(op::Claim { slot, instance: 1, seq, rows_max: 4 });
                let Reply::Granted(grants) = bench.op(claim) else { panic!("no grant") };
                granted += grants.iter().map(|grant| grant.held.rows.len()).sum::<u64>();
            }
            assert!(granted > before, "a round without a row");
        }
    }
}
