//! Checks the answers about shards, generations and checkpoints: each shard has one holder at a time, and along the
//! surviving checkpoints every sample is in exactly once.
//!
//! *Invariant:* an operation without an answer may or may not have happened; nothing else is certain. In this
//! workload every loss of work ends the generation, so within one generation only its holder's word ends a claim.

use super::values::{int, list, text};
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use crate::workload::shards::{SHARDS, shard_len};
use std::collections::{BTreeMap, BTreeSet};

/// With fewer generations, complete checkpoints or epochs the run is no pass.
pub(super) const LEAST: usize = 3;

/// The findings, and the coverage.
#[derive(Default)]
pub(super) struct GenerationFindings {
    pub(super) violations: Vec<String>,
    pub(super) claims: usize,
    pub(super) counts: Vec<(&'static str, usize)>,
}

/// A shard that was given.
#[derive(Clone, Copy)]
struct Claim<'a> {
    token: i64,
    who: &'a str,
    from: i64,
    answered_at: u64,
}

/// The holder's last report.
#[derive(Clone, Copy)]
struct End {
    called_at: u64,
    step: i64,
    /// How much of it was in at that time.
    read: i64,
    answered: bool,
}

/// A complete checkpoint, as reported to the trainers that began from it.
#[derive(Clone, PartialEq)]
struct Base {
    number: i64,
    step: i64,
    generation: i64,
    ranks: Vec<String>,
}

struct Generation {
    /// When a trainer first asked for it.
    asked_at: u64,
    /// When a trainer first knew of it.
    known_at: u64,
    /// Its first step: the earliest one that its trainers got.
    step: i64,
    base: Option<Base>,
}

/// A shard of an epoch.
type Shard = (i64, i64);

#[derive(Default)]
struct GenerationHistory<'a> {
    generations: BTreeMap<i64, Generation>,
    claims: BTreeMap<(i64, Shard), BTreeMap<i64, Claim<'a>>>,
    ends: BTreeMap<i64, End>,
    /// The progress on held shards that was reported to each checkpoint.
    progress: BTreeMap<(i64, Shard), i64>,
    reporters: BTreeMap<i64, BTreeSet<&'a str>>,
    /// Checkpoints reported as complete: the time, the step, and the number.
    complete: Vec<(u64, i64, i64)>,
    /// Epochs reported as finished: the time, the generation, and the trainer.
    over: Vec<(u64, i64, i64, &'a str)>,
    found: Vec<String>,
}

fn shard_of(key: &str) -> Shard {
    let (epoch, shard) = key.split_once('/').unwrap_or((key, "-1"));
    (epoch.parse().unwrap_or(-1), shard.parse().unwrap_or(-1))
}

/// Judges what was recorded.
pub(super) fn judged(operations: &[Operation]) -> GenerationFindings {
    let mut history = GenerationHistory::default();
    history.generations(operations);
    for operation in operations {
        history.read(operation);
    }
    history.check_late_requests(operations);
    history.shards();
    history.checkpoints();
    history.epochs();
    let epochs: BTreeSet<i64> = history.over.iter().map(|over| over.2).collect();
    let complete: BTreeSet<i64> = history.complete.iter().map(|complete| complete.2).collect();
    GenerationFindings {
        claims: history.claims.values().map(BTreeMap::len).sum(),
        counts: vec![
            ("lineages", history.generations.len()),
            ("complete checkpoints", complete.len()),
            ("epochs finished", epochs.len()),
        ],
        violations: history.found,
    }
}

fn base_of(value: Option<&Value>) -> Option<Base> {
    let parts = list(value?);
    let [number, step, generation, ranks] = parts else { return None };
    let ranks = list(ranks).iter().map(|rank| text(Some(rank)).to_owned()).collect();
    let (number, step) = (int(Some(number)), int(Some(step)));
    Some(Base { number, step, generation: int(Some(generation)), ranks })
}

