//! The client against fake members whose answers a test sets.

mod failing_members;
mod fake;
mod leader_search;
mod members_and_sessions;
mod refused_certificates;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::fake::{Fake, introduce};
use super::*;
use crate::error::{ErrorCode, Outcome};
use crate::identity::Role;
use crate::tls::Security;

fn config(seeds: &[&Fake]) -> ClientConfig {
    let endpoints = seeds.iter().map(|fake| fake.addr.to_string()).collect();
    ClientConfig::new(endpoints, Security::InsecurePlaintext)
}

fn client(seeds: &[&Fake]) -> Client {
    Client::new(config(seeds)).unwrap()
}

/// A certificate of the authority in this directory, which is created if there is none.
fn issued(dir: &Path, role: Role, name: &str) -> Security {
    crate::pki::init_ca(dir, "test").unwrap();
    let request = crate::pki::IssueRequest {
        role,
        name: name.to_owned(),
        namespaces: Vec::new(),
        dns_names: Vec::new(),
        ip_addrs: vec![[127, 0, 0, 1].into()],
        days: 1,
    };
    Security::Mtls(crate::pki::issue(dir, &request, dir).unwrap())
}

/// One call with a request id, as every client makes it.
async fn create(client: &Client, options: CallOptions) -> Result<u32, ClientError> {
    let id = v1::RequestId { session: 7, seq: 3, ack_upto: 2 };
    let request = v1::CreateRunRequest { request: Some(id), ..Default::default() };
    let answer = client
        .with_leader_opts("create run", options, |channel| {
            let request = request.clone();
            async move { services::runs(channel).create_run(request).await }
        })
        .await?;
    Ok(answer.run)
}

#[tokio::test]
async fn a_hint_is_followed_with_the_same_request() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    // A search would not find c2: only the hint names it.
    c1.leads(1);
    let refusal = RpcError::new(ErrorCode::NotLeader, "ask c2");
    c1.set(|says| says.refusals = vec![refusal.with_leader("c2", c2.addr.to_string())]);
    let client = client(&[&c1]);
    assert_eq!(create(&client, CallOptions::default()).await.unwrap(), 5);
    assert_eq!(c1.request_ids.lock().len(), 1);
    assert_eq!(*c1.request_ids.lock(), *c2.request_ids.lock());
    assert_eq!(client.leader().unwrap().name, "c2");
}

#[tokio::test]
async fn a_retryable_refusal_is_retried_with_the_same_request() {
    let c1 = Fake::start("c1");
    c1.leads(1);
    let refusals = [ErrorCode::Overloaded, ErrorCode::OutcomeUnknown, ErrorCode::NoQuorum];
    c1.set(|says| says.refusals = refusals.map(|code| RpcError::new(code, "later")).into());
    assert_eq!(create(&client(&[&c1]), CallOptions::default()).await.unwrap(), 5);
    let asked = c1.request_ids.lock();
    assert_eq!(asked.len(), 4);
    assert!(asked.iter().all(|id| *id == asked[0]));
}

#[tokio::test]
async fn a_refusal_for_good_is_returned_at_once() {
    let c1 = Fake::start("c1");
    c1.leads(1);
    c1.set(|says| says.refusals = vec![RpcError::new(ErrorCode::RunNotFound, "no run x")]);
    let error = create(&client(&[&c1]), CallOptions::default()).await.unwrap_err();
    assert_eq!((error.code(), error.exit_code()), (Some(ErrorCode::RunNotFound), 4));
    assert_eq!(c1.request_ids.lock().len(), 1);
}

#[tokio::test]
async fn the_leader_is_found_from_one_follower() {
    let (c1, c2, c3) = (Fake::start("c1"), Fake::start("c2"), Fake::start("c3"));
    introduce(&[&c1, &c2, &c3]);
    c3.leads(4);
    let client = client(&[&c1]);
    assert_eq!(create(&client, CallOptions::default()).await.unwrap(), 5);
    let names: Vec<_> = client.members().into_iter().map(|member| member.name).collect();
    assert_eq!(names, ["c1", "c2", "c3"]);
    assert_eq!((client.leader().unwrap().name.as_str(), client.coord_epoch()), ("c3", 4));
}

#[tokio::test]
async fn a_member_that_was_a_seed_has_one_connection() {
    let (a, b) = (Fake::start("a"), Fake::start("b"));
    introduce(&[&a, &b]);
    b.leads(3);
    let client = client(&[&a, &b]);
    create(&client, CallOptions::default()).await.unwrap();
    let asked = client.each_member(|_, channel| async move {
        services::cluster(channel).status(v1::StatusRequest::default()).await
    });
    assert!(asked.await.iter().all(|(_, answer)| answer.is_ok()));
    assert_eq!((a.connections(), b.connections()), (1, 1));
    let channels = client.inner.channels.lock();
    let names: Vec<_> = channels.keys().map(|endpoint| endpoint.name.clone()).collect();
    assert!(names.len() == 2 && names.iter().all(Option::is_some), "{names:?}");
}

#[tokio::test]
async fn without_a_leader_the_error_lists_the_tried_members() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    introduce(&[&c1, &c2]);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let mut config = config(&[&c1]);
    config.timeout = Duration::from_millis(1500);
    config.on_wait = Some(Arc::new({
        let reports = reports.clone();
        move |text: &str| reports.lock().push(text.to_owned())
    }));
    let client = Client::new(config).unwrap();
    client.leader_channel().await.unwrap_err();
    drop(c2);
    let error = create(&client, CallOptions::default()).await.unwrap_err();
    let ClientError::NoLeader { tried, .. } = &error else { panic!("{error}") };
    assert!(tried[0].0.starts_with("c1 (") && tried[0].1 == "says no leader", "{tried:?}");
    assert!(tried[1].0.starts_with("c2 ("), "{tried:?}");
    assert_eq!(tried[1].1, "connection refused at tcp");
    assert_eq!(error.exit_code(), 3);
    let last = reports.lock().last().cloned().unwrap();
    assert!(last.starts_with("no leader: c1 (") && last.contains("at tcp"), "{last}");
    assert!(reports.lock().len() <= 4, "told at most once a second");
}

#[tokio::test]
async fn concurrent_calls_share_the_search_for_the_leader() {
    let (c1, c2) = (Fake::start("c1"), Fake::start("c2"));
    introduce(&[&c1, &c2]);
    let client = client(&[&c1]);
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { create(&client, CallOptions::default()).await })
        })
        .collect();
    c2.leads(2);
    for call in calls {
        assert_eq!(call.await.unwrap().unwrap(), 5);
    }
    assert_eq!(c2.request_ids.lock().len(), 64);
}

#[tokio::test]
async fn an_outage_is_as_old_as_the_first_call_that_found_no_leader() {
    let c1 = Fake::start("c1");
    let client = client(&[&c1]);
    let short = CallOptions::default().timeout(Duration::from_millis(100));
    assert!(create(&client, short).await.is_err());
    let began = *client.inner.leaderless_since.lock();
    assert!(began.is_some());
    assert!(create(&client, short).await.is_err());
    assert_eq!(
        *client.inner.leaderless_since.lock(),
        began,
        "the next call goes on at the pace of the first"
    );
    c1.leads(1);
    create(&client, CallOptions::default()).await.unwrap();
    assert_eq!(*client.inner.leaderless_since.lock(), None);
}
