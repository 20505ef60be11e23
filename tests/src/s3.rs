//! An object store on loopback that speaks S3, or another cloud's dialect, for fleets without a shared disk; tests
//! can make it fail.
//!
//! *Invariant:* an acknowledged write is stored, and a refused request leaves no trace. A request without a known key
//! is refused.
//! Absent: verification of signatures, versions, and every bucket but `fleet`.

mod dialect;
mod uploads;

pub use self::dialect::Dialect;
pub use self::uploads::UploadCounts;
use self::uploads::Uploads;
use anyhow::Result;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const BUCKET: &str = "/fleet/";
/// Objects per page of a listing: few, so that readers must ask for more.
const PAGE: usize = 50;
const BODY_MAX: usize = 512 << 20;
/// Interval between checks whether a held request may continue.
const HELD_AGAIN: Duration = Duration::from_millis(10);

/// Injected failures, each counted over all requests.
#[derive(Debug, Clone, Copy, Default)]
pub struct StoreFaults {
    /// Every n-th request is answered with 503; 0 for none.
    pub busy_every: u64,
    /// Every n-th write is done, and its answer lost with the connection; 0 for none.
    pub lost_every: u64,
    /// The longest delay of an answer.
    pub slow_ms: u64,
    /// The answer to each upload's completion is lost, so that a client that repeats the completion names an upload
    /// that no longer exists.
    pub lose_completions: bool,
    /// The part of this number is refused in every upload.
    pub refuse_part: Option<u32>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Arc<Vec<u8>>>,
    uploads: Uploads,
    /// Processes whose credentials have expired.
    expired: BTreeSet<String>,
    /// Processes that may read but not write.
    readers: BTreeSet<String>,
    /// Processes whose requests get the answer that the store is busy.
    overloaded: BTreeSet<String>,
    /// Processes whose requests are held.
    held: BTreeSet<String>,
    /// How many more segments a process may store before its writes of segments are held.
    segments_left: BTreeMap<String, u64>,
    /// Requests that are held now.
    waiting: u64,
    faults: StoreFaults,
    requests: u64,
    /// Counts of requests by process and kind.
    asked: BTreeMap<(String, String), u64>,
    writes: u64,
    busy: u64,
    lost: u64,
}

/// A running store. Its threads end with the test's process.
pub struct S3 {
    addr: String,
    dialect: Dialect,
    state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct S3Response {
    status: &'static str,
    body: Arc<Vec<u8>>,
    tag: Option<String>,
    /// The range of its bytes, if not all.
    range: Option<String>,
}

impl S3 {
    /// Starts an empty store without failures.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start() -> Result<Arc<Self>> {
        Self::start_as(Dialect::S3)
    }

