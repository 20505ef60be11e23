use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use tokio::sync::watch;

use super::super::fake::{Server, Shared, answer, header, until};
use super::super::{ComputeHint, Notice};
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Default)]
struct Values {
    /// Values by name; the entity tag of each derives from it.
    values: BTreeMap<&'static str, &'static str>,
    /// Answers without the header that identifies Google.
    anonymous: bool,
    status: Option<u16>,
}

struct Service {
    values: watch::Sender<Values>,
    /// Name and query of every request.
    asked: Shared<Vec<String>>,
    server: Server,
}

fn etag(value: &str) -> String {
    format!("e{}{}", value.len(), value.bytes().map(u32::from).sum::<u32>())
}

/// Answers as Google's service does: a waiting request is held until the value's tag changes.
async fn serve(mut values: watch::Receiver<Values>, request: Request) -> Response {
    if header(request.headers(), "metadata-flavor") != Some("Google") {
        return answer(403, &[], "Missing Metadata-Flavor:Google header.");
    }
    let path = request.uri().path().to_owned();
    let name = path.strip_prefix(INSTANCE).unwrap_or_default().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let given = |key: &str| {
        query
            .split('&')
            .find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='))
            .map(str::to_owned)
    };
    let value = |values: &Values| values.values.get(&*name).copied();
    if given("wait_for_change").as_deref() == Some("true") {
        let limit = Duration::from_secs(given("timeout_sec").unwrap().parse().unwrap());
        let last = given("last_etag");
        let other = values.wait_for(|now| now.status.is_some() || value(now).map(etag) != last);
        let _ = tokio::time::timeout(limit, other).await;
    }
    let values = values.borrow().clone();
    let (status, body) = match (values.status, value(&values)) {
        (Some(status), _) => (status, ""),
        (None, Some(body)) => (200, body),
        (None, None) => (404, ""),
    };
    let tag = etag(body);
    let all = [("etag", &*tag), ("metadata-flavor", "Google")];
    answer(status, if values.anonymous { &all[..1] } else { &all }, body)
}

async fn service() -> Service {
    let values =
        BTreeMap::from([("preempted", "FALSE"), ("maintenance-event", "NONE"), ("id", "42")]);
    let (values, receiver) = watch::channel(Values { values, ..Values::default() });
    let asked = Shared::<Vec<String>>::default();
    let seen = asked.clone();
    let server = Server::start(move |request: Request| {
        let question = request.uri().to_string();
        seen.lock().push(question.strip_prefix(INSTANCE).unwrap_or_default().to_owned());
        serve(receiver.clone(), request)
    })
    .await;
    Service { values, asked, server }
}

impl Service {
    fn set(&self, name: &'static str, value: &'static str) {
        self.values.send_modify(|values| {
            values.values.insert(name, value);
        });
    }

    /// How often the least-watched value was waited on. A request is dropped and repeated when the other one is
    /// answered, so a single value may have been waited on several times.
    fn held(&self) -> usize {
        let asked = self.asked.lock();
        let of = |value: &str| {
            let waits = format!("{value}?wait_for_change");
            asked.iter().filter(|question| question.starts_with(&waits)).count()
        };
        of("preempted").min(of("maintenance-event"))
    }

    /// Waits until each value has been waited on this many times.
    async fn holds(&self, times: usize) {
        until("questions are held", || self.held() >= times).await;
    }
}

fn gcp(service: &Service) -> Gcp {
    Gcp::new(&service.server.endpoint).unwrap()
}

async fn next(gcp: &mut Gcp) -> Notice {
    tokio::time::timeout(PATIENCE, gcp.next()).await.expect("a notice")
}

fn preempted() -> Notice {
    Notice::Goes { within: Duration::from_secs(15), what: "preempted".into() }
}

#[tokio::test]
async fn a_preemption_ends_the_wait_at_once_and_is_reported_once() {
    let service = service().await;
    let mut gcp = gcp(&service);
    tokio::select! {
        notice = gcp.next() => panic!("{notice:?}"),
        () = service.holds(1) => {}
    }
    let waits =
        format!("preempted?wait_for_change=true&timeout_sec=60&last_etag={}", etag("FALSE"));
    assert!(service.asked.lock().contains(&waits), "{:?}", service.asked.lock());
    // The change falls between two requests: with the last tag, the next request is answered at once.
    service.set("preempted", "TRUE");
    assert_eq!(next(&mut gcp).await, preempted());
    let held = service.held();
    tokio::select! {
        notice = gcp.next() => panic!("told twice: {notice:?}"),
        () = service.holds(held + 1) => {}
    }
}