impl<'a> GenerationHistory<'a> {
    fn generations(&mut self, operations: &'a [Operation]) {
        let mut first_calls: BTreeMap<i64, u64> = BTreeMap::new();
        for operation in operations.iter().filter(|o| &*o.f == "recover") {
            let first = first_calls.entry(int(list(&operation.input).get(1))).or_insert(u64::MAX);
            *first = (*first).min(operation.called_at);
        }
        for operation in operations.iter().filter(|o| &*o.f == "recover") {
            let Outcome::Answered { value, at, .. } = &operation.outcome else { continue };
            let parts = list(value);
            let (number, step) = (int(parts.get(1)), int(parts.get(2)));
            let base = base_of(parts.get(3));
            let asked_at = first_calls.get(&int(list(&operation.input).get(1))).copied();
            let asked_at = asked_at.unwrap_or(operation.called_at);
            let new = Generation { asked_at, known_at: *at, step, base };
            let Some(generation) = self.generations.get_mut(&number) else {
                self.generations.insert(number, new);
                continue;
            };
            generation.known_at = generation.known_at.min(*at);
            // A trainer that comes later may get a checkpoint that was completed meanwhile.
            if new.step < generation.step {
                (generation.step, generation.base) = (new.step, new.base);
            } else if new.step == generation.step && new.base != generation.base {
                self.found.push(format!("lineage {number} began from two checkpoints"));
            }
        }
    }

    fn read(&mut self, operation: &'a Operation) {
        let (key, input) = (operation.key.as_deref().unwrap_or_default(), list(&operation.input));
        let (who, generation) = (text(input.first()), int(input.get(1)));
        let answer = match &operation.outcome {
            Outcome::Answered { value, at, .. } => Some((value, *at)),
            Outcome::Unknown => None,
        };
        match (&*operation.f, answer) {
            ("claim", Some((value, answered_at))) => {
                let (token, from) = (int(list(value).first()), int(list(value).get(1)));
                let claim = Claim { token, who, from, answered_at };
                let before = self.claims.entry((generation, shard_of(key))).or_default();
                if let Some(before) = before.insert(token, claim) {
                    let other = before.who;
                    self.found.push(format!("{who} and {other} have one claim of shard {key}"));
                }
            }
            ("finish" | "release", _) => {
                let whole = shard_len(u64::try_from(shard_of(key).1).unwrap_or(0));
                let read = input.get(4).map_or(whole, |read| int(Some(read)));
                let (called_at, step) = (operation.called_at, int(input.get(3)));
                let end = End { called_at, step, read, answered: answer.is_some() };
                self.ends.insert(int(input.get(2)), end);
            }
            ("report", _) => {
                let number = key.trim_start_matches("checkpoint-").parse().unwrap_or(-1);
                self.reporters.entry(number).or_default().insert(who);
                for progress in input.get(3).map_or(&[][..], list) {
                    let progress = list(progress);
                    let shard = (int(progress.first()), int(progress.get(1)));
                    self.progress.insert((number, shard), int(progress.get(2)));
                }
                if let Some((_, at)) = answer.filter(|answer| *answer.0 == Value::text("complete"))
                {
                    self.complete.push((at, int(input.get(2)), number));
                }
            }
            ("over", Some((_, at))) => {
                self.over.push((at, generation, key.parse().unwrap_or(-1), who));
            }
            _ => {}
        }
    }

    /// No trainer is accepted in a generation after the next generation is known.
    fn check_late_requests(&mut self, operations: &'a [Operation]) {
        for operation in operations {
            if !matches!(&*operation.f, "claim" | "finish" | "release" | "report" | "over") {
                continue;
            }
            if !matches!(operation.outcome, Outcome::Answered { .. }) {
                continue;
            }
            let input = list(&operation.input);
            let (who, generation) = (text(input.first()), int(input.get(1)));
            let mut later = self.generations.range(generation + 1..);
            if let Some((later, _)) = later.find(|later| later.1.known_at < operation.called_at) {
                let (f, key) = (&operation.f, operation.key.as_deref().unwrap_or_default());
                self.found.push(format!(
                    "a {f} of {key} by {who} in lineage {generation} was heard after lineage {later} had begun"
                ));
            }
        }
    }

    /// How much of a shard can have been in when a generation began.
    fn begun(&self, generation: i64, shard: Shard) -> BTreeSet<i64> {
        let mut at = generation;
        // A generation that sealed nothing of the epoch began like the one before it.
        loop {
            let Some(base) =
                self.generations.get(&at).and_then(|generation| generation.base.as_ref())
            else {
                return BTreeSet::from([0]);
            };
            let (step, number) = (base.step, base.number);
            if let Some(sealed) = self.sealed(base.generation, shard, step, number) {
                return sealed;
            }
            if base.generation >= at {
                return BTreeSet::from([0]); // Another check reports that.
            }
            at = base.generation;
        }
    }