    /// The same, in another cloud's dialect.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start_as(dialect: Dialect) -> Result<Arc<Self>> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?.to_string();
        let store = Arc::new(Self { addr, dialect, state: Arc::default() });
        let serving = store.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let serving = serving.clone();
                // Ignore callers that disconnect.
                std::thread::spawn(move || drop(serving.serve(&stream)));
            }
        });
        Ok(store)
    }

    /// Its URL, as members name it.
    pub fn url(&self) -> String {
        self.dialect.url().into()
    }

    /// The environment of the process of this name: its own credentials.
    pub fn env(&self, name: &str) -> Vec<(&'static str, String)> {
        self.dialect.env(&self.addr, name)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic holds it")
    }

    /// Sets the failures from now on.
    pub fn inject(&self, faults: StoreFaults) {
        self.lock().faults = faults;
    }

    /// Lets the credentials of a process expire, or renews them.
    pub fn expire(&self, name: &str, expired: bool) {
        let key = format!("key-{name}");
        let mut state = self.lock();
        if expired {
            state.expired.insert(key)
        } else {
            state.expired.remove(&key)
        };
    }

    /// Denies a process every write, or permits writes again. Reads are always permitted.
    pub fn forbid_writes(&self, name: &str, forbidden: bool) {
        let key = format!("key-{name}");
        let mut state = self.lock();
        if forbidden {
            state.readers.insert(key)
        } else {
            state.readers.remove(&key)
        };
    }

    /// Answers every request of a process with busy, or stops doing so.
    pub fn overload(&self, name: &str, overloaded: bool) {
        let key = format!("key-{name}");
        let mut state = self.lock();
        if overloaded {
            state.overloaded.insert(key)
        } else {
            state.overloaded.remove(&key)
        };
    }

    /// Holds all requests of a process until it is released: the store is slow for this process only.
    pub fn hold(&self, name: &str, held: bool) {
        let key = format!("key-{name}");
        let mut state = self.lock();
        if held {
            state.held.insert(key)
        } else {
            state.held.remove(&key)
        };
    }

    /// Lets a process store this many more segments and holds its writes of others; `None` releases them. A write is
    /// carried out when it is released, even if its process has died.
    pub fn limit_segments(&self, name: &str, left: Option<u64>) {
        let key = format!("key-{name}");
        let mut state = self.lock();
        match left {
            Some(left) => state.segments_left.insert(key, left),
            None => state.segments_left.remove(&key),
        };
    }

    /// How many requests are held now.
    pub fn held_requests(&self) -> u64 {
        self.lock().waiting
    }

    /// How many requests were answered with busy, and how many answers to writes were lost.
    pub fn misbehaved(&self) -> (u64, u64) {
        let state = self.lock();
        (state.busy, state.lost)
    }

    /// Stores an object, bypassing the failures.
    pub fn put(&self, key: &str, body: &[u8]) {
        self.lock().objects.insert(key.to_owned(), Arc::new(body.to_vec()));
    }

    /// Counts of requests of the process of this name, by method and kind of object, such as `PUT parts`.
    pub fn requests_of(&self, name: &str) -> BTreeMap<String, u64> {
        let key = format!("key-{name}");
        let state = self.lock();
        let own = state.asked.iter().filter(|((signer, _), _)| *signer == key);
        own.map(|((_, what), count)| (what.clone(), *count)).collect()
    }

    /// Bytes of all objects, by kind.
    pub fn stored_bytes(&self) -> BTreeMap<String, u64> {
        let mut bytes: BTreeMap<String, u64> = BTreeMap::new();
        for (key, body) in &self.lock().objects {
            *bytes.entry(kind_of(key).to_owned()).or_default() += body.len() as u64;
        }
        bytes
    }

    /// Counts of multipart uploads.
    pub fn uploads(&self) -> UploadCounts {
        self.lock().uploads.counts()
    }

    /// The keys of all objects below a folder.
    pub fn keys(&self, below: &str) -> Vec<String> {
        self.lock().objects.keys().filter(|key| key.starts_with(below)).cloned().collect()
    }

    fn serve(&self, stream: &TcpStream) -> Result<()> {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read(&mut reader)? {
            let slow = self.lock().faults.slow_ms;
            if slow > 0 {
                // This simulates the store's latency; the test does not wait here.
                std::thread::sleep(Duration::from_millis(self.lock().requests * 7919 % slow));
            }
            if self.holds(&request) {
                self.lock().waiting += 1;
                while self.holds(&request) {
                    std::thread::sleep(HELD_AGAIN);
                }
                self.lock().waiting -= 1;
            }
            let Some(answer) = self.answer(&request) else { return Ok(()) };
            respond(stream, &request.method, &answer)?;
        }
        Ok(())
    }

    /// Whether a request is held. A segment that is not held counts against the limit of its process.
    fn holds(&self, request: &Request) -> bool {
        let Some(key) = self.signer(request) else { return false };
        let mut state = self.lock();
        if state.held.contains(key) {
            return true;
        }
        match state.segments_left.get_mut(key) {
            Some(left) if asked_for(request) == "PUT segments" => {
                let holds = *left == 0;
                *left = left.saturating_sub(1);
                holds
            }
            _ => false,
        }
    }

    fn signer<'a>(&self, request: &'a Request) -> Option<&'a str> {
        let authorization = request.headers.get("authorization");
        self.dialect.signer(authorization.map_or("", String::as_str))
    }

    /// `None`: the connection breaks.
    fn answer(&self, request: &Request) -> Option<S3Response> {
        let mut state = self.lock();
        state.requests += 1;
        let Some(key) = self.signer(request) else {
            return Some(refusal("403 Forbidden", "InvalidAccessKeyId"));
        };
        *state.asked.entry((key.to_owned(), asked_for(request))).or_default() += 1;
        // As S3 does: 400 with an error code.
        if state.expired.contains(key) {
            return Some(refusal("400 Bad Request", "ExpiredToken"));
        }
        if state.readers.contains(key) && !matches!(request.method.as_str(), "GET" | "HEAD") {
            return Some(refusal("403 Forbidden", "AccessDenied"));
        }
        let overloaded = state.overloaded.contains(key);
        if overloaded || happens(state.faults.busy_every, state.requests) {
            state.busy += 1;
            return Some(refusal("503 Slow Down", "SlowDown"));
        }
        let completed = state.uploads.counts().completed;
        let answer = state.carry_out(self.dialect, request);
        if matches!(request.method.as_str(), "PUT" | "POST" | "DELETE") {
            state.writes += 1;
            let completed = state.uploads.counts().completed > completed;
            if happens(state.faults.lost_every, state.writes)
                || completed && state.faults.lose_completions
            {
                state.lost += 1;
                return None;
            }
        }
        Some(answer)
    }
}

/// A method and a kind of object.
fn asked_for(request: &Request) -> String {
    format!("{} {}", request.method, kind_of(&request.key))
}

fn kind_of(key: &str) -> &str {
    let kinds = ["parts", "segments", "evidence"];
    key.split('/').find(|folder| kinds.contains(folder)).unwrap_or("others")
}

fn happens(every: u64, count: u64) -> bool {
    every > 0 && count.is_multiple_of(every)
}

