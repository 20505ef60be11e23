use std::collections::BTreeMap;
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;

use super::super::fake::{Server, Shared, answer, header, until};
use super::super::{ComputeHint, Notice};
use super::*;

const PATIENCE: Duration = Duration::from_secs(60);

/// Version 2 of the service: it answers only with a token that it issued and that has not expired.
struct Imds {
    tokens: Vec<String>,
    issued: u32,
    ttl_seconds: u64,
    values: BTreeMap<String, Value>,
    /// Paths requested with a valid token.
    asked: Vec<String>,
    refused: u32,
    /// The `Date` header.
    date: Option<&'static str>,
}

#[derive(Clone)]
struct Value {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
    delay: Duration,
}

fn ok(body: &str) -> Value {
    Value { status: 200, headers: Vec::new(), body: body.into(), delay: Duration::ZERO }
}

async fn serve(imds: Shared<Imds>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let (found, date) = {
        let mut imds = imds.lock();
        if path == TOKEN_PATH {
            let ttl = header(request.headers(), TTL_HEADER).and_then(|t| t.parse::<u64>().ok());
            if request.method() != Method::PUT || !ttl.is_some_and(|t| (1..=21_600).contains(&t)) {
                return answer(400, &[], "");
            }
            imds.issued += 1;
            let token = format!("AQAEA{}==", imds.issued);
            imds.tokens.push(token.clone());
            return answer(200, &[(TTL_HEADER, &imds.ttl_seconds.to_string())], &token);
        }
        let token = header(request.headers(), TOKEN_HEADER).unwrap_or_default().to_owned();
        if !imds.tokens.contains(&token) {
            imds.refused += 1;
            return answer(401, &[], "");
        }
        imds.asked.push(path.clone());
        (imds.values.get(&path).cloned(), imds.date)
    };
    let found = found.unwrap_or(Value { status: 404, ..ok("not found") });
    tokio::time::sleep(found.delay).await;
    let mut headers: Vec<(&str, &str)> = found.headers.iter().map(|(k, v)| (*k, &**v)).collect();
    headers.extend(date.map(|date| ("date", date)));
    answer(found.status, &headers, &found.body)
}

async fn imds() -> (Shared<Imds>, Server) {
    let imds = Shared::new(parking_lot::Mutex::new(Imds {
        tokens: Vec::new(),
        issued: 0,
        ttl_seconds: TTL_SECONDS,
        values: BTreeMap::new(),
        asked: Vec::new(),
        refused: 0,
        date: None,
    }));
    let state = imds.clone();
    let server = Server::start(move |request| serve(state.clone(), request)).await;
    (imds, server)
}

fn aws(server: &Server) -> Aws {
    let mut aws = Aws::new(&server.endpoint, Duration::from_millis(10)).unwrap();
    aws.failures = MetadataFailures::new(Duration::from_millis(20));
    aws
}

