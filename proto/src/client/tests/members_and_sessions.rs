//! What a client remembers, which clusters it rejects, and how sessions count.

use super::*;

#[tokio::test]
async fn the_member_list_survives_the_process_and_the_seeds() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("members.json");
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    introduce(&[&c1, &c2]);
    c2.leads(3);
    let mut first = config(&[&c1]);
    first.members_file = Some(file.clone());
    create(&Client::new(first.clone()).unwrap(), CallOptions::default()).await.unwrap();
    // The only configured endpoint is gone permanently.
    drop(c1);
    let later = Client::new(first.clone()).unwrap();
    assert_eq!((later.coord_epoch(), later.members().len()), (3, 2));
    assert_eq!(create(&later, CallOptions::default()).await.unwrap(), 5);
    first.endpoints.clear();
    assert_eq!(create(&Client::new(first).unwrap(), CallOptions::default()).await.unwrap(), 5);
}

#[tokio::test]
async fn over_mutual_tls_the_same_client_follows_and_names_a_refused_certificate() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let c1 = Fake::start_with("c1", &issued(ours.path(), Role::Member, "c1"));
    c1.leads(1);
    let mut config = config(&[&c1]);
    config.security = issued(ours.path(), Role::Client, "alice");
    let client = Client::new(config.clone()).unwrap();
    assert_eq!(create(&client, CallOptions::default()).await.unwrap(), 5);
    config.security = issued(theirs.path(), Role::Client, "alice");
    let started = Instant::now();
    let stranger = Client::new(config).unwrap();
    let error = create(&stranger, CallOptions::default()).await.unwrap_err();
    assert_eq!(error.exit_code(), 7, "{error}");
    assert!(error.to_string().contains(&c1.addr.to_string()), "{error}");
    assert!(started.elapsed() < stranger.config().timeout, "waiting mends no certificate");
}

#[tokio::test]
async fn every_call_can_run_on_any_thread() {
    fn sendable<T: Send>(future: T) -> T {
        future
    }
    let c1 = Fake::start("c1");
    c1.leads(1);
    let client = client(&[&c1]);
    let (leader, _) = sendable(client.leader_channel()).await.unwrap();
    drop(sendable(client.other_leader(&leader)));
    sendable(client.open_session("test")).await.unwrap();
    let asked = client.each_member(|_, channel| async move {
        services::cluster(channel).counters(v1::CountersRequest {}).await
    });
    assert_eq!(sendable(asked).await.len(), 1);
}

