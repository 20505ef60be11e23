//! A request of every method of the contract, in an order in which each can be granted.

use crate::fixture::{self, DIGEST, Fixture, job, participant, segment, spec, store_name, trainer};
use bytes::Bytes;
use prost::Message;
use rollout_proto::v1;

/// What a method does when its sender is believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// It is granted, and the log grows.
    Change,
    /// It is answered, and the log does not grow.
    Read,
    /// It is refused for a reason of its own, which tells that it was heard.
    Refuse,
    /// It is heard whatever its sender claims: it is how a sender learns the epoch.
    TellEpoch,
    /// What happened is the same whoever leads: it asks for the cluster alone.
    TellHistory,
    /// It is spoken between members, on a port of its own, in terms of consensus.
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

/// All of them; what comes later counts on what came before.
pub(crate) fn cases(f: &Fixture, epoch: u64) -> Vec<Case> {
    let mut cases = runs(f);
    cases.extend(items(f));
    cases.extend(store(f));
    cases.extend(meeting(f));
    cases.extend(barrier(f));
    cases.extend(datasets(f));
    cases.extend(shards(f));
    cases.extend(checkpoints(f));
    cases.extend(worker(f, epoch));
    cases.extend(cluster(f));
    cases.extend(members());
    cases.extend(enrolment(f));
    cases.extend(peers());
    cases
}

fn runs(f: &Fixture) -> Vec<Case> {
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

fn items(f: &Fixture) -> Vec<Case> {
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

fn store(f: &Fixture) -> Vec<Case> {
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

fn meeting(f: &Fixture) -> Vec<Case> {
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

/// And the end of the participant that they need.
fn barrier(f: &Fixture) -> Vec<Case> {
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

fn datasets(f: &Fixture) -> Vec<Case> {
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

fn shards(f: &Fixture) -> Vec<Case> {
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
            Change,
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

fn checkpoints(f: &Fixture) -> Vec<Case> {
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
        // It is the third.
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
        // Not before the report, which has to say how far it is in each shard that it holds.
        case("Shards/ClaimShard", Change, &claim),
        case("Checkpoints/Recover", Change, &recover),
    ]
}

fn worker(f: &Fixture, epoch: u64) -> Vec<Case> {
    use Does::{Change, Read};
    // It has credit for rows, and there are rows: who is believed is given some.
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

fn cluster(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read};
    let events = v1::WatchEventsRequest {
        start: v1::EventStart::Oldest.into(),
        follow: false,
        ..Default::default()
    };
    let again = v1::BootstrapRequest {
        members: vec![v1::MemberInfo { name: "other".into(), ..Default::default() }],
        store_url: String::new(),
    };
    let quota = v1::SetQuotaRequest {
        request: f.id(),
        namespace: default(),
        runs_max: Some(1000),
        ..Default::default()
    };
    let described = v1::DescribeNamespaceRequest { namespace: default() };
    vec![
        case("Cluster/Status", Does::TellEpoch, &v1::StatusRequest::default()),
        case("Cluster/ListWorkers", Read, &v1::ListWorkersRequest { namespace: default() }),
        case("Cluster/RequestDigest", Change, &v1::RequestDigestRequest {}),
        case("Cluster/Digests", Does::Refuse, &v1::DigestsRequest { index: 1, wait_ms: 0 }),
        case("Cluster/Bootstrap", Does::Refuse, &again),
        case("Cluster/Counters", Read, &v1::CountersRequest {}),
        case("Events/WatchEvents", Does::TellHistory, &events),
        // There is nothing to raise: a new cluster has the newest version.
        case("Cluster/UpgradeCluster", Read, &v1::UpgradeClusterRequest::default()),
        case("Maintenance/SaveSnapshot", Read, &v1::SaveSnapshotRequest {}),
        case("Maintenance/Diagnose", Read, &v1::DiagnoseRequest {}),
        case("Namespaces/SetQuota", Change, &quota),
        case("Namespaces/DescribeNamespace", Read, &described),
        case("Namespaces/ListNamespaces", Read, &v1::ListNamespacesRequest {}),
    ]
}

fn members() -> Vec<Case> {
    use Does::{Change, Read, Refuse};
    // Nobody listens on that port.
    let nobody = || "127.0.0.1:9".to_owned();
    let add = v1::AddMemberRequest {
        name: "c2".into(),
        peer_addr: nobody(),
        client_addr: nobody(),
        ..Default::default()
    };
    let update =
        v1::UpdateMemberRequest { name: "c1".into(), zone: Some("z".into()), ..Default::default() };
    vec![
        case("Members/ListMembers", Read, &v1::ListMembersRequest {}),
        case("Members/AddMember", Refuse, &add),
        case("Members/PromoteMember", Refuse, &v1::PromoteMemberRequest { name: "nobody".into() }),
        case("Members/RemoveMember", Refuse, &v1::RemoveMemberRequest { name: "c1".into() }),
        case("Members/UpdateMember", Change, &update),
        case(
            "Members/TransferLeader",
            Read,
            &v1::TransferLeaderRequest { to: "c1".into(), from: String::new() },
        ),
    ]
}

/// A member without the issuing key refuses what needs it.
fn enrolment(f: &Fixture) -> Vec<Case> {
    use Does::{Change, Read, Refuse};
    let create = v1::CreateTokenRequest {
        request: f.id(),
        name: "rack".into(),
        role: "worker".into(),
        ttl_ms: 1000,
        uses_max: 1,
        secret_hash: DIGEST.to_vec().into(),
        ..Default::default()
    };
    let revoke = v1::RevokeTokenRequest { request: f.id(), name: "nobody's".into() };
    let revoke_certificates = v1::RevokeRequest {
        request: f.id(),
        identity: "worker/stolen".into(),
        ..Default::default()
    };
    let withdraw = v1::WithdrawRequest { request: f.id(), identity: "worker/nobody".into() };
    let enrol = v1::EnrolRequest { token: "rack".into(), name: "w7".into(), ..Default::default() };
    vec![
        case("Tokens/CreateToken", Refuse, &create),
        case("Tokens/ListTokens", Read, &v1::ListTokensRequest {}),
        case("Tokens/RevokeToken", Refuse, &revoke),
        case("Enrolment/Enrol", Refuse, &enrol),
        case("Enrolment/Renew", Refuse, &v1::RenewRequest::default()),
        case("Certificates/Revoke", Change, &revoke_certificates),
        case("Certificates/Withdraw", Refuse, &withdraw),
        case("Certificates/ListRevocations", Read, &v1::ListRevocationsRequest {}),
    ]
}

fn peers() -> Vec<Case> {
    let message = v1::PeerMessage { from: 2, to: 1, ..Default::default() };
    let adopt = v1::AdoptRequest { cluster_id: "0".repeat(32), member_id: 1, name: "c1".into() };
    let served = Does::ServePeers;
    vec![
        case("Peer/Append", served, &message),
        case("Peer/Vote", served, &message),
        case("Peer/PreVote", served, &message),
        case("Peer/TransferLeader", served, &message),
        case("Peer/InstallSnapshot", served, &v1::SnapshotChunk { to: 1, ..Default::default() }),
        case("Peer/Hello", served, &v1::HelloRequest::default()),
        case("Peer/Adopt", served, &adopt),
    ]
}
