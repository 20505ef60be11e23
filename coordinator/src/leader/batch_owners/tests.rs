//! Tests of the choice of owners.

use super::*;
use crate::leader::state::test_leader::{PATIENCE, TestLeader};
use rollout_config::coordinator::Workers;
use rollout_ledger::id::{BatchFence, LedgerMs};
use rollout_ledger::{BatchCursor, BatchDecl, BatchSpec, BatchWork, Extent, FilePurpose, FileSpec};

/// A task of the namespace `space`, with an owner or without.
fn task(space: &str, batch: u64, owner: Option<u64>) -> BatchTask {
    BatchTask {
        batch: format!("{space}{batch}"),
        namespace: space.into(),
        owner,
        fence: BatchFence(0),
        work: BatchWork::Validate(BatchCursor::default()),
    }
}

fn answering(members: &[u64]) -> Candidates {
    Candidates { answering: members.to_vec(), unclear: Vec::new() }
}

fn assigned(tasks: &[BatchTask], members: &Candidates) -> Vec<(String, u64)> {
    assignments(tasks, members)
}

fn to(batch: &str, member: u64) -> (String, u64) {
    (batch.to_owned(), member)
}

#[test]
fn a_member_gets_two_batches_and_the_others_wait() {
    let mut tasks: Vec<BatchTask> = (0..6).map(|n| task("a", n, None)).collect();
    let members = answering(&[2, 3]);
    let first = [to("a0", 2), to("a1", 3), to("a2", 2), to("a3", 3)];
    assert_eq!(assigned(&tasks, &members), first);
    for (task, (_, member)) in tasks.iter_mut().zip(first) {
        task.owner = Some(member);
    }
    assert_eq!(assigned(&tasks, &members), []);
    tasks.remove(1);
    assert_eq!(assigned(&tasks, &members), [to("a4", 3)]);
    assert_eq!(assigned(&tasks, &Candidates::default()), []);
}

#[test]
fn namespaces_take_turns() {
    let of = |space, from| (from..from + 3).map(move |n| task(space, n, None));
    let tasks: Vec<BatchTask> = of("busy", 0).chain(of("other", 0)).collect();
    let all = [to("busy0", 2), to("other0", 3), to("busy1", 2), to("other1", 3)];
    assert_eq!(assigned(&tasks, &answering(&[2, 3])), all);
    let mut tasks = tasks;
    tasks[0].owner = Some(2);
    let next = [to("other0", 3), to("busy1", 2), to("other1", 3)];
    assert_eq!(assigned(&tasks, &answering(&[2, 3])), next);
}

#[test]
fn the_work_of_a_member_that_is_gone_goes_to_another_one() {
    let tasks = [task("a", 0, Some(2)), task("a", 1, Some(3)), task("a", 2, Some(9))];
    assert_eq!(assigned(&tasks, &answering(&[3])), [to("a0", 3)]);
    let waits = Candidates { answering: vec![3], unclear: vec![2] };
    assert_eq!(assigned(&tasks, &waits), [to("a2", 3)], "it may still answer");
}

fn member(id: u64, reachability: Reachability, as_of: Option<Instant>) -> MemberReachability {
    MemberReachability { id, name: format!("c{id}"), started_ms: 1, as_of, reachability }
}

#[test]
fn followers_that_answer_get_work_and_the_leader_only_if_none_does() {
    let begun = Instant::now();
    let now = begun + Duration::from_secs(60);
    let ago = |seconds| Some(now - Duration::from_secs(seconds));
    let leader = member(1, Reachability::Reachable, Some(now));
    let of = |second: MemberReachability, third: MemberReachability, since| {
        Candidates::of(&[leader.clone(), second, third], since, now)
    };
    let reachable = |id, seconds| member(id, Reachability::Reachable, ago(seconds));
    let both = of(reachable(2, 1), reachable(3, 2), begun);
    assert_eq!(both, Candidates { answering: vec![2, 3], unclear: vec![1] });
    let one = of(reachable(2, 4), reachable(3, 2), begun);
    assert_eq!(one, Candidates { answering: vec![3], unclear: vec![1] });
    let stopped = member(2, Reachability::Stopped, ago(0));
    let none = of(stopped, reachable(3, 3), begun);
    assert_eq!(none, Candidates { answering: vec![1], unclear: vec![] });
    // The epoch is new: the third member may answer soon.
    let third = member(3, Reachability::Unclear, None);
    let new = of(reachable(2, 4), third, now - Duration::from_secs(1));
    assert_eq!(new, Candidates { answering: vec![1], unclear: vec![2, 3] });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_gets_an_owner_soon_after_its_creation() {
    let leader = TestLeader::start_version(OPENAI_API_VERSION, Workers::default()).await;
    let (namespace, filename) = ("default".to_owned(), "in.jsonl".to_owned());
    let spec = FileSpec {
        namespace: namespace.clone(),
        key: String::new(),
        filename,
        purpose: FilePurpose::Batch,
        ttl_ms: 0,
    };
    let content = Extent { folder: "0123-file-in".into(), pieces: Vec::new() };
    let file = op::CreateFile {
        id: "file-in".into(),
        spec: Box::new(spec),
        request: None,
        content,
        begun_at: LedgerMs(0),
    };
    leader.op(OpKind::CreateFile(file)).await;
    let spec = BatchSpec {
        endpoint: "/v1/chat/completions".into(),
        input_file: "file-in".into(),
        completion_window: "24h".into(),
        window_ms: 86_400_000,
        ..BatchSpec::default()
    };
    let (id, folder) = ("batch_1".to_owned(), "batch_1/0123-1".to_owned());
    let batch = BatchDecl { id, namespace, spec, folder, ..BatchDecl::default() };
    leader.op(OpKind::CreateBatch(Box::new(batch))).await;
    let state = leader.state.clone();
    let assigning = tokio::spawn(state.clone().until_ended(assign(state.clone())));
    let own = state.node.reachability()[0].id;
    let owned = async {
        while state.node.ledger(|l| l.batch_tasks_of(own)).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, owned).await.expect("an owner");
    leader.end().await;
    assigning.await.expect("it ends");
}
