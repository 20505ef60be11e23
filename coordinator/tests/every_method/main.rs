//! Every method refuses a sender that claims an epoch that is over, one that no leader has opened, or another cluster.
//! It names the reason and changes nothing. With a true claim, the same request is accepted and answered with its
//! position in the log.
//!
//! *Invariant:* the methods are those of the contract. A new method fails these tests until the table has it.

mod fixture;
mod member;
mod streams;
mod table;

use fixture::Fixture;
use member::{CallOutcome, Claim, Member, Moment};
use prost::Message;
use prost_types::FileDescriptorSet;
use rollout_proto::{AnswerPosition, DRY_RUNS, ErrorCode, Outcome, RpcError, v1};
use std::collections::BTreeSet;
use std::time::Duration;
use table::{Case, Does, cases};
use v1::worker_message::Kind as Up;

const OTHERS: &str = "00000000000000000000000000000000";

fn contract() -> FileDescriptorSet {
    FileDescriptorSet::decode(v1::DESCRIPTORS).expect("descriptors")
}

/// A false claim, and how the member refuses it.
struct False<'a> {
    claim: Claim<'a>,
    code: ErrorCode,
    says: String,
}

fn false_claims(now: &Moment) -> [False<'_>; 3] {
    let claim = |cluster, epoch| Claim { cluster, epoch };
    let (cluster, epoch) = (now.cluster.as_str(), now.epoch);
    [
        False {
            claim: claim(cluster, epoch - 1),
            code: ErrorCode::StaleEpoch,
            says: format!("epoch {} is over, {epoch} is open", epoch - 1),
        },
        False {
            claim: claim(cluster, epoch + 1000),
            code: ErrorCode::EpochUnknown,
            says: format!("a quorum has just confirmed that {epoch} is the newest"),
        },
        False { claim: claim(OTHERS, epoch), code: ErrorCode::OtherCluster, says: cluster.into() },
    ]
}

fn check_refusal(place: &str, error: &RpcError, wanted: &False<'_>) {
    assert_eq!(error.code, wanted.code, "{place}: {error}");
    assert!(error.message.contains(&wanted.says), "{place}: {error}");
    assert_eq!(error.outcome, Outcome::NotApplied, "{place}: {error}");
}

fn path(case: &Case) -> String {
    format!("/rollout.v1.{}", case.method)
}

/// Whether the gate of the client port has refused a false claim.
fn of_the_gate(error: &RpcError) -> bool {
    use ErrorCode::{EpochUnknown, OtherCluster, StaleEpoch};
    [EpochUnknown, OtherCluster, StaleEpoch].contains(&error.code)
}

/// Methods that are not answered by a single operation of the ledger or a single read of it: streams, what is not part
/// of the ledger, and what needs no quorum.
const WITHOUT_POSITION: &[&str] = &[
    "Runs/WatchRun",
    "Runs/ReadResults",
    "Items/ListItems",
    "Rendezvous/KeepAlive",
    "Worker/Probe",
    "Worker/GetRun",
    "Worker/Work",
    "Cluster/Status",
    "Cluster/Counters",
    "Events/WatchEvents",
    "Maintenance/SaveSnapshot",
    "Maintenance/Diagnose",
    "Members/ListMembers",
    "Members/UpdateMember",
    "Members/TransferLeader",
];

/// An operation comes after everything that was in the log when the request was sent. A read is as of that index, or a
/// later one.
fn has_position(case: &Case, position: Option<AnswerPosition>, asked: &Moment) -> bool {
    let Some(position) = position else { return WITHOUT_POSITION.contains(&case.method) };
    let operation = position.position.is_some();
    let behind = match case.does {
        Does::Change => operation && position.index > asked.last_log,
        _ => !operation && position.index >= asked.last_log,
    };
    behind && position.coord_epoch == asked.epoch && !WITHOUT_POSITION.contains(&case.method)
}

#[test]
fn the_table_has_every_method_of_the_contract() {
    let mut methods = BTreeSet::new();
    for file in contract().file.iter().filter(|file| file.package() == "rollout.v1") {
        for service in &file.service {
            let of =
                |m: &prost_types::MethodDescriptorProto| format!("{}/{}", service.name(), m.name());
            methods.extend(service.method.iter().map(of));
        }
    }
    assert!(methods.len() > 60, "the descriptors were read");
    let listed = cases(&Fixture::of_nothing(), 1);
    let names: BTreeSet<String> = listed.iter().map(|case| case.method.to_owned()).collect();
    assert_eq!(names.len(), listed.len(), "one case a method");
    assert_eq!(names, methods);
}

