use std::time::Duration;

use axum::extract::Request;
use futures::FutureExt;

use super::fake::{Server, answer, header};
use super::*;

fn config(provider: ComputeProvider, server: &Server) -> ComputeConfig {
    ComputeConfig { provider, endpoint: Some(server.endpoint.clone()), ..ComputeConfig::default() }
}

async fn google() -> Server {
    Server::start(|request: Request| async move {
        if header(request.headers(), "metadata-flavor") != Some("Google") {
            return answer(403, &[], "");
        }
        let path = request.uri().path().to_owned();
        let body = if path.ends_with("/zone") { "projects/1/zones/z9" } else { "FALSE" };
        answer(200, &[("metadata-flavor", "Google")], body)
    })
    .await
}

async fn amazon() -> Server {
    Server::start(|request: Request| async move {
        match request.uri().path() {
            "/latest/api/token" if request.method() == "PUT" => answer(200, &[], "token"),
            path if path.ends_with("availability-zone") => answer(200, &[], "z7"),
            _ => answer(404, &[], ""),
        }
    })
    .await
}

async fn microsoft() -> Server {
    Server::start(|request: Request| async move {
        match request.uri().path() {
            _ if header(request.headers(), "metadata") != Some("true") => answer(400, &[], ""),
            "/metadata/instance/compute" => {
                let machine = r#"{"name": "vm", "vmId": "9", "location": "z", "zone": "8"}"#;
                answer(200, &[], machine)
            }
            _ => answer(404, &[], ""),
        }
    })
    .await
}

#[tokio::test]
async fn a_worker_finds_out_by_itself_which_cloud_it_is_in() {
    let found = |server: Server| async move {
        let cloud = Cloud::find(&config(ComputeProvider::Auto, &server)).await.unwrap();
        cloud.map(|cloud| cloud.provider)
    };
    assert_eq!(found(google().await).await, Some(ComputeProvider::Gcp));
    assert_eq!(found(amazon().await).await, Some(ComputeProvider::Aws));
    assert_eq!(found(microsoft().await).await, Some(ComputeProvider::Azure));
    let nobody = Server::start(|_: Request| async { answer(404, &[], "") }).await;
    assert_eq!(found(nobody).await, None);
    let silent = Server::start(|_: Request| futures::future::pending()).await;
    assert_eq!(found(silent).await, None);
    let server = google().await;
    let none = Cloud::find(&config(ComputeProvider::None, &server)).await.unwrap();
    assert!(none.is_none());
}

#[tokio::test]
async fn a_clouds_labels_never_replace_configured_ones() {
    for (server, zone) in
        [(google().await, "z9"), (amazon().await, "z7"), (microsoft().await, "z-8")]
    {
        let cloud = Cloud::find(&config(ComputeProvider::Auto, &server)).await.unwrap().unwrap();
        let mut worker = Config::default();
        cloud.label(&mut worker);
        assert_eq!(worker.labels["zone"], zone);
        worker.labels.insert("zone".into(), "mine".into());
        cloud.label(&mut worker);
        assert_eq!(worker.labels["zone"], "mine");
    }
}

#[tokio::test]
async fn a_named_cloud_that_does_not_answer_keeps_no_worker_from_starting() {
    let silent = Server::start(|_: Request| futures::future::pending()).await;
    for provider in [ComputeProvider::Aws, ComputeProvider::Gcp, ComputeProvider::Azure] {
        let cloud = Cloud::find(&config(provider, &silent)).await.unwrap().unwrap();
        assert!(cloud.labels.is_empty());
    }
}

struct ScriptedNotices(Vec<Notice>);

impl ComputeHint for ScriptedNotices {
    fn next(&mut self) -> BoxFuture<'_, Notice> {
        match self.0.pop() {
            Some(notice) => futures::future::ready(notice).boxed(),
            None => futures::future::pending().boxed(),
        }
    }

    fn labels(&mut self) -> BoxFuture<'_, BTreeMap<String, String>> {
        futures::future::ready(BTreeMap::new()).boxed()
    }
}

#[tokio::test]
async fn a_notice_drains_a_harder_one_shortens_it_and_advice_does_neither() {
    let goes = |seconds| Notice::Goes { within: Duration::from_secs(seconds), what: "x".into() };
    let left = |notices: Vec<Notice>| async move {
        let drains = Drains::default();
        let hint = Box::new(ScriptedNotices(notices.into_iter().rev().collect()));
        let cloud = Cloud { provider: ComputeProvider::Aws, hint, labels: BTreeMap::new() };
        assert!(cloud.watch(drains.clone()).now_or_never().is_none());
        drains.current().map(|order| order.left().as_secs_f64().round() as u64)
    };
    let advice = || Notice::MayGo { what: "rebalance".into() };
    assert_eq!(left(vec![advice()]).await, None);
    assert_eq!(left(vec![advice(), goes(60)]).await, Some(60));
    assert_eq!(left(vec![goes(60), goes(15)]).await, Some(15));
    assert_eq!(left(vec![goes(15), goes(60)]).await, Some(15));
}
