//! Jobs: their store, rendezvous, barriers, datasets, shards and checkpoints.

use super::{Case, Does, case, default};
use crate::fixture::{self, Fixture, job, participant, store_name, trainer};
use rollout_proto::v1;

pub(super) fn store(f: &Fixture) -> Vec<Case> {
    let store = store_name;
    let add = v1::store_op::Kind::Add(v1::StoreAdd { key: "n".into(), delta: 1 });
    vec![
        case(
            "Store/Apply",
            Does::Change,
            &v1::StoreApplyRequest {
                request: f.id(),
                store: store(),
                ops: vec![v1::StoreOp { kind: Some(add) }],
            },
        ),
        case(
            "Store/Read",
            Does::Read,
            &v1::StoreReadRequest { store: store(), keys: vec!["k".into()], ..Default::default() },
        ),
        case(
            "Store/Wait",
            Does::Read,
            &v1::StoreWaitRequest {
                store: store(),
                awaited: vec![v1::StoreAwaited { key: "k".into(), at_least: None }],
                wait_ms: 0,
                values: false,
            },
        ),
        case("Store/Drop", Does::Change, &v1::StoreDropRequest { request: f.id(), store: store() }),
    ]
}

pub(super) fn meeting(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    let meet = || job("meet");
    let join = v1::JoinRequest {
        request: f.id(),
        job: job("other"),
        participant: participant("b"),
        min: 2,
        max: 2,
        join_timeout_ms: 3_600_000,
        last_call_ms: 1,
    };
    vec![
        case("Rendezvous/Join", Change, &join),
        case(
            "Rendezvous/Participate",
            Change,
            &v1::ParticipateRequest {
                request: f.id(),
                job: job("other"),
                participant: participant("c"),
            },
        ),
        case(
            "Rendezvous/Wait",
            Read,
            &v1::RendezvousWaitRequest {
                job: meet(),
                ticket: f.ticket,
                wait_ms: 0,
                without_members: false,
            },
        ),
        case(
            "Rendezvous/KeepAlive",
            Read,
            &v1::KeepAliveRequest {
                participants: vec![v1::ParticipantRef { job: meet(), ticket: f.ticket }],
            },
        ),
        case(
            "Rendezvous/Describe",
            Read,
            &v1::RendezvousDescribeRequest { job: meet(), ..Default::default() },
        ),
        case(
            "Rendezvous/List",
            Read,
            &v1::RendezvousListRequest { namespace: default(), ..Default::default() },
        ),
        case(
            "Rendezvous/Close",
            Change,
            &v1::RendezvousCloseRequest { request: f.id(), job: job("other") },
        ),
    ]
}

/// The barrier's methods, and the departure of the participant that they need.
pub(super) fn barrier(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    let named = |barrier: &str| Some(v1::BarrierName { job: job("meet"), barrier: barrier.into() });
    let arrive = v1::ArriveRequest {
        request: f.id(),
        barrier: named("new"),
        generation: 1,
        ticket: f.ticket,
        set: Some(v1::BarrierSet { members: Vec::new(), count: 2 }),
        timeout_ms: 3_600_000,
        ..Default::default()
    };
    vec![
        case("Barrier/Arrive", Change, &arrive),
        case(
            "Barrier/Wait",
            Read,
            &v1::BarrierWaitRequest { barrier: named("waits"), generation: 1, wait_ms: 0 },
        ),
        case("Barrier/Describe", Read, &v1::BarrierDescribeRequest { barrier: named("waits") }),
        case(
            "Barrier/List",
            Read,
            &v1::BarrierListRequest { job: job("meet"), ..Default::default() },
        ),
        case(
            "Barrier/Abort",
            Change,
            &v1::BarrierAbortRequest {
                request: f.id(),
                barrier: named("waits"),
                generation: 1,
                reason: "forged".into(),
            },
        ),
        case(
            "Rendezvous/Leave",
            Change,
            &v1::LeaveRequest { request: f.id(), job: job("meet"), ticket: f.ticket },
        ),
    ]
}

pub(super) fn datasets(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    vec![
        case(
            "Datasets/CreateDataset",
            Change,
            &v1::CreateDatasetRequest {
                request: f.id(),
                namespace: default(),
                name: "made".into(),
                spec: fixture::dataset(),
            },
        ),
        case(
            "Datasets/DescribeDataset",
            Read,
            &v1::DescribeDatasetRequest { namespace: default(), name: "corpus".into() },
        ),
        case("Datasets/ListDatasets", Read, &v1::ListDatasetsRequest { namespace: default() }),
        case(
            "Datasets/DeleteDataset",
            Change,
            &v1::DeleteDatasetRequest {
                request: f.id(),
                namespace: default(),
                name: "spare".into(),
            },
        ),
    ]
}

