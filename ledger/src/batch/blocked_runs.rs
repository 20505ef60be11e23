//! Explains to readers why no slot can take rows of a run.
//!
//! *Invariant:* reading changes nothing. Runs with the same need share an answer, so listing all runs takes time in
//! proportion to their distinct needs, not to the number of runs. Offers that lack a run's model or task are checked
//! once for all runs with the same models and tasks.

use crate::batch::eligibility::NeedNo;
use crate::batch::run::{Run, RunState};
use crate::batch::spec::{Mismatch, RunSpec, SlotOffer};
use crate::batch::store_access::StoreAccess;
use crate::kernel::id::RunNo;
use crate::machine::ledger::Ledger;
use crate::machine::version_gate::SCHEDULING_VERSION;
use std::collections::{BTreeMap, BTreeSet};

/// The most slots of one offer to name if they take no work at all.
const TOLD_MAX: usize = 64;
/// The most cordoned slots to visit for names.
const REASONS_MAX: usize = 64;
/// Reasons in one answer.
const REASONS_SHOWN: usize = 3;

/// A run with pending rows, none of which can be granted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StuckRun {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is paused.
    pub paused: bool,
    /// Whether it is paused because a slot that is to blame may not be cordoned.
    pub at_cordon_limit: bool,
    /// The reason, human-readable.
    pub why: String,
    /// Rows that could be given.
    pub pending: u64,
}

/// Answers of one moment.
pub struct Blocked<'a> {
    ledger: &'a Ledger,
    /// Answers by need, and by whether the run has bisection groups, which may lift a cordon.
    answers: BTreeMap<(NeedNo, bool), String>,
    /// Why slots of a namespace take no work from any run.
    ineligible: BTreeMap<&'a str, Vec<String>>,
}

impl Ledger {
    /// Why no slot can take rows of a run; empty when one can, or when nothing is pending.
    pub fn blocked(&self, no: RunNo) -> String {
        self.all_blocked().why(no)
    }

    /// Every stuck run, ordered by number: runs whose rows no slot can take, runs paused with rows left, and runs
    /// paused at the limit of cordons. Takes time in proportion to the runs.
    pub fn stuck_runs(&self) -> Vec<StuckRun> {
        let mut blocked = self.all_blocked();
        let mut stuck = Vec::new();
        for (no, run) in self.runs.iter() {
            let paused = run.head.state == RunState::Paused;
            let why = match paused {
                true => run.head.reason.clone(),
                false => blocked.why(*no),
            };
            let (pending, at_cordon_limit) = (run.pending(), run.at_cordon_limit());
            if (paused && pending > 0) || (!paused && !why.is_empty()) || at_cordon_limit {
                let (namespace, name) = (run.head.namespace.clone(), run.head.name.clone());
                stuck.push(StuckRun { namespace, name, paused, at_cordon_limit, why, pending });
            }
        }
        stuck
    }

    /// The same for many runs at one moment.
    pub fn all_blocked(&self) -> Blocked<'_> {
        Blocked { ledger: self, answers: BTreeMap::new(), ineligible: BTreeMap::new() }
    }
}

impl<'a> Blocked<'a> {
    /// Why no slot can take rows of a run; empty when one can, or when nothing is pending.
    pub fn why(&mut self, no: RunNo) -> String {
        let Some(run) = self.ledger.runs.get(&no) else { return String::new() };
        if run.head.state != RunState::Running || !run.has_grantable() {
            return String::new();
        }
        let Some(need) = self.ledger.index.need(no) else { return String::new() };
        let key = (need, !run.flight.groups.is_empty());
        let answer = match self.answers.get(&key) {
            Some(answer) => answer.clone(),
            None => {
                let answer = self.find(run);
                self.answers.insert(key, answer.clone());
                answer
            }
        };
        // A slot could take rows of the run, but not the pending ones now.
        match answer.is_empty() {
            true => self.ledger.waits_for_another_slot(run),
            false => answer,
        }
    }

