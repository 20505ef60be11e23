//! One generation of a barrier.

use rollout_proto::v1;
use serde::Serialize;

use crate::output::{Align, Table, duration, u64_string};

/// Why a generation failed.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Failure {
    /// `lost`, `left`, `timed_out` or `aborted`.
    why: String,
    participant: String,
    host: String,
    #[serde(serialize_with = "u64_string")]
    heard_wall_ms: u64,
    reason: String,
    message: String,
}

/// What every verb shows of a generation.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::rolloutctl) struct Generation {
    pub(in crate::rolloutctl) barrier: String,
    #[serde(serialize_with = "u64_string")]
    pub(in crate::rolloutctl) generation: u64,
    /// `waiting`, `open` or `failed`.
    pub(in crate::rolloutctl) state: String,
    pub(in crate::rolloutctl) arrived: u32,
    pub(in crate::rolloutctl) expected: u32,
    /// The participants that have arrived, in order of arrival; none in a list.
    pub(in crate::rolloutctl) members: Vec<String>,
    pub(in crate::rolloutctl) missing: Vec<String>,
    pub(in crate::rolloutctl) without: Vec<String>,
    /// `fail` or `shrink`.
    pub(in crate::rolloutctl) policy: &'static str,
    /// While it waits.
    pub(in crate::rolloutctl) timeout_seconds: Option<f64>,
    pub(in crate::rolloutctl) failure: Option<Failure>,
}

impl From<v1::BarrierInfo> for Generation {
    fn from(wire: v1::BarrierInfo) -> Self {
        let policy = match wire.policy() {
            v1::BarrierPolicy::Fail => "fail",
            v1::BarrierPolicy::Shrink => "shrink",
        };
        let in_ms = wire.timeout_in_ms;
        Self {
            barrier: wire.barrier.unwrap_or_default().barrier,
            generation: wire.generation,
            state: wire.state,
            arrived: wire.arrived,
            expected: wire.expected,
            members: wire.members,
            missing: wire.missing,
            without: wire.without,
            policy,
            timeout_seconds: (in_ms > 0).then_some(in_ms as f64 / 1000.0),
            failure: wire.failed.map(|f| Failure {
                why: f.why,
                participant: f.participant,
                host: f.host,
                heard_wall_ms: f.heard_wall_ms,
                reason: f.reason,
                message: f.message,
            }),
        }
    }
}

/// A table of several generations.
pub(in crate::rolloutctl) fn table(all: &[Generation]) -> Table {
    let titles = ["BARRIER", "GENERATION", "STATE", "ARRIVED", "OF", "POLICY", "TIMES OUT", "WHY"];
    let mut table = Table::new(&titles);
    for column in [1, 3, 4] {
        table = table.align(column, Align::Right);
    }
    for one in all {
        table.row([
            one.barrier.clone(),
            one.generation.to_string(),
            one.state.clone(),
            one.arrived.to_string(),
            one.expected.to_string(),
            one.policy.into(),
            one.timeout_seconds.map_or_else(|| "-".into(), duration),
            one.failure.as_ref().map(|f| f.message.clone()).unwrap_or_default(),
        ]);
    }
    table
}

#[cfg(test)]
pub(in crate::rolloutctl) fn sample() -> v1::BarrierInfo {
    let job = v1::JobName { namespace: "default".into(), job: "llama-sft".into() };
    v1::BarrierInfo {
        barrier: Some(v1::BarrierName { job: Some(job), barrier: "epoch".into() }),
        generation: 7,
        state: "waiting".into(),
        arrived: 2,
        expected: 3,
        members: vec!["w1".into(), "w0".into()],
        missing: vec!["w2".into()],
        timeout_in_ms: 61_000,
        ..v1::BarrierInfo::default()
    }
}
