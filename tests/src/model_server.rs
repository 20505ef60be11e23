//! A server on loopback that speaks the part of OpenAI's HTTP API that the engine `openai` uses, and that a test can
//! kill.
//!
//! *Invariant:* it answers as the mock engine does: `MOCK:` and the prompt, or the last message. A killed server
//! answers nothing more, not even requests in progress, and its address refuses connections until it is started
//! again.
//! Absent: models, streams of tokens, and timeouts.

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::fleet::free_addr;

const BODY_MAX: usize = 1 << 20;
/// The duration of a completion.
const LATENCY: Duration = Duration::from_millis(30);

/// Counts of complete answers, by prompt or last message.
type Answered = Arc<Mutex<BTreeMap<String, u64>>>;

/// A server, up or down. Dropping it stops it.
pub struct ModelServer {
    addr: String,
    answered: Answered,
    up: Option<Up>,
}

/// One life of the server.
struct Up {
    killed: Arc<AtomicBool>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    accepting: JoinHandle<()>,
}

impl ModelServer {
    /// Starts a server.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start() -> Result<Self> {
        let mut server = Self { addr: free_addr()?, answered: Arc::default(), up: None };
        server.start_again()?;
        Ok(server)
    }

    /// Starts a killed server again at its old address.
    ///
    /// # Errors
    /// When another process has taken the port.
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.up.is_none(), "the server runs");
        let listener = TcpListener::bind(&self.addr).with_context(|| self.addr.clone())?;
        let (killed, connections) = (Arc::<AtomicBool>::default(), Arc::<Mutex<_>>::default());
        let life = (killed.clone(), connections.clone(), self.answered.clone());
        let accepting = std::thread::spawn(move || accept(&listener, &life));
        self.up = Some(Up { killed, connections, accepting });
        Ok(())
    }

    /// Breaks every connection, and stops listening.
    pub fn kill(&mut self) {
        let Some(up) = self.up.take() else { return };
        up.killed.store(true, Ordering::SeqCst);
        // Wakes the accepting thread, which accepts no connection after this one.
        drop(TcpStream::connect(&self.addr));
        let _ = up.accepting.join();
        for connection in lock(&up.connections).drain(..) {
            // It may be closed already.
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Its address, as an engine's `base_url`.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// How often each prompt was answered.
    pub fn answered(&self) -> BTreeMap<String, u64> {
        lock(&self.answered).clone()
    }
}

impl Drop for ModelServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no panic holds it")
}

type Life = (Arc<AtomicBool>, Arc<Mutex<Vec<TcpStream>>>, Answered);

fn accept(listener: &TcpListener, life: &Life) {
    let (killed, connections, answered) = life;
    for stream in listener.incoming().flatten() {
        if killed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(kept) = stream.try_clone() else { continue };
        lock(connections).push(kept);
        let (killed, answered) = (killed.clone(), answered.clone());
        // Ignore callers that disconnect.
        std::thread::spawn(move || drop(serve(&stream, &killed, &answered)));
    }
}

fn serve(mut stream: &TcpStream, killed: &AtomicBool, answered: &Answered) -> Result<()> {
    let mut reader = BufReader::new(stream);
    while let Some((what, body)) = read(&mut reader)? {
        let (status, answer, asked) = answer(&what, &body);
        if asked.is_some() {
            // This simulates the model's latency; the test does not wait here.
            std::thread::sleep(LATENCY);
        }
        if killed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let text = answer.to_string();
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            text.len()
        );
        stream.write_all((head + &text).as_bytes())?;
        if let Some(asked) = asked {
            *lock(answered).entry(asked).or_default() += 1;
        }
    }
    Ok(())
}

/// The next request of a connection: its method and path, and its body; `None` at its end.
fn read(reader: &mut impl BufRead) -> Result<Option<(String, Value)>> {
    let mut first = String::new();
    if reader.read_line(&mut first)? == 0 {
        return Ok(None);
    }
    let what = first.rsplit_once(" HTTP/").context("a request line")?.0.to_owned();
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else { break };
        if name.eq_ignore_ascii_case("content-length") {
            length = value.trim().parse()?;
        }
    }
    ensure!(length <= BODY_MAX, "a body of {length} bytes");
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let body = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body)? };
    Ok(Some((what, body)))
}

/// A status, an answer, and its prompt.
fn answer(what: &str, body: &Value) -> (&'static str, Value, Option<String>) {
    let messages = || body["messages"].as_array()?.last()?["content"].as_str();
    let asked = match what {
        "GET /v1/models" => {
            return ("200 OK", json!({"data": [{"id": "mock/tiny", "object": "model"}]}), None);
        }
        "POST /v1/completions" => body["prompt"].as_str(),
        "POST /v1/chat/completions" => messages(),
        _ => return ("404 Not Found", json!({"error": {"message": what}}), None),
    };
    let Some(asked) = asked else {
        return ("400 Bad Request", json!({"error": {"message": "nothing is asked"}}), None);
    };
    let text = format!("MOCK:{asked}");
    let choice = match what.contains("chat") {
        true => {
            json!({"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"})
        }
        false => json!({"index": 0, "text": text, "finish_reason": "stop"}),
    };
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5});
    ("200 OK", json!({"choices": [choice], "usage": usage}), Some(asked.to_owned()))
}