fn at(seconds_from_now: i64) -> String {
    let at = OffsetDateTime::now_utc() + time::Duration::seconds(seconds_from_now);
    let at = at.replace_nanosecond(0).unwrap().format(&Rfc3339).unwrap();
    format!(r#"{{"action": "terminate", "time": "{at}"}}"#)
}

async fn next(aws: &mut Aws) -> Notice {
    tokio::time::timeout(PATIENCE, aws.next()).await.expect("a notice")
}

async fn seconds_of_next(aws: &mut Aws) -> u64 {
    match next(aws).await {
        Notice::Goes { within, .. } => within.as_secs_f64().round() as u64,
        other => panic!("{other:?}"),
    }
}

/// Waits until the service has had this many more requests for the action.
async fn asked_again(imds: &Shared<Imds>, times: usize) {
    let count = || imds.lock().asked.iter().filter(|path| *path == ACTION_PATH).count();
    let wanted = count() + times;
    until("the service is asked again", || count() >= wanted).await;
}

#[tokio::test]
async fn an_interruption_is_reported_once_and_an_earlier_one_again() {
    let (imds, server) = imds().await;
    let mut aws = aws(&server);
    // No notice is reported while none is there, and dropping the future loses nothing.
    tokio::select! {
        notice = aws.next() => panic!("{notice:?}"),
        () = asked_again(&imds, 3) => {}
    }
    imds.lock().values.insert(ACTION_PATH.into(), ok(&at(120)));
    let notice = next(&mut aws).await;
    let Notice::Goes { within, what } = &notice else { panic!("{notice:?}") };
    assert!((55..=60).contains(&within.as_secs()), "{within:?}");
    assert_eq!(what, "spot interruption (terminate)");
    tokio::select! {
        notice = aws.next() => panic!("told twice: {notice:?}"),
        () = asked_again(&imds, 3) => {}
    }
    imds.lock().values.insert(ACTION_PATH.into(), ok(&at(40)));
    assert!((18..=20).contains(&seconds_of_next(&mut aws).await));
    let imds = imds.lock();
    assert_eq!((imds.issued, imds.refused), (1, 0), "one token does for all");
}

#[tokio::test]
async fn a_token_is_renewed_before_it_ends_and_taken_anew_when_it_was_refused() {
    let (imds, server) = imds().await;
    imds.lock().ttl_seconds = 1;
    let mut aws = aws(&server);
    tokio::select! {
        notice = aws.next() => panic!("{notice:?}"),
        () = until("the token is renewed", || imds.lock().issued >= 3) => {}
    }
    assert_eq!(imds.lock().refused, 0, "each was renewed in time");
    imds.lock().ttl_seconds = TTL_SECONDS;
    aws.token = None;
    aws.token().await.unwrap();
    // The service forgets the tokens that it issued.
    imds.lock().tokens.clear();
    imds.lock().values.insert(ACTION_PATH.into(), ok(&at(120)));
    assert!(seconds_of_next(&mut aws).await >= 55);
    assert_eq!(imds.lock().refused, 1);
}

#[tokio::test]
async fn nothing_is_asked_without_a_token() {
    let asked = Shared::<Vec<String>>::default();
    let seen = asked.clone();
    let server = Server::start(move |request: Request| {
        seen.lock().push(format!("{} {}", request.method(), request.uri().path()));
        async { answer(403, &[], "") }
    })
    .await;
    let mut aws = aws(&server);
    assert!(!aws.is_here().await);
    let ends = tokio::time::timeout(Duration::from_millis(300), aws.next()).await;
    assert!(ends.is_err(), "{ends:?}");
    assert!(asked.lock().len() >= 2, "it tries again");
    assert!(asked.lock().iter().all(|asked| asked == "PUT /latest/api/token"), "{asked:?}");
}

#[tokio::test]
async fn wrong_slow_and_endless_answers_are_no_notices_and_the_next_good_one_is() {
    let (imds, server) = imds().await;
    let html = "<html>please log in</html>";
    let moved = Value {
        status: 302,
        headers: vec![("location", format!("{}/elsewhere", server.endpoint))],
        ..ok("")
    };
    imds.lock().values.insert("/elsewhere".into(), ok(&at(120)));
    for wrong in [
        ok(html),
        ok(""),
        ok(r#"{"action": 7}"#),
        ok(&format!("{}{}", at(120), " ".repeat(1 << 20))),
        Value { status: 500, ..ok(&at(120)) },
        moved,
    ] {
        let mut aws = aws(&server);
        imds.lock().values.insert(ACTION_PATH.into(), wrong.clone());
        tokio::select! {
            notice = aws.next() => panic!("{notice:?}"),
            () = asked_again(&imds, 3) => {}
        }
        imds.lock().values.insert(ACTION_PATH.into(), ok(&at(120)));
        assert!(seconds_of_next(&mut aws).await >= 55);
    }
    assert!(!imds.lock().asked.iter().any(|path| path == "/elsewhere"), "it was followed");
    let slow = Value { delay: Duration::from_secs(600), ..ok(&at(120)) };
    imds.lock().values.insert(ACTION_PATH.into(), slow);
    let mut aws = aws(&server);
    assert!(matches!(aws.poll().await, Err(MetadataError::Unreachable { .. })));
}

#[tokio::test]
async fn a_wrong_clock_on_either_side_gives_neither_no_time_nor_endless_time() {
    let (imds, server) = imds().await;
    let action = r#"{"action":"stop","time":"2026-03-01T12:02:00Z"}"#;
    imds.lock().values.insert(ACTION_PATH.into(), ok(action));
    // The service's own clock decides: this host's is months away.
    imds.lock().date = Some("Sun, 01 Mar 2026 12:00:00 GMT");
    assert_eq!(seconds_of_next(&mut aws(&server)).await, 60);
    imds.lock().date = Some("Sun, 01 Mar 2026 12:01:00 GMT");
    assert_eq!(seconds_of_next(&mut aws(&server)).await, 30);
    imds.lock().date = Some("Sun, 01 Mar 2020 12:00:00 GMT");
    assert_eq!(seconds_of_next(&mut aws(&server)).await, 60);
    imds.lock().date = Some("Mon, 01 Mar 2027 12:00:00 GMT");
    assert_eq!(seconds_of_next(&mut aws(&server)).await, 2);
    // Without a readable time, it counts as just begun.
    imds.lock().values.insert(ACTION_PATH.into(), ok(r#"{"action":"stop","time":"soon"}"#));
    assert_eq!(seconds_of_next(&mut aws(&server)).await, 60);
}

#[tokio::test]
async fn a_rebalance_recommendation_is_reported_once_and_hides_no_interruption() {
    let (imds, server) = imds().await;
    let advice = ok(r#"{"noticeTime": "2026-03-01T12:02:00Z"}"#);
    imds.lock().values.insert(REBALANCE_PATH.into(), advice);
    let mut aws = aws(&server);
    assert_eq!(next(&mut aws).await, Notice::MayGo { what: "rebalance recommendation".into() });
    imds.lock().values.insert(ACTION_PATH.into(), ok(&at(120)));
    assert!(seconds_of_next(&mut aws).await >= 55);
    // A service that fails on one path still serves the other.
    imds.lock().values.insert(REBALANCE_PATH.into(), Value { status: 500, ..ok("") });
    let mut aws = self::aws(&server);
    assert!(seconds_of_next(&mut aws).await >= 50);
    assert!(aws.poll().await.unwrap().is_none());
}

#[tokio::test]
async fn labels_describe_the_instance_and_omit_missing_values() {
    let (imds, server) = imds().await;
    let put = |path: &str, body: &str| {
        imds.lock().values.insert(format!("/latest/meta-data/{path}"), ok(body));
    };
    put("placement/availability-zone", "eu-central-1a");
    put("instance-type", "p5.48xlarge");
    put("instance-id", "two words");
    let labels = aws(&server).labels().await;
    let labels: Vec<_> = labels.iter().map(|(k, v)| (&**k, &**v)).collect();
    assert_eq!(labels, [("instance_type", "p5.48xlarge"), ("zone", "eu-central-1a")]);
}