impl State {
    fn carry_out(&mut self, dialect: Dialect, request: &Request) -> S3Response {
        let (written, deleted) = dialect.done();
        let of_upload = request.query.contains_key("uploadId");
        match (request.method.as_str(), request.key.as_str()) {
            ("GET", "") => self.list(dialect, &request.query),
            ("POST", key) if request.query.contains_key("uploads") => self.uploads.begin(key),
            ("POST", _) if of_upload => match self.uploads.complete(request) {
                Ok((key, object)) => {
                    let tag = self.put(&key, object).replace('"', "&quot;");
                    let (open, close) =
                        ("<CompleteMultipartUploadResult>", "</CompleteMultipartUploadResult>");
                    text(format!("{open}<ETag>{tag}</ETag>{close}"))
                }
                Err(refused) => refused,
            },
            ("PUT", _) if of_upload => self.uploads.part(request, self.faults.refuse_part),
            ("DELETE", _) if of_upload => self.uploads.abort(request),
            ("PUT", key) => {
                let tag = Some(self.put(key, request.body.clone()));
                S3Response { status: written, tag, ..done() }
            }
            ("DELETE", key) => {
                self.objects.remove(key);
                S3Response { status: deleted, ..done() }
            }
            ("GET" | "HEAD", key) => match self.objects.get(key) {
                Some(body) => read_out(body, request.headers.get("range")),
                None => refusal("404 Not Found", "NoSuchKey"),
            },
            _ => refusal("501 Not Implemented", "NotImplemented"),
        }
    }

    /// Stores an object, and returns its tag.
    fn put(&mut self, key: &str, body: Vec<u8>) -> String {
        let tag = tag(&body);
        self.objects.insert(key.to_owned(), Arc::new(body));
        tag
    }

    fn list(&self, dialect: Dialect, query: &BTreeMap<String, String>) -> S3Response {
        let asked = |name: &str| query.get(name).map(String::as_str).unwrap_or_default();
        let (page, next) = self.page(asked("prefix"), asked(dialect.marker()));
        let xml = dialect.listing(&page, next.as_deref());
        text(xml)
    }
}

fn done() -> S3Response {
    S3Response { status: "200 OK", body: Arc::default(), tag: None, range: None }
}

fn text(xml: String) -> S3Response {
    S3Response { body: Arc::new(xml.into_bytes()), ..done() }
}

/// An object, or the requested range of it: `bytes=FIRST-LAST`, with LAST not beyond its end.
fn read_out(body: &Arc<Vec<u8>>, asked: Option<&String>) -> S3Response {
    let whole = S3Response { tag: Some(tag(body)), body: body.clone(), ..done() };
    let Some((first, last)) = asked.and_then(|a| a.strip_prefix("bytes=")?.split_once('-')) else {
        return whole;
    };
    let last = last.parse().map_or(body.len(), |last: usize| (last + 1).min(body.len()));
    match first.parse::<usize>().ok().filter(|first| *first < last) {
        Some(first) => S3Response {
            status: "206 Partial Content",
            range: Some(format!("bytes {first}-{}/{}", last - 1, body.len())),
            body: Arc::new(body[first..last].to_vec()),
            ..whole
        },
        None => refusal("416 Range Not Satisfiable", "InvalidRange"),
    }
}

fn refusal(status: &'static str, code: &str) -> S3Response {
    let body = format!("<Error><Code>{code}</Code><Message>as it was told to</Message></Error>");
    S3Response { status, body: Arc::new(body.into_bytes()), ..done() }
}

fn tag(body: &[u8]) -> String {
    let sum = body.iter().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(*byte));
    format!("\"{sum:x}\"")
}

/// The next request of a connection; `None` at its end.
fn read(reader: &mut impl BufRead) -> Result<Option<Request>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = pairs.map(|(k, v)| (k.to_owned(), decoded(v))).collect();
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    anyhow::ensure!(length <= BODY_MAX, "a body of {length} bytes");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    // The bucket itself comes with and without the last slash.
    let key = decoded(path).strip_prefix(BUCKET).unwrap_or_default().to_owned();
    Ok(Some(Request { method, key, query, headers, body }))
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [byte, tail @ ..] = rest {
        let hex = tail.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *byte == b'%') {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &tail[2..];
            }
            None => {
                bytes.push(*byte);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn respond(mut stream: &TcpStream, method: &str, answer: &S3Response) -> Result<()> {
    let mut head =
        format!("HTTP/1.1 {}\r\nlast-modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n", answer.status);
    if let Some(tag) = &answer.tag {
        head += &format!("etag: {tag}\r\n");
    }
    if let Some(range) = &answer.range {
        head += &format!("content-range: {range}\r\n");
    }
    if !answer.status.starts_with("204") {
        head += &format!("content-length: {}\r\n", answer.body.len());
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    if method != "HEAD" {
        stream.write_all(&answer.body)?;
    }
    Ok(())
}
