//! A cloud's metadata service on loopback: what AWS, GCP and Azure tell a machine, and the headers that they require.
//!
//! *Invariant:* it refuses every request that the real service would refuse: without an issued token (AWS), without
//! `Metadata-Flavor: Google` (GCP), or without `Metadata: true` (Azure). The cloud has its own clock, which says that
//! it is noon.
//! Absent: version 1 of AWS's service, and all paths that a test has not set.

use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The cloud whose service it imitates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provider {
    /// EC2's, version 2.
    Aws,
    /// Google Compute Engine's.
    Gcp,
    Azure,
}

impl Provider {
    /// As a worker's configuration names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Aws => "aws",
            Self::Gcp => "gcp",
            Self::Azure => "azure",
        }
    }
}

const AWS_ROOT: &str = "/latest/meta-data/";
const GCP_ROOT: &str = "/computeMetadata/v1/instance/";
const AZURE_ROOT: &str = "/metadata/";
/// This machine, and an event about another machine.
const AZURE_MACHINE: &str = r#"{"name": "gpu_1", "vmId": "7", "vmSize": "Standard_ND96isr_H100_v5",
    "location": "westeurope", "zone": "2", "priority": "Spot"}"#;
const AZURE_NEIGHBOR: &str = r#"{"EventId": "e0", "EventType": "Preempt", "EventStatus": "Scheduled",
    "ResourceType": "VirtualMachine", "Resources": ["gpu_2"],
    "NotBefore": "Sun, 01 Mar 2026 12:00:09 GMT"}"#;
const TOKEN: &str = "AQAEAFleet==";
const TTL: &str = "x-aws-ec2-metadata-token-ttl-seconds";

#[derive(Default)]
struct State {
    values: BTreeMap<String, String>,
    /// Each refused request: when, what was asked, and why it was refused.
    refused: Vec<String>,
}

type Shared = Arc<(Mutex<State>, Condvar)>;

/// A running service. Its threads end with the test's process.
pub struct FakeCloud {
    provider: Provider,
    /// `http://127.0.0.1:port`.
    pub endpoint: String,
    shared: Shared,
}

struct Question {
    method: String,
    path: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
}

struct FakeResponse {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: String,
    /// Why the request was refused. A path that has no value is not refused.
    refused: Option<&'static str>,
}

impl FakeCloud {
    /// Starts a service that has no notice to give.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(provider: Provider) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let (shared, started) = (Shared::default(), Instant::now());
        let cloud = Self { provider, endpoint, shared: shared.clone() };
        match provider {
            Provider::Aws => {
                cloud.set("placement/availability-zone", "eu-central-1a");
                cloud.set("instance-life-cycle", "spot");
            }
            Provider::Gcp => {
                cloud.set("preempted", "FALSE");
                cloud.set("maintenance-event", "NONE");
                cloud.set("zone", "projects/7/zones/europe-west4-b");
                cloud.set("scheduling/preemptible", "TRUE");
            }
            Provider::Azure => {
                cloud.set("instance/compute", AZURE_MACHINE);
                cloud.set("scheduledevents", &azure_events(""));
            }
        }
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = shared.clone();
                // Ignore callers that disconnect.
                std::thread::spawn(move || drop(serve(provider, &shared, started, stream)));
            }
        });
        Ok(cloud)
    }

    /// Sets the value at a path below the instance's.
    pub fn set(&self, path: &str, value: &str) {
        let (state, changed) = &*self.shared;
        state.lock().expect("no panic holds it").values.insert(path.into(), value.into());
        changed.notify_all();
    }

    /// Announces the machine's preemption: on AWS and Azure `lead` from now, on GCP without a time.
    pub fn take_back(&self, lead: Duration) {
        match self.provider {
            Provider::Aws => {
                let (minutes, seconds) = (lead.as_secs() / 60, lead.as_secs() % 60);
                let time = format!("2026-03-01T12:{minutes:02}:{seconds:02}Z");
                let action = format!("{{\"action\": \"terminate\", \"time\": \"{time}\"}}");
                self.set("spot/instance-action", &action);
            }
            Provider::Gcp => self.set("preempted", "TRUE"),
            Provider::Azure => {
                let (minutes, seconds) = (lead.as_secs() / 60, lead.as_secs() % 60);
                let event = AZURE_NEIGHBOR.replace("e0", "e1").replace("gpu_2", "gpu_1");
                let time = format!("12:{minutes:02}:{seconds:02}");
                let event = event.replace("12:00:09", &time);
                self.set("scheduledevents", &azure_events(&format!(", {event}")));
            }
        }
    }

    /// Lines of a worker's configuration.
    pub fn lines(&self) -> String {
        format!(
            "[compute]\nprovider = {:?}\nendpoint = {:?}\npoll_ms = 100\n",
            self.provider.name(),
            self.endpoint
        )
    }

    /// The refused requests: for each, the time since the start, the request, its headers, and the reason.
    pub fn refused(&self) -> Vec<String> {
        self.shared.0.lock().expect("no panic holds it").refused.clone()
    }
}

