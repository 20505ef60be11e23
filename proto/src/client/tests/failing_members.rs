//! Members that stop, hang, lag and lie.

use super::*;

/// It takes 0.4 s. This leaves room for a loaded machine and is half of an attempt's own limit.
pub(super) const LEFT_LIMIT: Duration = Duration::from_millis(2500);

async fn until_recorded(client: &Client, name: &str, why: &str) {
    let said = || {
        let tried = client.tried();
        tried.iter().any(|(who, what)| who.starts_with(name) && what == why)
    };
    let wait = async {
        while !said() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), wait).await.unwrap();
}

/// Connects the client to the leader, so that it knows it.
pub(super) async fn settled(fakes: &[&Fake], leader: &Fake) -> Client {
    introduce(fakes);
    leader.leads(1);
    let client = client(&[leader]);
    create(&client, CallOptions::default()).await.unwrap();
    client
}

#[tokio::test]
async fn a_hung_leader_is_left_long_before_the_calls_own_limit() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let client = settled(&[&c1, &c2], &c1).await;
    c1.set(|says| says.hangs = true);
    c2.leads(2);
    let started = Instant::now();
    assert_eq!(create(&client, CallOptions::default()).await.unwrap(), 5);
    assert!(started.elapsed() < LEFT_LIMIT, "{:?}", started.elapsed());
    assert_eq!(*c2.request_ids.lock(), c1.request_ids.lock()[1..], "the same request");
}

#[tokio::test]
async fn every_call_at_a_hung_leader_leaves_it_not_only_the_one_that_asks_around() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let client = settled(&[&c1, &c2], &c1).await;
    c1.set(|says| says.hangs = true);
    c2.leads(2);
    let started = Instant::now();
    let calls = (0..32).map(|_| create(&client, CallOptions::default()));
    for answer in futures::future::join_all(calls).await {
        assert_eq!(answer.unwrap(), 5);
    }
    assert!(started.elapsed() < LEFT_LIMIT, "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_silent_stream_learns_of_another_leader() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let client = settled(&[&c1, &c2], &c1).await;
    let (leader, _) = client.leader_channel().await.unwrap();
    let other = client.other_leader(&leader);
    tokio::pin!(other);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut other).await;
    assert!(early.is_err(), "the leader still leads");
    c1.set(|says| says.hangs = true);
    c2.leads(2);
    let other = tokio::time::timeout(Duration::from_secs(10), other).await.unwrap();
    assert_eq!(other.name, "c2");
}

#[tokio::test]
async fn a_killed_leader_is_replaced_as_soon_as_another_one_leads() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let client = settled(&[&c1, &c2], &c1).await;
    drop(c1);
    let calling = client.clone();
    let call = tokio::spawn(async move { create(&calling, CallOptions::default()).await });
    until_recorded(&client, "c2", "says no leader").await;
    let elected = Instant::now();
    c2.leads(2);
    assert_eq!(call.await.unwrap().unwrap(), 5);
    assert!(elected.elapsed() < LEFT_LIMIT, "{:?}", elected.elapsed());
}

#[tokio::test]
async fn a_deposed_leader_that_still_answers_is_not_believed() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let client = settled(&[&c1, &c2], &c1).await;
    // c2 took over in epoch 2, as another answer has shown; c1 does not know.
    let newer =
        v1::ClusterHeader { cluster_id: client.cluster_id(), coord_epoch: 2, ..Default::default() };
    client.observe(&newer).unwrap();
    c2.leads(2);
    assert_eq!(create(&client, CallOptions::default()).await.unwrap(), 5);
    assert_eq!(client.leader().unwrap().name, "c2");
    assert_eq!(c2.request_ids.lock().len(), 1, "the answer of epoch 1 was not taken");
}

#[tokio::test]
async fn the_client_follows_the_claimed_leader_of_the_later_term() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let client = settled(&[&c1, &c2], &c1).await;
    client.inner.cluster_view.lock().leader_term = 2;
    client.leader_failed(&c1.addr.to_string());
    let call = create(&client, CallOptions::default());
    let elect = async {
        until_recorded(&client, "c1", "led in term 1, which is over").await;
        c2.leads(2);
    };
    let (answer, ()) = tokio::join!(call, elect);
    assert_eq!(answer.unwrap(), 5);
    assert_eq!((c1.request_ids.lock().len(), c2.request_ids.lock().len()), (1, 1));
}

#[tokio::test]
async fn a_lost_answer_leaves_the_outcome_unknown_and_a_read_leaves_nothing_in_doubt() {
    let c1 = Fake::start("c1");
    let client = settled(&[&c1], &c1).await;
    c1.set(|says| says.hangs = true);
    let short = Duration::from_millis(200);
    let error = create(&client, CallOptions::default().timeout(short)).await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }), "{error}");
    assert_eq!(error.exit_code(), 8);
    let error = create(&client, CallOptions::read().timeout(short)).await.unwrap_err();
    assert_eq!(error.exit_code(), 3, "{error}");
}

#[tokio::test]
async fn a_refusal_of_unknown_outcome_is_remembered_until_the_answer_comes() {
    let c1 = Fake::start("c1");
    let client = settled(&[&c1], &c1).await;
    let refusal = RpcError::new(ErrorCode::NoQuorum, "cut off").with_outcome(Outcome::Unknown);
    c1.set(|says| (says.refusals, says.leads) = (vec![refusal], false));
    let limit = CallOptions::default().timeout(Duration::from_millis(300));
    let error = create(&client, limit).await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }), "{error}");
}