pub(super) fn whole() -> Vec<Case> {
    vec![
        case(
            "Jobs/List",
            Does::Read,
            &v1::JobListRequest { namespace: default(), ..Default::default() },
        ),
        case("Jobs/Describe", Does::Read, &v1::JobDescribeRequest { job: job("train") }),
    ]
}

pub(super) fn shards(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    let by = || Some(f.trainer.clone());
    let corpus = || "corpus".to_owned();
    let kept = v1::TrainerKept { trainer: "t1".into(), ticket: f.trainer.ticket };
    let join = v1::JoinJobRequest {
        request: f.id(),
        job: job("joined"),
        trainer: trainer("t2"),
        ..Default::default()
    };
    let finish = v1::FinishShardRequest {
        request: f.id(),
        by: by(),
        dataset: corpus(),
        epoch: 0,
        shard: f.claims[0].shard,
        token: f.claims[0].token,
        step: 15,
    };
    let release = v1::ReleaseShardRequest {
        request: f.id(),
        by: by(),
        dataset: corpus(),
        epoch: 0,
        shard: f.claims[1].shard,
        token: f.claims[1].token,
        end_sample: f.claims[1].first_sample + 5,
        step: 15,
    };
    vec![
        case("Shards/JoinJob", Change, &join),
        case(
            "Shards/KeepTrainers",
            Read,
            &v1::KeepTrainersRequest { job: job("train"), trainers: vec![kept] },
        ),
        case("Shards/FinishShard", Change, &finish),
        case("Shards/ReleaseShard", Change, &release),
        case(
            "Shards/WaitShard",
            Read,
            &v1::WaitShardRequest { by: by(), dataset: corpus(), epoch: 0, wait_ms: 0 },
        ),
        case(
            "Shards/DescribeShards",
            Read,
            &v1::DescribeShardsRequest {
                job: job("train"),
                dataset: corpus(),
                ..Default::default()
            },
        ),
        case(
            "Shards/ListJobs",
            Read,
            &v1::ListJobsRequest { namespace: default(), job: String::new() },
        ),
        case(
            "Shards/LeaveJob",
            Change,
            &v1::LeaveJobRequest { request: f.id(), by: Some(f.leaves.clone()) },
        ),
        case(
            "Shards/DeleteJob",
            Change,
            &v1::DeleteJobRequest { request: f.id(), job: job("idle") },
        ),
    ]
}

pub(super) fn checkpoints(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    let train = || job("train");
    let recover = v1::RecoverRequest {
        request: f.id(),
        job: train(),
        round: 1,
        world: vec!["t1".into()],
        trainer: trainer("t1"),
        ..Default::default()
    };
    let claim = f.claim();
    let mut report = f.report(2);
    report.progress.clear();
    vec![
        case("Checkpoints/ReportCheckpoint", Change, &report),
        // This is the third checkpoint.
        case("Checkpoints/BeginCheckpoint", Change, &f.begin(30)),
        case(
            "Checkpoints/AbortCheckpoint",
            Change,
            &v1::AbortCheckpointRequest { request: f.id(), job: train(), number: 3 },
        ),
        case(
            "Checkpoints/WaitCheckpoint",
            Read,
            &v1::WaitCheckpointRequest { job: train(), number: 1, wait_ms: 0 },
        ),
        case("Checkpoints/LatestCheckpoint", Read, &v1::LatestCheckpointRequest { job: train() }),
        case("Checkpoints/ListCheckpoints", Read, &v1::ListCheckpointsRequest { job: train() }),
        case(
            "Checkpoints/DescribeCheckpoint",
            Read,
            &v1::DescribeCheckpointRequest { job: train(), number: 1 },
        ),
        case(
            "Checkpoints/PruneCheckpoints",
            Change,
            &v1::PruneCheckpointsRequest {
                request: f.id(),
                job: train(),
                keep_last: 4,
                ..Default::default()
            },
        ),
        case(
            "Checkpoints/LabelCheckpoint",
            Change,
            &v1::LabelCheckpointRequest {
                request: f.id(),
                job: train(),
                number: 1,
                label: "forged".into(),
            },
        ),
        // Not before the report, which must state the progress in each shard that the trainer holds.
        case("Shards/ClaimShard", Change, &claim),
        case("Checkpoints/Recover", Change, &recover),
    ]
}