    /// How much of a shard a checkpoint can hold from its own generation; `None` if nothing.
    fn sealed(
        &self,
        generation: i64,
        shard: Shard,
        step: i64,
        number: i64,
    ) -> Option<BTreeSet<i64>> {
        let claims = self.claims.get(&(generation, shard))?;
        let mut now = None;
        for claim in claims.values() {
            match self.ends.get(&claim.token).filter(|end| end.step <= step) {
                Some(end) => now = Some(after(claim, Some(end))),
                None => {
                    // The shard was held at that time.
                    let reported = self.progress.get(&(number, shard)).copied();
                    if let Some(reported) = reported.filter(|reported| *reported >= claim.from) {
                        now = Some(BTreeSet::from([reported]));
                    }
                    break;
                }
            }
        }
        now
    }

    fn shards(&mut self) {
        let mut found = Vec::new();
        for (&(generation, shard), claims) in &self.claims {
            let (epoch, number) = shard;
            let mut now = self.begun(generation, shard);
            let mut before: Option<&Claim<'_>> = None;
            for claim in claims.values() {
                let Claim { who, from, .. } = claim;
                if let Some(before) = before {
                    let ended = self.ends.get(&before.token);
                    if ended.is_none_or(|end| end.called_at > claim.answered_at) {
                        let other = before.who;
                        found.push(format!(
                            "shard {epoch}/{number} was given to {who} in lineage {generation} while {other} had it"
                        ));
                    }
                }
                if !now.contains(from) {
                    found.push(format!(
                        "shard {epoch}/{number} was given to {who} from sample {from} in lineage {generation}, which \
                         has {now:?} of it"
                    ));
                }
                now = after(claim, self.ends.get(&claim.token));
                before = Some(claim);
            }
        }
        self.found.append(&mut found);
    }

    /// Checks that the next generation begins from the last checkpoint reported as complete, and that all of its ranks
    /// have reported.
    fn checkpoints(&mut self) {
        let mut found = Vec::new();
        for (number, generation) in &self.generations {
            for (at, step, checkpoint) in &self.complete {
                if *at < generation.asked_at && generation.step < *step {
                    let began = generation.step;
                    found.push(format!(
                        "lineage {number} began at step {began}, though checkpoint {checkpoint} of step {step} was complete"
                    ));
                }
            }
            let Some(base) = &generation.base else { continue };
            let reported = self.reporters.get(&base.number);
            for rank in &base.ranks {
                if reported.is_none_or(|reported| !reported.contains(rank.as_str())) {
                    let base = base.number;
                    found.push(format!(
                        "lineage {number} began from checkpoint {base}, which {rank} never reported"
                    ));
                }
            }
        }
        self.found.append(&mut found);
    }

    /// Checks that epochs reported as finished are finished.
    fn epochs(&mut self) {
        let mut found = Vec::new();
        for &(at, generation, epoch, who) in &self.over {
            for number in 0..SHARDS {
                let whole = shard_len(number);
                let shard = (epoch, i64::try_from(number).unwrap_or(-1));
                let claims = self.claims.get(&(generation, shard)).into_iter().flatten();
                let ends = claims.filter_map(|claim| self.ends.get(claim.0));
                let mut whole_by_then = ends.filter(|end| end.called_at < at && end.read == whole);
                if whole_by_then.next().is_none() && !self.begun(generation, shard).contains(&whole)
                {
                    found.push(format!(
                        "the leader told {who} that epoch {epoch} is finished in lineage {generation}, but shard {number} \
                         is not"
                    ));
                }
            }
        }
        self.found.append(&mut found);
    }
}

/// How much of a shard can be in after a claim.
fn after(claim: &Claim<'_>, end: Option<&End>) -> BTreeSet<i64> {
    match end {
        Some(end) if end.answered => BTreeSet::from([end.read]),
        Some(end) => BTreeSet::from([claim.from, end.read]),
        None => BTreeSet::from([claim.from]),
    }
}

#[cfg(test)]
mod tests;