fn serve(provider: Provider, shared: &Shared, started: Instant, stream: TcpStream) -> Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    let question = read(&stream)?;
    let answer = match provider {
        // A worker that detects its cloud tries each cloud's request; requests for another cloud get 404 here.
        Provider::Gcp if question.path.starts_with(AZURE_ROOT) => nothing(),
        Provider::Gcp if question.path.starts_with("/latest/") => nothing(),
        Provider::Aws => aws(shared, &question),
        Provider::Gcp => gcp(shared, &question),
        Provider::Azure => azure(shared, &question),
    };
    if let Some(why) = answer.refused {
        let Question { method, path, query, headers } = &question;
        let (at, status) = (started.elapsed(), answer.status);
        let refused =
            format!("after {at:.3?}: {method} {path} {query:?} {headers:?}: {status}, {why}");
        shared.0.lock().expect("no panic holds it").refused.push(refused);
    }
    let mut text = format!("HTTP/1.1 {} said\r\nconnection: close\r\n", answer.status);
    text += "date: Sun, 01 Mar 2026 12:00:00 GMT\r\n";
    for (name, value) in &answer.headers {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("content-length: {}\r\n\r\n{}", answer.body.len(), answer.body);
    Ok((&stream).write_all(text.as_bytes())?)
}

/// Fails if the caller hangs up before its request ends, as an exiting worker does; that does not count as a request.
fn read(stream: &TcpStream) -> Result<Question> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().transpose()?.context("the caller asked nothing")?;
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let query = query.split('&').filter_map(|pair| pair.split_once('='));
    let query = query.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
    let mut headers = BTreeMap::new();
    loop {
        let line = lines.next().transpose()?.context("the caller hung up in the headers")?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').context("the caller hung up in a header")?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Ok(Question { method, path: path.to_owned(), query, headers })
}

fn found(body: String) -> FakeResponse {
    FakeResponse { status: 200, headers: Vec::new(), body, refused: None }
}

/// The answer for a path that has no value.
fn nothing() -> FakeResponse {
    FakeResponse { status: 404, headers: Vec::new(), body: String::new(), refused: None }
}

fn refusal(status: u16, why: &'static str) -> FakeResponse {
    FakeResponse { status, headers: Vec::new(), body: String::new(), refused: Some(why) }
}

fn aws(shared: &Shared, question: &Question) -> FakeResponse {
    let header = |name: &str| question.headers.get(name).map(String::as_str);
    if question.path == "/latest/api/token" {
        let ttl = header(TTL).and_then(|ttl| ttl.parse().ok());
        return match (&*question.method, ttl) {
            ("PUT", Some(1..=21_600_u32)) => FakeResponse {
                headers: vec![(TTL, header(TTL).unwrap_or_default().to_owned())],
                ..found(TOKEN.into())
            },
            _ => refusal(400, "not a PUT with a lifetime of 1 to 21600 seconds"),
        };
    }
    if header("x-aws-ec2-metadata-token") != Some(TOKEN) {
        return refusal(401, "no issued token");
    }
    let state = shared.0.lock().expect("no panic holds it");
    let name = question.path.strip_prefix(AWS_ROOT).unwrap_or_default();
    match state.values.get(name) {
        Some(value) => found(value.clone()),
        None => nothing(),
    }
}

