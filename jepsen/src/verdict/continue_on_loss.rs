//! Checks the answers of a job that continues after it loses a trainer: every sample is in at least once, a shard has
//! one holder at a time, and a trainer is no longer heard once its shard was given to another.
//!
//! *Invariant:* a claim ends by its holder's word, or with its holder. Nothing that the last holder reported is lost,
//! and nothing counts as read that it did not report. The job has one lineage.

use super::silences::Signs;
use super::values::{int, list, text};
use crate::operations::{Operation, Outcome};
use crate::value::Value;
use crate::workload::shards::{CONTINUE_ON_LOSS_PREFIX, SHARDS, shard_len};
use std::collections::{BTreeMap, BTreeSet};

/// A trainer that is heard more often than this is not lost; the workload allows a silence of 1.5 s.
const PATIENCE_NS: u64 = 1_400_000_000;

/// The findings, and the coverage with its minimums.
#[derive(Default)]
pub(super) struct ContinueOnLoss {
    pub(super) violations: Vec<String>,
    pub(super) counts: Vec<(&'static str, usize, usize)>,
}

/// A shard that was given.
struct Claim<'a> {
    who: &'a str,
    from: i64,
    answered_at: u64,
}

/// The holder's last report.
struct End {
    called_at: u64,
    read: i64,
    answered: bool,
}

