//! A request for every method of the contract, in an order in which each can be granted.

mod batch;
mod cluster;
mod jobs;

use crate::fixture::Fixture;
use bytes::Bytes;
use prost::Message;

/// The effect of a method when its sender is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// It is granted, and the log grows.
    Change,
    /// It is answered, and the log does not grow.
    Read,
    /// It is refused for a reason of its own, which shows that it passed the gate.
    Refuse,
    /// It is answered whatever its sender claims, because senders learn the epoch from it.
    TellEpoch,
    /// Events are the same under every leader: only the cluster is checked.
    TellHistory,
    /// Members call it on a port of their own, in terms of consensus.
    ServePeers,
}

pub(crate) struct Case {
    /// `Runs/CreateRun`.
    pub(crate) method: &'static str,
    pub(crate) does: Does,
    pub(crate) body: Bytes,
}

fn case(method: &'static str, does: Does, message: &impl Message) -> Case {
    Case { method, does, body: message.encode_to_vec().into() }
}

fn default() -> String {
    "default".into()
}

/// All cases. Later ones rely on earlier ones.
pub(crate) fn cases(f: &Fixture, epoch: u64) -> Vec<Case> {
    let mut cases = batch::runs(f);
    cases.extend(batch::items(f));
    cases.extend(jobs::store(f));
    cases.extend(jobs::meeting(f));
    cases.extend(jobs::barrier(f));
    cases.extend(jobs::datasets(f));
    cases.extend(jobs::whole());
    cases.extend(jobs::shards(f));
    cases.extend(jobs::checkpoints(f));
    cases.extend(batch::worker(f, epoch));
    cases.extend(cluster::cluster(f));
    cases.extend(cluster::members());
    cases.extend(cluster::enrollment(f));
    cases.extend(cluster::peers());
    cases
}
