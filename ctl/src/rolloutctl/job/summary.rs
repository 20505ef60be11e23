//! A training job as a whole, as it is printed.
//!
//! Invariant: its parts are shown as the verbs of the parts show them.

use rollout_proto::v1;
use serde::Serialize;

use crate::rolloutctl::rendezvous::summary::Rendezvous;
use crate::rolloutctl::shard::summary::Job as Training;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    pub(super) namespace: String,
    pub(super) job: String,
    /// None if no participant has used it.
    pub(super) rendezvous: Option<Rendezvous>,
    /// None if no trainer has joined it.
    pub(super) training: Option<Training>,
}

impl From<v1::WholeJob> for Job {
    fn from(wire: v1::WholeJob) -> Self {
        let v1::JobName { namespace, job } = wire.name.unwrap_or_default();
        let rendezvous = wire.rendezvous.map(Rendezvous::from);
        Self { namespace, job, rendezvous, training: wire.training.map(Training::from) }
    }
}

/// A job with both parts.
#[cfg(test)]
pub(super) fn sample() -> Job {
    let rendezvous = crate::rolloutctl::rendezvous::summary::sample().into();
    let training = crate::rolloutctl::shard::summary::sample();
    let (namespace, job) = ("default".into(), "llama-sft".into());
    Job { namespace, job, rendezvous: Some(rendezvous), training: Some(training) }
}

/// A job without trainers.
#[cfg(test)]
pub(super) fn sample_of_participants() -> Job {
    Job { job: "eval".into(), training: None, ..sample() }
}