    fn find(&mut self, run: &'a Run) -> String {
        let ledger: &'a Ledger = self.ledger;
        let mut cordons = BTreeSet::new();
        for at in ledger.index.slots_for(run.no) {
            let Some(worker) = ledger.workers.get(&at.session) else { continue };
            match ledger.cordon_of(worker, at.slot.0 as usize) {
                None => return String::new(),
                // The run's bisection groups will show whether the cordon stays.
                Some(_) if ledger.groups_may_lift_cordon(run, worker, at) => return String::new(),
                Some(why) if cordons.len() < REASONS_MAX => {
                    let why = if why.is_empty() { "no reason given" } else { why };
                    let name = worker.name();
                    cordons.insert(format!("{name} slot {} is cordoned: {why}", at.slot));
                }
                Some(_) => {}
            }
        }
        let (namespace, spec) = (&run.head.namespace, &run.head.spec);
        // A slot that only its cordon keeps from fitting is the closest of all.
        let mut all: Vec<String> = Vec::new();
        if cordons.is_empty() {
            all.extend(self.lacking(namespace, spec));
            all.extend(self.ineligible(namespace).iter().cloned());
        } else {
            all.extend(cordons.into_iter().take(REASONS_SHOWN));
        }
        match all.is_empty() {
            true => format!("no worker is registered in namespace {namespace}"),
            false => all.join("; "),
        }
    }

    /// What the closest slots lack. For example, "no slot has the model" would be wrong if one has it and only lacks
    /// a label.
    fn lacking(&self, namespace: &str, spec: &RunSpec) -> Option<String> {
        let mut lacking: BTreeMap<Mismatch, BTreeSet<String>> = BTreeMap::new();
        let engine = RunSpec { engine: spec.engine.clone(), ..RunSpec::default() };
        for (shape, offers) in self.ledger.index.shapes_in(namespace) {
            match shape.fits(&engine, &StoreAccess::default()) {
                Err(Mismatch::Ineligible) => {}
                // The same for each offer of the shape: they do not differ in anything relevant here.
                Err(mismatch) => {
                    lacking.entry(mismatch).or_default().extend(has_instead(mismatch, shape, spec));
                }
                Ok(()) => {
                    for (offer, stores, _) in offers {
                        if let Err(mismatch) = offer.fits(spec, stores) {
                            let has = has_instead(mismatch, offer, spec);
                            lacking.entry(mismatch).or_default().extend(has);
                        }
                    }
                }
            }
        }
        let version = self.ledger.version();
        lacking.last_key_value().map(|(mismatch, has)| lack(*mismatch, spec, has, version))
    }

    /// Why slots of a namespace take no work at all.
    fn ineligible(&mut self, namespace: &'a str) -> &[String] {
        let ledger: &'a Ledger = self.ledger;
        self.ineligible.entry(namespace).or_insert_with(|| {
            let mut reasons: BTreeSet<String> = BTreeSet::new();
            let shapes = ledger.index.shapes_in(namespace);
            let shapes = shapes.filter(|(shape, _)| !shape.ineligible.is_empty());
            for (offer, _, slots) in shapes.flat_map(|(_, offers)| offers) {
                let workers = slots.iter().filter_map(|at| ledger.workers.get(&at.session));
                let lines =
                    workers.map(|worker| format!("{}: {}", worker.name(), offer.ineligible));
                for reason in lines.take(TOLD_MAX) {
                    reasons.insert(reason);
                    if reasons.len() > REASONS_SHOWN {
                        reasons.pop_last();
                    }
                }
            }
            reasons.into_iter().collect()
        })
    }
}

/// What a slot has instead of what a run asks for, in words.
fn has_instead(mismatch: Mismatch, offer: &SlotOffer, spec: &RunSpec) -> Vec<String> {
    match mismatch {
        Mismatch::Revision => {
            let named = |revision: &str| match revision {
                "" => "one that is not known".to_owned(),
                revision => revision.to_owned(),
            };
            offer.revisions(&spec.engine.model).map(named).collect()
        }
        Mismatch::Require => {
            let describe = |(name, required, has): (&str, &str, Option<&str>)| {
                format!("{name} {required} (here {})", has.unwrap_or("not known"))
            };
            offer.unmet(spec).map(describe).collect()
        }
        _ => Vec::new(),
    }
}

