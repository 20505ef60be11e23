//! A server that speaks as much of S3 as reading an input needs, and misbehaves on request.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

/// One bucket named `data`.
#[derive(Clone)]
pub(crate) struct S3 {
    addr: String,
    objects: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// One of this many answers with a body breaks off in the middle; 0 for none.
    pub(crate) breaks_every: Arc<AtomicUsize>,
    /// After this many bodies, an object has another tag; 0 for never.
    pub(crate) changes_after: Arc<AtomicUsize>,
    bodies: Arc<AtomicUsize>,
}

impl S3 {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            addr: listener.local_addr().unwrap().to_string(),
            objects: Arc::default(),
            breaks_every: Arc::default(),
            changes_after: Arc::default(),
            bodies: Arc::default(),
        };
        let serving = server.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (serving, Ok(stream)) = (serving.clone(), stream) else { return };
                std::thread::spawn(move || while serving.answer(&stream).is_some() {});
            }
        });
        server
    }

    pub(crate) fn put(&self, key: &str, bytes: impl Into<Vec<u8>>) {
        self.objects.lock().insert(key.to_owned(), bytes.into());
    }

    /// The environment that a command needs to find it.
    pub(crate) fn env(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT", format!("http://{}", self.addr)),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "here".to_owned()),
            ("AWS_ACCESS_KEY_ID", "id".to_owned()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
        ]
    }

    pub(crate) fn bodies(&self) -> usize {
        self.bodies.load(Ordering::SeqCst)
    }

    fn tag(&self) -> String {
        let after = self.changes_after.load(Ordering::SeqCst);
        format!("\"{}\"", u8::from(after > 0 && self.bodies() >= after))
    }

    /// Answers one request; None if the connection has ended.
    fn answer(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next()?.to_owned(), words.next()?.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut header = String::new();
            reader.read_line(&mut header).ok()?;
            let Some((name, value)) = header.trim().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let path = target.strip_prefix("/data")?;
        match path.split_once('?') {
            Some((_, query)) => self.list(stream, query),
            None => self.object(stream, &method, &key_of(path)?, &headers),
        }
    }

    fn list(&self, stream: &TcpStream, query: &str) -> Option<()> {
        let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix=")).unwrap_or("");
        let prefix = prefix.replace("%2F", "/");
        let mut xml = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
        for (key, bytes) in self.objects.lock().iter().filter(|(key, _)| key.starts_with(&prefix)) {
            xml += &format!(
                "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
                 <ETag>{}</ETag><Size>{}</Size></Contents>",
                self.tag().replace('"', "&quot;"),
                bytes.len()
            );
        }
        respond(stream, "200 OK", "", (xml + "</ListBucketResult>").as_bytes(), usize::MAX)
    }

    fn object(
        &self,
        stream: &TcpStream,
        method: &str,
        key: &str,
        headers: &BTreeMap<String, String>,
    ) -> Option<()> {
        let Some(bytes) = self.objects.lock().get(key).cloned() else {
            return respond(stream, "404 Not Found", "", b"", usize::MAX);
        };
        if headers.get("if-match").is_some_and(|wanted| *wanted != self.tag()) {
            return respond(stream, "412 Precondition Failed", "", b"", usize::MAX);
        }
        let known = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let more = format!("{known}ETag: {}\r\n", self.tag());
        if method == "HEAD" {
            let head = format!("HTTP/1.1 200 OK\r\n{more}Content-Length: {}\r\n\r\n", bytes.len());
            return (&*stream).write_all(head.as_bytes()).ok();
        }
        let (first, last) = headers.get("range")?.strip_prefix("bytes=")?.split_once('-').unwrap();
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        let range = format!("{more}Content-Range: bytes {first}-{last}/{}\r\n", bytes.len());
        let number = self.bodies.fetch_add(1, Ordering::SeqCst) + 1;
        let breaks = self.breaks_every.load(Ordering::SeqCst);
        let sent = match breaks > 0 && number.is_multiple_of(breaks) {
            true => (last - first) / 2,
            false => usize::MAX,
        };
        respond(stream, "206 Partial Content", &range, &bytes[first..=last], sent)
    }
}

/// The key of a path, in which bytes may be percent-encoded.
fn key_of(path: &str) -> Option<String> {
    let mut pieces = path.trim_start_matches('/').split('%');
    let mut key = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        key.push(u8::from_str_radix(digits, 16).ok()?);
        key.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(key).ok()
}

/// Sends an answer with at most `sent` bytes of its body; None if that was not all.
fn respond(
    mut stream: &TcpStream,
    status: &str,
    more: &str,
    body: &[u8],
    sent: usize,
) -> Option<()> {
    let head = format!("HTTP/1.1 {status}\r\n{more}Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(&body[..sent.min(body.len())]).ok()?;
    (sent >= body.len()).then_some(())
}