/// Every method whose request names an epoch must check it.
#[test]
fn every_message_with_an_epoch_is_tested() {
    let mut carry = BTreeSet::new();
    let mut spoken = BTreeSet::new();
    for file in contract().file.iter().filter(|file| file.package() == "rollout.v1") {
        let inputs = file.service.iter().flat_map(|s| &s.method).map(|m| m.input_type());
        let inputs: BTreeSet<&str> = inputs.filter_map(|m| m.rsplit('.').next()).collect();
        for message in file.message_type.iter().filter(|m| inputs.contains(m.name())) {
            for field in &message.field {
                if field.name().contains("coord_epoch") {
                    carry.insert(format!("{}.{}", message.name(), field.name()));
                }
                if message.name() == "WorkerMessage" && field.oneof_index.is_some() {
                    spoken.insert(field.name().to_owned());
                }
            }
        }
    }
    let expected = ["RegisterRequest.coord_epoch_seen", "WorkerMessage.coord_epoch"];
    assert_eq!(carry, expected.map(String::from).into());
    assert_eq!(spoken, ["exchange", "heartbeat"].map(String::from).into());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_refuses_a_false_claim_and_executes_a_true_one() {
    let member = Member::leading().await;
    let fixture = Fixture::make(&member).await;
    let before = member.moment().await;
    let state = member.state().await;
    let cases = cases(&fixture, before.epoch);
    for wanted in &false_claims(&before) {
        for case in &cases {
            let answer = member.call(&path(case), case.body.clone(), wanted.claim).await;
            let place = format!("{} in {:?}", case.method, wanted.code);
            let other_cluster = wanted.code == ErrorCode::OtherCluster;
            match (case.does, answer) {
                (Does::TellEpoch, CallOutcome::Message(_)) => {}
                (Does::TellHistory, CallOutcome::Message(_)) if !other_cluster => {}
                (Does::TellEpoch, answer) => panic!("{place}: {answer:?}"),
                (_, CallOutcome::Refused(error, at)) => {
                    check_refusal(&place, &error, wanted);
                    assert_eq!(at, None, "{place}: nothing was looked at");
                }
                (_, answer) => panic!("{place}: {answer:?}"),
            }
            assert_eq!(member.moment().await, before, "{place} changed something");
        }
    }
    assert_eq!(member.state().await, state, "not a record of the state is another");

    let mut failures = Vec::new();
    // Changes have later effects, which are in the log too, so the reads come first.
    let (readers, others): (Vec<&Case>, Vec<&Case>) =
        cases.iter().partition(|case| case.does == Does::Read);
    for case in readers.into_iter().chain(others) {
        let now = member.moment().await;
        let claim = Claim { cluster: &now.cluster, epoch: now.epoch };
        let answer = member.call(&path(case), case.body.clone(), claim).await;
        let grew = match case.does {
            Does::Change => member.grows_beyond(&now).await,
            _ => member.moment().await.last_log > now.last_log,
        };
        let heard = match (case.does, &answer) {
            (Does::Change, CallOutcome::Message(_)) => grew,
            (Does::Read, CallOutcome::Message(_)) => !grew,
            (Does::TellEpoch | Does::TellHistory, CallOutcome::Message(_)) => true,
            (Does::Refuse | Does::ServePeers, CallOutcome::Refused(error, _)) => {
                !of_the_gate(error)
            }
            _ => false,
        };
        if let CallOutcome::Message(position) = &answer
            && !has_position(case, *position, &now)
        {
            failures.push(format!("{} stands at {position:?}, asked in {now:?}", case.method));
        }
        if !heard {
            failures
                .push(format!("{} ({:?}), log grew: {grew}: {answer:?}", case.method, case.does));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_ne!(member.state().await, state, "what is believed changes something");
}

/// The answer to a dry run of the case.
async fn dry_run(member: &Member, case: &Case) -> CallOutcome {
    let now = member.moment().await;
    let claim = Claim { cluster: &now.cluster, epoch: now.epoch };
    let request = v1::DryRunRequest { method: path(case), request: case.body.clone() };
    member.call("/rollout.v1.DryRuns/DryRun", request.encode_to_vec().into(), claim).await
}

fn has_dry_run(case: &Case) -> bool {
    DRY_RUNS.contains(&path(case).as_str())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_changes_nothing_and_only_listed_methods_have_one() {
    let member = Member::leading().await;
    let fixture = Fixture::make(&member).await;
    let before = member.moment().await;
    let state = member.state().await;
    for case in &cases(&fixture, before.epoch) {
        let answer = dry_run(&member, case).await;
        let unknown = matches!(&answer, CallOutcome::Refused(error, _)
            if error.code == ErrorCode::UnsupportedVersion);
        assert_eq!(unknown, !has_dry_run(case), "{}: {answer:?}", case.method);
        let defect = matches!(&answer, CallOutcome::Refused(error, _)
            if error.code == ErrorCode::Internal || error.outcome != Outcome::NotApplied);
        assert!(!defect && !matches!(answer, CallOutcome::Silence), "{}: {answer:?}", case.method);
        assert_eq!(member.moment().await, before, "{}: {answer:?}", case.method);
    }
    assert_eq!(member.state().await, state, "not a record of the state is another");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_is_granted_or_refused_as_the_request_is() {
    let member = Member::leading().await;
    let fixture = Fixture::make(&member).await;
    let epoch = member.moment().await.epoch;
    let (mut granted, mut refused) = (0, 0);
    for case in cases(&fixture, epoch).iter().filter(|case| case.does != Does::Read) {
        let dry = dry_run(&member, case).await;
        let now = member.moment().await;
        let claim = Claim { cluster: &now.cluster, epoch: now.epoch };
        let real = member.call(&path(case), case.body.clone(), claim).await;
        if !has_dry_run(case) {
            continue;
        }
        match (dry, real) {
            (CallOutcome::Message(_), CallOutcome::Message(_)) => granted += 1,
            (CallOutcome::Refused(dry, _), CallOutcome::Refused(real, _)) => {
                assert_eq!((dry.code, dry.message), (real.code, real.message), "{}", case.method);
                refused += 1;
            }
            (dry, real) => panic!("{}: {dry:?}, then {real:?}", case.method),
        }
    }
    assert_eq!(granted + refused, DRY_RUNS.len(), "the table has a case of each");
    assert!(granted > refused && refused > 0, "{granted} were granted, {refused} refused");
}

/// The answer that an object is missing has an index, and so has the answer about a ticket that the caller may not
/// release.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_without_a_result_has_an_index() {
    let member = Member::leading().await;
    let fixture = Fixture::make(&member).await;
    let now = member.moment().await;
    let truth = Claim { cluster: &now.cluster, epoch: now.epoch };
    let (namespace, name) = ("default".to_owned(), "nobody's".to_owned());
    let describe = v1::DescribeRunRequest { namespace, name: name.clone(), run: 0 };
    let numbered = v1::DescribeRunRequest { run: 4711, ..Default::default() };
    let retry = v1::RetryItemsRequest {
        request: fixture.id(),
        namespace: "default".into(),
        run: name,
        all_failed: true,
        rows: None,
    };
    for (method, body) in [
        ("/rollout.v1.Runs/DescribeRun", describe.encode_to_vec()),
        ("/rollout.v1.Runs/DescribeRun", numbered.encode_to_vec()),
        ("/rollout.v1.Items/RetryItems", retry.encode_to_vec()),
    ] {
        let answer = member.call(method, body.into(), truth).await;
        let CallOutcome::Refused(error, Some(position)) = answer else {
            panic!("{method}: {answer:?}")
        };
        assert_eq!((error.code, position.position), (ErrorCode::RunNotFound, None), "{method}");
        assert!(
            position.index >= now.last_log && position.coord_epoch == now.epoch,
            "{position:?}"
        );
    }
    let job = Some(v1::JobName { namespace: String::new(), job: "another".into() });
    let leave = v1::LeaveRequest { request: fixture.id(), job, ticket: fixture.ticket };
    let body = leave.encode_to_vec().into();
    let answer = member.call("/rollout.v1.Rendezvous/Leave", body, truth).await;
    let CallOutcome::Message(Some(position)) = answer else { panic!("{answer:?}") };
    assert!(position.position.is_none() && position.index >= now.last_log, "{position:?}");
}

/// In a worker's stream each message carries its own epoch.
#[tokio::test(flavor = "multi_thread")]
async fn a_false_claim_in_a_workers_stream_is_refused_for_each_kind_of_message() {
    let member = Member::leading().await;
    let fixture = Fixture::make(&member).await;
    let before = member.moment().await;
    let kinds = [
        Up::Heartbeat(v1::Heartbeat { seq: 1, ..Default::default() }),
        Up::Exchange(v1::Exchange { seq: 3, credit_rows: 4, ..Default::default() }),
    ];
    for wanted in &false_claims(&before)[..2] {
        for kind in &kinds {
            let message = v1::WorkerMessage {
                session: fixture.worker,
                coord_epoch: wanted.claim.epoch,
                kind: Some(kind.clone()),
                instance: 5,
            };
            let mut client = v1::worker_client::WorkerClient::new(member.channel());
            // The worker continues to listen: its side stays open.
            let (out, outbound) = tokio::sync::mpsc::channel(1);
            out.send(message).await.expect("sent");
            let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
            let mut answers = client.work(outbound).await.expect("a stream").into_inner();
            let welcome = answers.message().await.expect("a welcome").expect("a welcome");
            assert_eq!(welcome.header.map(|h| h.coord_epoch), Some(before.epoch));
            let refused = tokio::time::timeout(Duration::from_secs(10), answers.message()).await;
            let refused = refused.expect("in time").expect_err("refused");
            check_refusal(&format!("{kind:?}"), &RpcError::from_status(&refused), wanted);
            assert_eq!(member.moment().await, before, "{kind:?} changed something");
        }
    }
}

/// A copy of a worker's key knows the session's number, but not the instance that the worker's process has generated.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_has_not_registered_a_session_neither_speaks_for_it_nor_ends_it() {
    let member = Member::leading().await;
    let fixture = Fixture::make(&member).await;
    let before = member.moment().await;
    let truth = Claim { cluster: &before.cluster, epoch: before.epoch };
    for instance in [0, 6] {
        let leave = v1::DeregisterRequest { session: fixture.worker, instance, nacks: Vec::new() };
        let body = leave.encode_to_vec().into();
        match member.call("/rollout.v1.Worker/Deregister", body, truth).await {
            CallOutcome::Refused(error, _) => assert_eq!(error.code, ErrorCode::SessionUnknown),
            answer => panic!("{instance}: {answer:?}"),
        }
        let message = v1::WorkerMessage {
            session: fixture.worker,
            coord_epoch: before.epoch,
            kind: Some(Up::Heartbeat(v1::Heartbeat { seq: 1, ..Default::default() })),
            instance,
        };
        let mut client = v1::worker_client::WorkerClient::new(member.channel());
        let (out, outbound) = tokio::sync::mpsc::channel(1);
        out.send(message).await.expect("sent");
        let outbound = tokio_stream::wrappers::ReceiverStream::new(outbound);
        let mut answers = client.work(outbound).await.expect("a stream").into_inner();
        answers.message().await.expect("a welcome").expect("a welcome");
        let refused = tokio::time::timeout(Duration::from_secs(10), answers.message()).await;
        let refused = refused.expect("in time").expect_err("refused");
        assert_eq!(RpcError::from_status(&refused).code, ErrorCode::SessionUnknown, "{refused}");
    }
    assert_eq!(member.moment().await, before, "the session has ended");
}

/// The epoch in a worker's registration is checked too, whatever its headers say.
#[tokio::test(flavor = "multi_thread")]
async fn a_registration_that_names_a_future_epoch_or_another_cluster_is_refused() {
    let member = Member::leading().await;
    let before = member.moment().await;
    let truth = Claim { cluster: &before.cluster, epoch: before.epoch };
    for wanted in &false_claims(&before)[1..] {
        let request = v1::RegisterRequest {
            coord_epoch_seen: wanted.claim.epoch,
            cluster_id: wanted.claim.cluster.into(),
            ..fixture::registration("w1")
        };
        let body = request.encode_to_vec().into();
        match member.call("/rollout.v1.Worker/Register", body, truth).await {
            CallOutcome::Refused(error, _) => check_refusal("Register", &error, wanted),
            answer => panic!("{answer:?}"),
        }
        assert_eq!(member.moment().await, before, "a registration changed something");
    }
    // An older epoch is one that the worker had seen before its first answer.
    let request = v1::RegisterRequest {
        coord_epoch_seen: before.epoch - 1,
        cluster_id: before.cluster.clone(),
        ..fixture::registration("w1")
    };
    let body = request.encode_to_vec().into();
    let answer = member.call("/rollout.v1.Worker/Register", body, truth).await;
    assert!(matches!(answer, CallOutcome::Message(_)), "{answer:?}");
}