#[tokio::test]
async fn a_member_of_another_cluster_is_refused_at_once_and_by_name_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("members.json");
    let c1 = Fake::start("c1");
    c1.leads(3);
    let mut config = config(&[&c1]);
    config.members_file = Some(file.clone());
    create(&Client::new(config.clone()).unwrap(), CallOptions::default()).await.unwrap();
    c1.set(|says| says.cluster_id = "b".repeat(32));
    let error = create(&Client::new(config).unwrap(), CallOptions::default()).await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::OtherCluster), 5));
    assert!(error.to_string().contains(file.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn missing_and_malformed_endpoints_are_refused_before_any_call() {
    let with = |endpoints: &[&str]| {
        let endpoints = endpoints.iter().map(|text| (*text).to_owned()).collect();
        Client::new(ClientConfig::new(endpoints, Security::InsecurePlaintext)).err().unwrap()
    };
    assert!(matches!(with(&[]), ClientError::NoEndpoints));
    let error = with(&["https://c1:7000"]);
    assert!(error.to_string().contains("has a scheme"), "{error}");
    assert_eq!(error.exit_code(), 2);
}

#[tokio::test]
async fn each_member_is_asked_and_says_how_it_failed() {
    let (c1, c2, c3) = (Fake::start("c1"), Fake::start("c2"), Fake::start("c3"));
    introduce(&[&c1, &c2, &c3]);
    let client = client(&[&c1]);
    c3.set(|says| says.hangs = true);
    drop(c2);
    let answers = client
        .each_member(|_, channel| async move {
            services::cluster(channel).counters(v1::CountersRequest {}).await
        })
        .await;
    let names: Vec<_> = answers.iter().map(|(member, _)| member.name.as_str()).collect();
    assert_eq!(names, ["c1", "c2", "c3"]);
    assert_eq!(answers[0].1.as_ref().unwrap().member, "c1");
    assert!(matches!(&answers[1].1, Err(ClientError::Connect(_))), "{:?}", answers[1].1);
    assert_eq!(answers[2].1.as_ref().unwrap_err().code(), Some(ErrorCode::TimedOut));
}

#[tokio::test]
async fn a_removed_seed_that_fails_is_not_in_the_result() {
    let (c1, c2, gone) = (Fake::start("c1"), Fake::start("c2"), Fake::start("c9"));
    introduce(&[&c1, &c2]);
    let client = client(&[&gone, &c1]);
    drop(gone);
    let answers = client
        .each_member(|_, channel| async move {
            services::cluster(channel).counters(v1::CountersRequest {}).await
        })
        .await;
    let names: Vec<_> = answers.iter().map(|(member, _)| member.name.as_str()).collect();
    assert_eq!(names, ["c1", "c2"]);
}

#[tokio::test]
async fn a_dial_map_sends_the_client_elsewhere_by_the_members_name() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    let mut away = c2.info();
    away.client_addr = "c2.invalid:7".into();
    let list = v1::MemberList { version: 1, members: vec![c1.info(), away], leader: "c2".into() };
    c1.set(|says| says.members = Some(list));
    c2.leads(2);
    let mut config = config(&[&c1]);
    config.dial_map = format!("c2={}", c2.addr).parse().unwrap();
    let client = Client::new(config).unwrap();
    assert_eq!(create(&client, CallOptions::default()).await.unwrap(), 5);
    assert_eq!(client.leader().unwrap().addr, "c2.invalid:7");
}

#[tokio::test]
async fn answers_are_acknowledged_only_up_to_the_first_one_awaited() {
    let c1 = Fake::start("c1");
    c1.leads(1);
    let session = client(&[&c1]).open_session("test").await.unwrap();
    assert_eq!((session.id(), session.store_url()), (77, "file:///store"));
    let (first, second) = (session.request(), session.request());
    let numbers = |request: &PendingRequest| (request.id().seq, request.id().ack_upto);
    assert_eq!((numbers(&first), numbers(&second)), ((1, 0), (2, 0)));
    second.ack();
    let third = session.request();
    assert_eq!(numbers(&third), (3, 0), "the first answer is still awaited");
    first.ack();
    assert_eq!(numbers(&session.request()), (4, 2));
}

#[tokio::test]
async fn a_session_that_is_forgotten_after_a_lost_answer_leaves_the_outcome_unknown() {
    let c1 = Fake::start("c1");
    c1.leads(1);
    let client = client(&[&c1]);
    let forgotten = || RpcError::new(ErrorCode::SessionUnknown, "no session 77 here");
    let lost = RpcError::new(ErrorCode::OutcomeUnknown, "cut off");
    c1.set(|says| says.refusals = vec![lost, forgotten()]);
    let error = create(&client, CallOptions::default()).await.unwrap_err();
    assert!(matches!(error, ClientError::OutcomeUnknown { .. }), "{error}");
    // If no earlier attempt was executed, or there was none, nothing was executed.
    let busy = RpcError::new(ErrorCode::Overloaded, "busy").with_outcome(Outcome::NotApplied);
    for refusals in [vec![busy, forgotten()], vec![forgotten()]] {
        c1.set(|says| says.refusals = refusals);
        let error = create(&client, CallOptions::default()).await.unwrap_err();
        assert_eq!(error.code(), Some(ErrorCode::SessionUnknown), "{error}");
    }
}
