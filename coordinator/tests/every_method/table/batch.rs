//! Runs, their rows, and the workers that execute them.

use super::{Case, Does, case, default};
use crate::fixture::{self, DIGEST, Fixture, segment, spec};
use rollout_proto::v1;

pub(super) fn runs(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    let id = || f.id();
    let name = || "open".to_owned();
    let digest = blake3::hash(&DIGEST);
    vec![
        case("Runs/OpenSession", Change, &v1::OpenSessionRequest { client_name: "x".into() }),
        case(
            "Runs/CreateRun",
            Change,
            &v1::CreateRunRequest {
                request: id(),
                namespace: default(),
                name: "made".into(),
                spec: spec(),
                folder: String::new(),
            },
        ),
        case(
            "Runs/AddSegments",
            Change,
            &v1::AddSegmentsRequest {
                request: id(),
                run: f.open_run,
                segments: vec![segment(&f.open_folder, 0, 10)],
                carried: Vec::new(),
            },
        ),
        case(
            "Runs/CloseInput",
            Change,
            &v1::CloseInputRequest {
                request: id(),
                run: f.open_run,
                rows: 10,
                digest: digest.as_bytes().to_vec().into(),
            },
        ),
        case(
            "Runs/ControlRun",
            Change,
            &v1::ControlRunRequest {
                request: id(),
                namespace: default(),
                name: name(),
                action: v1::RunAction::Pause.into(),
                reason: "forged".into(),
            },
        ),
        case(
            "Runs/SetDeadline",
            Change,
            &v1::SetDeadlineRequest {
                request: id(),
                namespace: default(),
                name: name(),
                deadline_ms: 3_600_000,
            },
        ),
        case(
            "Runs/SetWeight",
            Change,
            &v1::SetWeightRequest { request: id(), namespace: default(), name: name(), weight: 3 },
        ),
        case("Runs/ListRuns", Read, &v1::ListRunsRequest { namespace: default() }),
        case(
            "Runs/DescribeRun",
            Read,
            &v1::DescribeRunRequest { namespace: default(), name: name(), run: 0 },
        ),
        case(
            "Runs/WatchRun",
            Read,
            &v1::WatchRunRequest { namespace: default(), name: name(), interval_ms: 100 },
        ),
        case(
            "Runs/ReadResults",
            Read,
            &v1::ReadResultsRequest { run: f.rows_run, first_segment: 0, segments_max: 0 },
        ),
        case(
            "Runs/DeleteRun",
            Change,
            &v1::DeleteRunRequest { request: id(), namespace: default(), name: "ended".into() },
        ),
    ]
}

pub(super) fn items(f: &Fixture) -> Vec<Case> {
    let run = || "rows".to_owned();
    vec![
        case(
            "Items/ListItems",
            Does::Read,
            &v1::ListItemsRequest {
                namespace: default(),
                run: run(),
                state: v1::ItemState::Failed.into(),
                ..Default::default()
            },
        ),
        case(
            "Items/DescribeItem",
            Does::Read,
            &v1::DescribeItemRequest { namespace: default(), run: run(), row: 0 },
        ),
        case(
            "Items/RetryItems",
            Does::Change,
            &v1::RetryItemsRequest {
                request: f.id(),
                namespace: default(),
                run: run(),
                all_failed: true,
                rows: None,
            },
        ),
    ]
}

pub(super) fn worker(f: &Fixture, epoch: u64) -> Vec<Case> {
    use Does::{Change, Read};
    // It has credit for rows, and rows are pending: a believed sender gets some.
    let pull = v1::Exchange { seq: 3, credit_rows: 4, ..Default::default() };
    let work = v1::WorkerMessage {
        session: f.worker,
        coord_epoch: epoch,
        kind: Some(v1::worker_message::Kind::Exchange(pull)),
        instance: 5,
    };
    vec![
        case("Worker/Probe", Read, &v1::ProbeRequest {}),
        case("Worker/Register", Change, &fixture::registration("w2")),
        case("Worker/GetRun", Read, &v1::GetRunRequest { run: f.open_run }),
        case("Worker/Work", Change, &work),
        case(
            "Cluster/CordonWorker",
            Change,
            &v1::CordonWorkerRequest {
                namespace: default(),
                name: "w1".into(),
                cordoned: true,
                reason: "forged".into(),
                request: f.id(),
                ..Default::default()
            },
        ),
        case(
            "Cluster/DrainWorker",
            Change,
            &v1::DrainWorkerRequest {
                namespace: default(),
                name: "w1".into(),
                deadline_ms: 3_600_000,
                reason: "forged".into(),
                request: f.id(),
            },
        ),
        case(
            "Worker/Deregister",
            Change,
            &v1::DeregisterRequest { session: f.worker, nacks: Vec::new(), instance: 5 },
        ),
    ]
}