#[tokio::test]
async fn an_already_preempted_instance_learns_that_at_the_start() {
    let service = service().await;
    service.set("preempted", "TRUE");
    assert_eq!(next(&mut gcp(&service)).await, preempted());
}

#[tokio::test]
async fn maintenance_that_ends_the_instance_drains_and_a_migration_is_reported() {
    let service = service().await;
    let mut gcp = gcp(&service);
    service.set("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE");
    let notice = next(&mut gcp).await;
    assert_eq!(notice, Notice::MayGo { what: "host maintenance (migrate)".into() });
    service.set("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE");
    let within = Duration::from_secs(30);
    let what = "host maintenance (terminate)".to_owned();
    assert_eq!(next(&mut gcp).await, Notice::Goes { within, what });
    // A preemption during maintenance is the more urgent notice.
    service.set("preempted", "TRUE");
    assert_eq!(next(&mut gcp).await, preempted());
}

#[tokio::test]
async fn answers_of_others_and_answers_in_trouble_are_no_notices() {
    let service = service().await;
    service.set("preempted", "TRUE");
    let metadata = Metadata::new(&service.server.endpoint).unwrap();
    let mut watched = gcp(&service).preempted;
    service.values.send_modify(|values| values.anonymous = true);
    assert!(!gcp(&service).is_here().await);
    let anonymous = watched.poll(&metadata).await;
    assert!(matches!(anonymous, Err(MetadataError::Garbled { .. })), "{anonymous:?}");
    service.values.send_modify(|values| (values.anonymous, values.status) = (false, Some(503)));
    let busy = watched.poll(&metadata).await;
    assert!(matches!(busy, Err(MetadataError::Status { .. })), "{busy:?}");
    service.values.send_modify(|values| values.status = None);
    service.set("preempted", "MAYBE");
    let garbled = watched.poll(&metadata).await;
    assert!(matches!(garbled, Err(MetadataError::Garbled { .. })), "{garbled:?}");
    let mut gcp = gcp(&service);
    assert!(gcp.is_here().await);
    let count = service.asked.lock().len();
    tokio::select! {
        notice = gcp.next() => panic!("{notice:?}"),
        () = until("it is asked again", || service.asked.lock().len() >= count + 3) => {}
    }
    service.set("preempted", "TRUE");
    assert_eq!(next(&mut gcp).await, preempted());
}

#[tokio::test]
async fn a_service_that_holds_no_request_is_polled_at_a_bounded_pace() {
    let asked = Shared::<u32>::default();
    let count = asked.clone();
    let server = Server::start(move |request: Request| {
        *count.lock() += 1;
        let value = if request.uri().path().ends_with("preempted") { "FALSE" } else { "NONE" };
        async move { answer(200, &[("etag", "same"), ("metadata-flavor", "Google")], value) }
    })
    .await;
    let mut gcp = Gcp::new(&server.endpoint).unwrap();
    let ends = tokio::time::timeout(Duration::from_millis(1500), gcp.next()).await;
    assert!(ends.is_err(), "{ends:?}");
    assert!((2..=4).contains(&*asked.lock()), "asked {} times", asked.lock());
}

#[tokio::test]
async fn labels_are_the_last_parts_of_paths_and_say_whether_the_instance_is_spot() {
    let service = service().await;
    service.set("zone", "projects/123/zones/us-central1-a");
    service.set("machine-type", "projects/123/machineTypes/a3-highgpu-8g");
    service.set("scheduling/preemptible", "TRUE");
    let labels = gcp(&service).labels().await;
    let labels: Vec<_> = labels.iter().map(|(k, v)| (&**k, &**v)).collect();
    let (id, lifecycle) = (("instance_id", "42"), ("lifecycle", "spot"));
    let kind = ("instance_type", "a3-highgpu-8g");
    assert_eq!(labels, [id, kind, lifecycle, ("zone", "us-central1-a")]);
}
