use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;

use super::super::fake::{Server, Shared, answer, header, until};
use super::super::{ComputeHint, Notice};
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);
/// The service's clock.
const NOON: &str = "Sun, 01 Mar 2026 12:00:00 GMT";
const MACHINE: &str = r#"{"name": "gpu_3", "vmId": "42-7", "vmSize": "Standard_NC24ads_A100_v4",
    "location": "westeurope", "zone": "2", "priority": "Spot", "osType": "Linux"}"#;

struct Service {
    events: String,
    machine: String,
    status: u16,
    asked: u32,
    refused: u32,
}

async fn serve(service: Shared<Service>, request: Request) -> Response {
    let mut service = service.lock();
    if header(request.headers(), "metadata") != Some("true") {
        service.refused += 1;
        return answer(400, &[], r#"{"error": "Required metadata header not specified"}"#);
    }
    let question = request.uri().to_string();
    let body = match &*question {
        EVENTS_PATH => {
            service.asked += 1;
            format!(r#"{{"DocumentIncarnation": 1, "Events": [{}]}}"#, service.events)
        }
        MACHINE_PATH => service.machine.clone(),
        _ => return answer(404, &[], ""),
    };
    answer(service.status, &[("date", NOON)], &body)
}

async fn service() -> (Shared<Service>, Server) {
    let service = Shared::new(parking_lot::Mutex::new(Service {
        events: String::new(),
        machine: MACHINE.into(),
        status: 200,
        asked: 0,
        refused: 0,
    }));
    let state = service.clone();
    let server = Server::start(move |request| serve(state.clone(), request)).await;
    (service, server)
}

fn azure(server: &Server) -> Azure {
    let mut azure = Azure::new(&server.endpoint, Duration::from_millis(10)).unwrap();
    azure.failures = MetadataFailures::new(Duration::from_millis(20));
    azure
}

fn event(id: &str, kind: &str, machine: &str, status: &str, not_before: &str) -> String {
    format!(
        r#"{{"EventId": "{id}", "EventType": "{kind}", "ResourceType": "VirtualMachine",
            "Resources": ["{machine}"], "EventStatus": "{status}", "NotBefore": "{not_before}",
            "Description": "", "EventSource": "Platform", "DurationInSeconds": -1}}"#
    )
}

fn at_noon_and(seconds: u64) -> String {
    format!("Sun, 01 Mar 2026 12:{:02}:{:02} GMT", seconds / 60, seconds % 60)
}

async fn next(azure: &mut Azure) -> Notice {
    tokio::time::timeout(PATIENCE, azure.next()).await.expect("a notice")
}

async fn seconds_of_next(azure: &mut Azure) -> u64 {
    match next(azure).await {
        Notice::Goes { within, .. } => within.as_secs(),
        other => panic!("{other:?}"),
    }
}

/// Expects no notice over several more polls.
async fn nothing(azure: &mut Azure, service: &Shared<Service>) {
    let wanted = service.lock().asked + 3;
    tokio::select! {
        notice = azure.next() => panic!("{notice:?}"),
        () = until("the service is asked again", || service.lock().asked >= wanted) => {}
    }
}

#[tokio::test]
async fn a_preemption_drains_for_half_of_the_remaining_time_and_is_reported_once() {
    let (service, server) = service().await;
    let mut azure = azure(&server);
    nothing(&mut azure, &service).await;
    service.lock().events = event("e1", "Preempt", "gpu_3", "Scheduled", &at_noon_and(30));
    let (within, what) = (Duration::from_secs(15), "scheduled event (Preempt)".to_owned());
    assert_eq!(next(&mut azure).await, Notice::Goes { within, what });
    nothing(&mut azure, &service).await;
    // The event begins: the machine may end at any moment.
    service.lock().events = event("e1", "Preempt", "gpu_3", "Started", "");
    assert_eq!(seconds_of_next(&mut azure).await, 2);
    nothing(&mut azure, &service).await;
    assert_eq!(service.lock().refused, 0);
}

#[tokio::test]
async fn an_event_of_a_neighbor_is_ignored() {
    let (service, server) = service().await;
    let theirs = event("e1", "Preempt", "gpu_30", "Scheduled", &at_noon_and(30));
    service.lock().events = theirs.clone();
    let mut azure = azure(&server);
    nothing(&mut azure, &service).await;
    let ours = event("e2", "Preempt", "GPU_3", "Scheduled", &at_noon_and(20));
    service.lock().events = format!("{theirs}, {ours}");
    assert_eq!(seconds_of_next(&mut azure).await, 10);
    nothing(&mut azure, &service).await;
}

#[tokio::test]
async fn maintenance_gets_more_time_and_a_freeze_drains_nothing() {
    let (service, server) = service().await;
    let mut azure = azure(&server);
    let freeze = event("e1", "Freeze", "gpu_3", "Scheduled", &at_noon_and(900));
    let reboot = event("e2", "Reboot", "gpu_3", "Scheduled", &at_noon_and(900));
    let preempt = event("e3", "Preempt", "gpu_3", "Scheduled", &at_noon_and(24));
    // All at once: the most urgent comes first.
    service.lock().events = format!("{freeze}, {reboot}, {preempt}");
    assert_eq!(seconds_of_next(&mut azure).await, 12);
    assert_eq!(seconds_of_next(&mut azure).await, 300);
    let what = "scheduled event (Freeze)".to_owned();
    assert_eq!(next(&mut azure).await, Notice::MayGo { what });
    nothing(&mut azure, &service).await;
    let sooner = event("e4", "Terminate", "gpu_3", "Scheduled", &at_noon_and(300));
    service.lock().events = sooner;
    assert_eq!(seconds_of_next(&mut azure).await, 150);
    let unclear = event("e5", "Redeploy", "gpu_3", "Scheduled", "soon");
    service.lock().events = unclear;
    assert_eq!(seconds_of_next(&mut azure).await, 300);
}

#[tokio::test]
async fn answers_of_others_and_answers_in_trouble_are_no_notices() {
    let (service, server) = service().await;
    service.lock().machine = r#"{"name": "somebody's"}"#.into();
    assert!(!azure(&server).is_here().await);
    service.lock().machine = "<html>".into();
    let mut azure = azure(&server);
    assert!(matches!(azure.poll().await, Err(MetadataError::Garbled { .. })));
    service.lock().machine = MACHINE.into();
    assert!(azure.is_here().await);
    service.lock().events = "none".into();
    assert!(matches!(azure.poll().await, Err(MetadataError::Garbled { .. })));
    service.lock().status = 500;
    assert!(matches!(azure.poll().await, Err(MetadataError::Status { .. })));
    nothing(&mut azure, &service).await;
    {
        let mut service = service.lock();
        service.status = 200;
        service.events = event("e1", "Preempt", "gpu_3", "Scheduled", &at_noon_and(30));
    }
    assert_eq!(seconds_of_next(&mut azure).await, 15);
}

#[tokio::test]
async fn labels_say_zone_size_and_whether_the_machine_is_spot() {
    let (service, server) = service().await;
    let labels = |map: BTreeMap<String, String>| map.into_values().collect::<Vec<_>>();
    let all = labels(azure(&server).labels().await);
    assert_eq!(all, ["42-7", "Standard_NC24ads_A100_v4", "spot", "westeurope-2"]);
    service.lock().machine = MACHINE.replace("\"2\"", "\"\"").replace("Spot", "Regular");
    let all = labels(azure(&server).labels().await);
    assert_eq!(all[2..], ["on-demand", "westeurope"]);
}
