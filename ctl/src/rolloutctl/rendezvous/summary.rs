//! A rendezvous in a few words.

use rollout_proto::v1;
use serde::Serialize;

use crate::output::{Align, Table, duration, u64_string};

/// What every verb shows of a rendezvous.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Rendezvous {
    pub(in crate::rolloutctl) namespace: String,
    pub(in crate::rolloutctl) job: String,
    /// `idle`, `forming`, `complete` or `closed`.
    pub(in crate::rolloutctl) state: String,
    pub(in crate::rolloutctl) closed: bool,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) round: u64,
    pub(in crate::rolloutctl) min: u32,
    pub(in crate::rolloutctl) max: u32,
    /// Members of the round that are still present, or participants that have joined the forming one.
    pub(in crate::rolloutctl) joined: u32,
    pub(in crate::rolloutctl) waiting: u32,
    pub(in crate::rolloutctl) redundant: u32,
    pub(in crate::rolloutctl) participants: u32,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) version: u64,
    /// While the last call runs.
    pub(in crate::rolloutctl) last_call_seconds: Option<f64>,
}

impl From<v1::RendezvousInfo> for Rendezvous {
    fn from(wire: v1::RendezvousInfo) -> Self {
        let in_ms = wire.last_call_in_ms;
        let v1::JobName { namespace, job } = wire.job.unwrap_or_default();
        Self {
            namespace,
            job,
            state: wire.state,
            closed: wire.closed,
            round: wire.round,
            min: wire.min,
            max: wire.max,
            joined: wire.joined,
            waiting: wire.num_nodes_waiting,
            redundant: wire.redundant,
            participants: wire.participants,
            version: wire.version,
            last_call_seconds: (in_ms > 0).then_some(in_ms as f64 / 1000.0),
        }
    }
}

/// A table of several; with their namespaces if there are several.
pub(in crate::rolloutctl) fn table(all: &[Rendezvous], all_namespaces: bool) -> Table {
    let namespace: &[&str] = if all_namespaces { &["NAMESPACE"] } else { &[] };
    let titles =
        ["JOB", "STATE", "ROUND", "JOINED", "MIN", "MAX", "WAITING", "REDUNDANT", "LAST CALL"];
    let mut table = Table::new(namespace).and(&titles);
    for column in 2..8 {
        table = table.align(namespace.len() + column, Align::Right);
    }
    for one in all {
        let namespace = all_namespaces.then(|| one.namespace.clone());
        let cells = [
            one.job.clone(),
            one.state.clone(),
            one.round.to_string(),
            one.joined.to_string(),
            one.min.to_string(),
            one.max.to_string(),
            one.waiting.to_string(),
            one.redundant.to_string(),
            one.last_call_seconds.map_or_else(|| "-".into(), duration),
        ];
        table.row(namespace.into_iter().chain(cells));
    }
    table
}

#[cfg(test)]
pub(in crate::rolloutctl) fn sample() -> v1::RendezvousInfo {
    v1::RendezvousInfo {
        job: Some(v1::JobName { namespace: "default".into(), job: "llama-sft".into() }),
        state: "forming".into(),
        round: 3,
        min: 2,
        max: 4,
        joined: 2,
        participants: 3,
        version: 41,
        last_call_in_ms: 12_000,
        ..v1::RendezvousInfo::default()
    }
}
