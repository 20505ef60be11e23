//! Owns: what the cluster knows about the likely speed of a run: how fast the last similar run was, and the room of
//! the engines that have its model.
//!
//! Invariant: the query takes a few seconds at most and changes nothing; without an answer there is only no estimate.
//! Runs are similar if their engine specs are identical.
//! Absent: what the output of an earlier run says (`speed`).

use std::time::Duration;

use rollout_proto::{CallOptions, Client, services, v1};

use super::speed::Speed;

/// How long to wait for the cluster.
const PATIENCE: Duration = Duration::from_secs(5);
/// Finished runs of the model that are compared, the latest first.
const RUNS_MAX: usize = 16;
/// The name, among slots' versions, of the engine's limit of tokens for one row.
const ROOM: &str = "max_model_len";

/// The cluster's answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterSpeed {
    /// The last finished run with this engine spec, and its speed.
    pub last: Option<(String, Speed)>,
    /// The smallest limit of tokens, prompt and completion together, among engines that have the model.
    pub room: Option<u64>,
}

/// Asks the cluster.
pub async fn fetch(client: &Client, namespace: &str, engine: &v1::EngineSpec) -> ClusterSpeed {
    let figures = async {
        ClusterSpeed {
            room: room(client, namespace, engine).await,
            last: last(client, namespace, engine).await,
        }
    };
    tokio::time::timeout(PATIENCE, figures).await.unwrap_or_default()
}

async fn last(
    client: &Client,
    namespace: &str,
    engine: &v1::EngineSpec,
) -> Option<(String, Speed)> {
    let options = || CallOptions::read().timeout(PATIENCE);
    let request = v1::ListRunsRequest { namespace: namespace.to_owned() };
    let listed = client.with_leader_opts("list runs", options(), |channel| {
        let request = request.clone();
        async move { services::runs(channel).list_runs(request).await }
    });
    for (name, number, speed) in latest(listed.await.ok()?.runs, &engine.model) {
        let request = v1::DescribeRunRequest {
            namespace: namespace.to_owned(),
            name: name.clone(),
            run: number,
        };
        let described = client.with_leader_opts("describe run", options(), |channel| {
            let request = request.clone();
            async move { services::runs(channel).describe_run(request).await }
        });
        let spec = described.await.ok()?.spec.unwrap_or_default();
        if spec.engine.as_ref() == Some(engine) {
            return Some((name, speed));
        }
    }
    None
}

/// Finished runs of a model with a measurable duration, the latest first.
fn latest(mut runs: Vec<v1::RunSummary>, model: &str) -> Vec<(String, u32, Speed)> {
    runs.retain(|run| run.model == model && run.state() == v1::RunState::Finished);
    runs.sort_by_key(|run| std::cmp::Reverse(run.finished_wall_ms));
    let timed = runs.into_iter().filter_map(|run| {
        let counts = run.counts?;
        let speed = Speed::of_run(
            counts.done.saturating_sub(counts.carried),
            (counts.tokens_in, counts.tokens_out),
            run.finished_wall_ms.saturating_sub(run.created_wall_ms) / 1000,
        );
        Some((run.name, run.run, speed?))
    });
    timed.take(RUNS_MAX).collect()
}

async fn room(client: &Client, namespace: &str, engine: &v1::EngineSpec) -> Option<u64> {
    let request = v1::ListWorkersRequest { namespace: namespace.to_owned() };
    let options = CallOptions::read().timeout(PATIENCE);
    let listed = client.with_leader_opts("list workers", options, |channel| {
        let request = request.clone();
        async move { services::cluster(channel).list_workers(request).await }
    });
    let slots = listed.await.ok()?.workers.into_iter().flat_map(|worker| worker.slots);
    least_room(slots, &engine.model)
}

fn least_room(slots: impl Iterator<Item = v1::WorkerSlot>, model: &str) -> Option<u64> {
    let named = |offer: &String| {
        offer == model || offer.rsplit_once('@').is_some_and(|(name, _)| name == model)
    };
    let fit = slots.filter(|slot| slot.models.iter().any(named));
    fit.filter_map(|slot| slot.versions.get(ROOM)?.parse().ok()).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, model: &str, state: v1::RunState, finished_wall_ms: u64) -> v1::RunSummary {
        v1::RunSummary {
            name: name.into(),
            model: model.into(),
            state: state.into(),
            created_wall_ms: 1000,
            finished_wall_ms,
            counts: Some(v1::RunCounts {
                done: 120,
                carried: 20,
                tokens_in: 1000,
                tokens_out: 9000,
                ..v1::RunCounts::default()
            }),
            ..v1::RunSummary::default()
        }
    }

    #[test]
    fn the_latest_finished_run_of_the_model_says_how_fast_it_was() {
        use v1::RunState::{Cancelled, Finished};
        let runs = vec![
            run("early", "m", Finished, 51_000),
            run("late", "m", Finished, 101_000),
            run("other", "n", Finished, 201_000),
            run("cancelled", "m", Cancelled, 301_000),
            run("at-once", "m", Finished, 1_400),
        ];
        let found = latest(runs, "m");
        let names: Vec<_> = found.iter().map(|(name, ..)| name.as_str()).collect();
        assert_eq!(names, ["late", "early"]);
        // 100 of its own rows in 100 s; rows with a reused result took no time.
        assert_eq!(found[0].2.estimate(200, 2000), Duration::from_secs(200));
        assert!(latest(Vec::new(), "m").is_empty());
    }

    #[test]
    fn the_smallest_engine_that_has_the_model_says_the_room() {
        let slot = |models: &[&str], room: &str| v1::WorkerSlot {
            models: models.iter().map(|model| (*model).to_owned()).collect(),
            versions: [(ROOM.to_owned(), room.to_owned())].into(),
            ..v1::WorkerSlot::default()
        };
        let slots = [slot(&["m@main"], "4096"), slot(&["m@"], "2048"), slot(&["n"], "64")];
        assert_eq!(least_room(slots.into_iter(), "m"), Some(2048));
        assert_eq!(least_room([slot(&["m"], "many")].into_iter(), "m"), None);
    }
}