/// What a run asks for that no slot has, and what the closest slots have instead.
fn lack(mismatch: Mismatch, spec: &RunSpec, has: &BTreeSet<String>, version: u32) -> String {
    let model = &spec.engine.model;
    let has = || has.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ");
    match mismatch {
        Mismatch::Ineligible => String::new(),
        Mismatch::Engine if spec.engine.task.is_empty() => format!("no slot offers model {model}"),
        Mismatch::Engine => format!("no slot offers model {model} for task {}", spec.engine.task),
        Mismatch::Revision => {
            let revision = &spec.engine.revision;
            format!("no slot has model {model} in revision {revision}, but in {}", has())
        }
        Mismatch::Require => format!("no slot that offers model {model} has {}", has()),
        Mismatch::Selector => {
            let labels: Vec<String> =
                spec.selector.iter().map(|(k, v)| format!("{k}={v}")).collect();
            format!("no slot that offers model {model} has labels {}", labels.join(","))
        }
        Mismatch::Store if version < SCHEDULING_VERSION => {
            format!("no worker that fits lists exactly {} in its [store] urls", spec.store_url)
        }
        Mismatch::Store => {
            let url = &spec.store_url;
            format!("no worker that fits lists {url}, or a URL above it, in its [store] urls")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::id::{CoordEpoch, LedgerMs, SegmentNo};
    use crate::kernel::reply::Reply;
    use crate::machine::command::op;
    use crate::machine::command::{BlobRef, Body, Command, OpKind, Registration, SegmentDecl};
    use crate::machine::ledger::EntryId;

    fn apply(ledger: &mut Ledger, body: Body) -> Reply {
        let index = ledger.applied().index + 1;
        let command = Command { epoch: CoordEpoch(1), at: LedgerMs(0), wall_ms: 0, body };
        let replies = ledger.apply(EntryId { index, term: 1 }, &command.encode());
        replies.expect("it is known").pop().expect("a reply")
    }

    fn run(ledger: &mut Ledger, number: u32, model: &str, zone: &str) -> RunNo {
        let mut spec = RunSpec { weight: 1, attempts_max: 1, ..RunSpec::default() };
        spec.engine.model = model.into();
        spec.selector = [("zone".to_owned(), zone.to_owned())].into();
        let (name, spec) = (format!("run-{number}"), Box::new(spec));
        let (namespace, folder) = ("default".into(), format!("{name}/own"));
        let create = OpKind::CreateRun(op::CreateRun { namespace, name, spec, folder });
        let Reply::Run { run, .. } = apply(ledger, Body::Ops(vec![create.into()])) else {
            panic!("no run")
        };
        let segment = SegmentDecl { number: SegmentNo(0), rows: 9, blob: BlobRef::default() };
        let add = OpKind::AddSegments(op::AddSegments { run, segments: vec![segment] });
        apply(ledger, Body::Ops(vec![add.into()]));
        run
    }

    #[test]
    fn runs_that_ask_for_the_same_share_an_answer_and_each_gets_the_one_that_it_gets_alone() {
        let mut ledger = Ledger::new([1; 16]);
        apply(&mut ledger, Body::OpenEpoch);
        for (name, model, ineligible) in
            [("w1", "m", ""), ("w2", "m@r1", ""), ("w3", "m", "no GPU"), ("w4", "m", "no disk")]
        {
            let offer = SlotOffer {
                models: vec![model.into()],
                labels: [("zone", "a"), ("instance_id", name)]
                    .map(|(k, v)| (k.to_owned(), v.to_owned()))
                    .into(),
                ineligible: ineligible.into(),
                ..SlotOffer::default()
            };
            let registration = Registration {
                namespace: "default".into(),
                name: name.into(),
                instance: 1,
                slots: vec![offer; 2],
                ..Registration::default()
            };
            let register = OpKind::Register(Box::new(registration));
            apply(&mut ledger, Body::Ops(vec![register.into()]));
        }
        let asked = [("m", "a"), ("m", "b"), ("n", "a")];
        let runs: Vec<RunNo> = (0..30)
            .map(|number| {
                let (model, zone) = asked[number as usize % asked.len()];
                run(&mut ledger, number, model, zone)
            })
            .collect();
        let mut all = ledger.all_blocked();
        for (at, no) in runs.iter().enumerate() {
            let tells = match at % asked.len() {
                0 => "",
                1 => "no slot that offers model m has labels zone=b; w3: no GPU; w4: no disk",
                _ => "no slot offers model n; w3: no GPU; w4: no disk",
            };
            assert_eq!(all.why(*no), tells);
            assert_eq!(ledger.blocked(*no), tells);
        }
        assert_eq!(all.answers.len(), asked.len(), "one for each need");
        assert_eq!(all.ineligible.len(), 1, "one for the namespace");
    }
}