#[derive(Default)]
struct ShardHistory<'a> {
    /// By shard and token.
    claims: BTreeMap<&'a str, BTreeMap<i64, Claim<'a>>>,
    /// By token.
    ends: BTreeMap<i64, End>,
    /// Progress reported to any checkpoint: the shard, the trainer, and how much of the shard was read.
    progress: BTreeMap<(String, &'a str), BTreeSet<i64>>,
    signs: Signs<&'a str>,
    /// When a trainer asked to join under a name.
    joins: BTreeMap<&'a str, Vec<u64>>,
    /// Epochs reported as finished: the time, and the trainer.
    over: Vec<(u64, i64, &'a str)>,
    found: Vec<String>,
    given_on: usize,
}

fn whole(shard: &str) -> i64 {
    let number = shard.rsplit('/').next().and_then(|number| number.parse().ok());
    shard_len(number.unwrap_or(0))
}

/// Judges what was recorded of the job.
pub(super) fn judged(operations: &[Operation]) -> ContinueOnLoss {
    let mut history = ShardHistory::default();
    for operation in operations {
        history.read(operation);
    }
    history.shards();
    history.epochs();
    let epochs: BTreeSet<i64> = history.over.iter().map(|over| over.1).collect();
    let claims = history.claims.values().map(BTreeMap::len).sum();
    ContinueOnLoss {
        counts: vec![
            ("claims of the job that goes on", claims, 30),
            ("epochs that it finished", epochs.len(), 1),
            ("shards that it gave on", history.given_on, 1),
        ],
        violations: history.found,
    }
}

impl<'a> ShardHistory<'a> {
    fn read(&mut self, operation: &'a Operation) {
        let key = operation.key.as_deref().unwrap_or_default();
        let (key, input) =
            (key.strip_prefix(CONTINUE_ON_LOSS_PREFIX).unwrap_or(key), list(&operation.input));
        let (who, called_at) = (text(input.first()), operation.called_at);
        let answer = match &operation.outcome {
            Outcome::Answered { value, at, .. } => Some((value, *at)),
            Outcome::Unknown => None,
        };
        match (&*operation.f, answer) {
            ("claim", Some((value, answered_at))) => {
                let (token, from) = (int(list(value).first()), int(list(value).get(1)));
                let claims = self.claims.entry(key).or_default();
                if let Some(other) = claims.insert(token, Claim { who, from, answered_at }) {
                    let other = other.who;
                    self.found.push(format!("{who} and {other} have one claim of shard {key}"));
                }
            }
            ("finish" | "release", _) => {
                let read = input.get(4).map_or(whole(key), |read| int(Some(read)));
                let end = End { called_at, read, answered: answer.is_some() };
                self.ends.insert(int(input.get(2)), end);
            }
            ("report", _) => {
                for progress in input.get(3).map_or(&[][..], list) {
                    let progress = list(progress);
                    let shard = format!("{}/{}", int(progress.first()), int(progress.get(1)));
                    self.progress.entry((shard, who)).or_default().insert(int(progress.get(2)));
                }
            }
            ("over", Some((_, at))) => self.over.push((at, key.parse().unwrap_or(-1), who)),
            ("join", answer) => {
                self.joins.entry(who).or_default().push(called_at);
                answer.into_iter().for_each(|(_, at)| self.signs.add(who, called_at, at));
            }
            ("alive", Some((Value::Bool(true), at))) => self.signs.add(who, called_at, at),
            _ => {}
        }
    }

    fn shards(&mut self) {
        let mut found = Vec::new();
        for (shard, claims) in &self.claims {
            let mut now = BTreeSet::from([0]);
            let mut before: Option<(i64, &Claim<'_>)> = None;
            for (token, claim) in claims {
                let Claim { who, from, .. } = claim;
                if let Some((earlier, holder)) = before {
                    self.given_on += usize::from(self.after_a_loss(earlier, claim));
                    found.extend(self.taken(shard, (earlier, holder), claim));
                }
                if !now.contains(from) {
                    found.push(format!(
                        "shard {shard} was given to {who} from sample {from}, and {now:?} of it is in"
                    ));
                }
                now = self.certain_reads(shard, *token, claim);
                before = Some((*token, claim));
            }
        }
        self.found.append(&mut found);
    }

    /// Whether the shard was given on without a report of its holder.
    fn after_a_loss(&self, earlier: i64, claim: &Claim<'_>) -> bool {
        let end = self.ends.get(&earlier);
        end.is_none_or(|end| !end.answered || end.called_at > claim.answered_at)
    }

    /// How much of a shard is certainly in after a claim.
    fn certain_reads(&self, shard: &str, token: i64, claim: &Claim<'_>) -> BTreeSet<i64> {
        let end = self.ends.get(&token);
        if let Some(end) = end.filter(|end| end.answered) {
            return BTreeSet::from([end.read]);
        }
        let mut readings = BTreeSet::from([claim.from]);
        readings.extend(end.map(|end| end.read));
        let reported = self.progress.get(&(shard.to_owned(), claim.who));
        readings.extend(reported.into_iter().flatten().filter(|read| **read >= claim.from));
        readings
    }

    /// Checks for a shard that was given to another trainer while its holder had it, or whose first holder was
    /// accepted after that.
    fn taken(
        &self,
        shard: &str,
        (earlier, holder): (i64, &Claim<'_>),
        claim: &Claim<'_>,
    ) -> Option<String> {
        let (who, had) = (claim.who, holder.who);
        let end = self.ends.get(&earlier);
        if end.is_some_and(|end| end.answered && end.called_at > claim.answered_at) {
            return Some(format!("{had} was heard of shard {shard} after it was given to {who}"));
        }
        if end.is_some_and(|end| end.called_at < claim.answered_at) {
            return None;
        }
        let (from, until) = (holder.answered_at, claim.answered_at);
        let mut again = self.joins.get(had).into_iter().flatten();
        let followed = again.any(|joined_at| (from..until).contains(joined_at));
        let is_alive = self.signs.throughout(&had, from, until, PATIENCE_NS);
        (is_alive && !followed).then(|| {
            format!(
                "shard {shard} was given to {who} while {had} had it, who was heard all the time"
            )
        })
    }

    /// Checks that epochs reported as finished were read to their end.
    fn epochs(&mut self) {
        let mut found = Vec::new();
        for &(at, epoch, who) in &self.over {
            for number in 0..SHARDS {
                let shard = format!("{epoch}/{number}");
                let claims = self.claims.get(shard.as_str()).into_iter().flatten();
                let mut ends = claims.filter_map(|(token, _)| self.ends.get(token));
                if !ends.any(|end| end.called_at < at && end.read == whole(&shard)) {
                    found.push(format!(
                        "the leader told {who} that epoch {epoch} is finished, but shard {number} is not"
                    ));
                }
            }
        }
        self.found.append(&mut found);
    }
}

#[cfg(test)]
mod tests;