fn gcp(shared: &Shared, question: &Question) -> FakeResponse {
    if question.headers.get("metadata-flavor").map(String::as_str) != Some("Google") {
        return refusal(403, "no `Metadata-Flavor: Google`");
    }
    let name = question.path.strip_prefix(GCP_ROOT).unwrap_or_default();
    let (state, changed) = &**shared;
    let mut state = state.lock().expect("no panic holds it");
    if question.query.get("wait_for_change").is_some_and(|wait| wait == "true") {
        let seconds = question.query.get("timeout_sec").and_then(|s| s.parse().ok());
        let limit = Duration::from_secs(seconds.unwrap_or(60));
        let last = question.query.get("last_etag");
        let same = |state: &mut State| state.values.get(name).map(|v| etag(v)).as_ref() == last;
        state = changed.wait_timeout_while(state, limit, same).expect("no panic holds it").0;
    }
    let google = ("metadata-flavor", "Google".to_owned());
    match state.values.get(name) {
        Some(value) => {
            FakeResponse { headers: vec![google, ("etag", etag(value))], ..found(value.clone()) }
        }
        None => FakeResponse { headers: vec![google], ..nothing() },
    }
}

fn azure(shared: &Shared, question: &Question) -> FakeResponse {
    let marked = question.headers.get("metadata").map(String::as_str) == Some("true");
    if !marked || !question.query.contains_key("api-version") {
        return refusal(400, "no `Metadata: true`, or no `api-version`");
    }
    let state = shared.0.lock().expect("no panic holds it");
    let name = question.path.strip_prefix(AZURE_ROOT).unwrap_or_default();
    match state.values.get(name) {
        Some(value) => found(value.clone()),
        None => nothing(),
    }
}

fn azure_events(more: &str) -> String {
    format!(r#"{{"DocumentIncarnation": 1, "Events": [{AZURE_NEIGHBOR}{more}]}}"#)
}

fn etag(value: &str) -> String {
    value.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKS: &str = "GET /computeMetadata/v1/instance/preempted HTTP/1.1\r\n";

    /// What the service refuses of this request, after which its caller hangs up.
    fn refused(request: &str) -> Result<(Result<()>, Vec<String>)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let mut caller = TcpStream::connect(listener.local_addr()?)?;
        caller.write_all(request.as_bytes())?;
        drop(caller);
        let shared = Shared::default();
        let served = serve(Provider::Gcp, &shared, Instant::now(), listener.accept()?.0);
        let refused = shared.0.lock().expect("no panic holds it").refused.clone();
        Ok((served, refused))
    }

    /// An exiting worker may have connected and sent nothing yet, or part of a request.
    #[test]
    fn a_caller_that_hangs_up_is_not_refused() -> Result<()> {
        let (in_a_header, after_it) = (format!("{ASKS}metadata-fl"), format!("{ASKS}a: b\r\n"));
        for part in ["", "GET /comp", ASKS, in_a_header.as_str(), after_it.as_str()] {
            let (served, refused) = refused(part)?;
            assert!(served.is_err() && refused.is_empty(), "{part:?}: {refused:?}");
        }
        Ok(())
    }

    #[test]
    fn a_refused_request_is_named_with_its_reason() -> Result<()> {
        let (_, refused) = refused(&format!("{ASKS}host: here\r\n\r\n"))?;
        let [refused] = &refused[..] else { panic!("{refused:?}") };
        for part in ["GET /computeMetadata/v1/instance/preempted", "here", "403", "Metadata-Flavor"]
        {
            assert!(refused.contains(part), "{refused}");
        }
        Ok(())
    }
}
