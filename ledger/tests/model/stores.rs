//! Shared stores in the model: two maps each, and every operation on them spelled out.

use crate::jobs::{Job, ParticipantPhase};
use crate::naive::{Model, Outcome};
use rollout_ledger::id::SessionId;
use rollout_ledger::{JobName, JobRefusal, Rejection, Reply, StoreAnswer, StoreName, StoreOp};
use std::collections::BTreeMap;

#[derive(Default, Debug)]
pub(crate) struct Store {
    pub(crate) values: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) queues: BTreeMap<Vec<u8>, Vec<Vec<u8>>>,
}

impl Model {
    pub(crate) fn store(&mut self, name: StoreName, ops: Vec<StoreOp>) -> Outcome {
        if !self.namespaces.contains_key(&name.namespace) {
            return Err(Rejection::NamespaceUnknown(name.namespace));
        }
        let job = JobName { namespace: name.namespace.clone(), job: name.job.clone() };
        let latest = self.jobs.get(&job).map_or(0, Job::latest_complete);
        if self.version >= 3 && (1..latest).contains(&name.round) {
            self.note("store of an earlier round");
            return Err(Rejection::Invalid(format!(
                "the store of round {} of job {} is gone: round {latest} is complete; join it to use its store",
                name.round, name.job
            )));
        }
        self.check_member(&name)?;
        self.note("store used");
        let mut store = self.stores.remove(&name).unwrap_or_default();
        let answers = ops.into_iter().map(|op| self.on_store(&mut store, op)).collect();
        self.stores.insert(name, store);
        Ok(Reply::Store(answers))
    }

    /// The incarnation must belong to a member of the complete round.
    pub(crate) fn check_incarnation(
        &self,
        name: &StoreName,
        incarnation: SessionId,
    ) -> Result<(), Rejection> {
        if self.version < 3 {
            return Err(Rejection::VersionLow { needs: 3, version: self.version });
        }
        let found = self.jobs.iter().find_map(|(job, j)| {
            let who = j.who.iter().find(|who| who.incarnation == incarnation)?;
            Some((job, j.latest_complete(), who.phase))
        });
        let Some((job, latest, phase)) = found else {
            return Err(JobRefusal::ParticipantUnknown.into());
        };
        let of_job = job.namespace == name.namespace && job.job == name.job;
        let member = matches!(phase, ParticipantPhase::Member(_));
        match of_job && member && latest == name.round {
            true => Ok(()),
            false => Err(not_of_round(name)),
        }
    }

    /// The store of the latest complete round is for those with whose sessions its members joined.
    fn check_member(&mut self, name: &StoreName) -> Result<(), Rejection> {
        let of = JobName { namespace: name.namespace.clone(), job: name.job.clone() };
        let Some(job) = self.jobs.get(&of).filter(|job| !job.holders.is_empty()) else {
            return Ok(());
        };
        let of_latest = self.version >= 3 && name.round > 0 && name.round == job.latest_complete();
        let known = self.caller.as_ref().is_some_and(|caller| job.holders.contains(caller));
        if of_latest && !known {
            self.note("store of others' round");
            return Err(not_of_round(name));
        }
        Ok(())
    }

    pub(crate) fn drop_store(&mut self, name: &StoreName) -> Outcome {
        self.check_member(name)?;
        if self.stores.remove(name).is_some() {
            self.note("store dropped");
        }
        Ok(Reply::Ok)
    }

    fn on_store(&mut self, store: &mut Store, op: StoreOp) -> StoreAnswer {
        match op {
            StoreOp::Set { pairs } => {
                store.values.extend(pairs);
                StoreAnswer::Done
            }
            StoreOp::Add { key, delta } => {
                // Anything after the number is ignored.
                let text = store.values.get(&key).cloned().unwrap_or_else(|| b"0".to_vec());
                let text = String::from_utf8_lossy(&text).into_owned();
                let sign = usize::from(text.starts_with('-'));
                let end = text[sign..].find(|c: char| !c.is_ascii_digit());
                let Ok(old) = text[..end.map_or(text.len(), |end| sign + end)].parse::<i64>()
                else {
                    self.note("no number");
                    let why = Rejection::Invalid("the key's value is no number".into());
                    return StoreAnswer::Refused(why);
                };
                let Some(sum) = old.checked_add(delta) else {
                    return StoreAnswer::Refused(Rejection::Invalid(
                        "the sum is out of range".into(),
                    ));
                };
                store.values.insert(key, sum.to_string().into_bytes());
                StoreAnswer::Number(sum)
            }
            StoreOp::CompareSet { key, expected, desired } => {
                let current = store.values.get(&key).cloned();
                let sets = current.clone().unwrap_or_default() == expected;
                self.note(if sets { "compared and set" } else { "compared and not set" });
                if sets {
                    store.values.insert(key, desired.clone());
                    return StoreAnswer::Value(Some(desired));
                }
                StoreAnswer::Value(Some(current.unwrap_or(expected)))
            }
            StoreOp::Append { key, value } => {
                let whole = store.values.entry(key).or_default();
                whole.extend(value);
                StoreAnswer::Number(whole.len() as i64)
            }
            StoreOp::Delete { key } => {
                StoreAnswer::Number(i64::from(store.values.remove(&key).is_some()))
            }
            StoreOp::Push { queue, value } => {
                let all = store.queues.entry(queue).or_default();
                all.push(value);
                StoreAnswer::Number(all.len() as i64)
            }
            StoreOp::Pop { queue } => {
                let all = store.queues.entry(queue).or_default();
                let first = (!all.is_empty()).then(|| all.remove(0));
                if first.is_some() {
                    self.note("popped");
                }
                StoreAnswer::Value(first)
            }
        }
    }
}

fn not_of_round(name: &StoreName) -> Rejection {
    JobRefusal::NotOfRound { round: name.round, job: name.job.clone() }.into()
}
