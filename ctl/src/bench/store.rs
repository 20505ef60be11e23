//! `rolloutctl bench store`: the shared store's performance as a training job's processes see it.
//!
//! Invariant: each client is a thread with its own TCP connection to a gateway in this process. It speaks TCPStore's
//! protocol as torch's client does, which waits for every answer except that of a set, and checks every answer. The
//! gateway is that of `rollout store-gateway`, with mutual TLS to three members.
//! Absent: torch itself; `make bench-torch` has it.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hdrhistogram::Histogram;
use rollout_gateway::GatewayOptions;
use serde::Serialize;
use tokio::sync::oneshot;

use super::target::{Target, TargetArgs};
use crate::output::{self, Report};
use crate::rolloutctl::verb::{Globals, Kind, Verb};

/// TCPStore's protocol.
const MAGIC: u32 = 0x3C85_F7CE;
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const ADD: u8 = 4;
const WAIT: u8 = 6;
/// The longest wait for an answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(60);
/// Sets before each get of `sets`.
const SETS: usize = 1000;
const VALUE_BYTES: usize = 64;

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    /// Numbers of concurrent clients to measure with
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,8,32", value_parser = clap::value_parser!(u32).range(1..=256))]
    clients: Vec<u32>,
    /// Operations to measure, one after another; every client repeats the same one
    #[arg(
        long,
        value_name = "OPERATION,...",
        value_delimiter = ',',
        default_value = "get,wait-get,add,sets"
    )]
    operations: Vec<Operation>,
    /// Seconds to measure each operation with each number of clients
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=3600))]
    seconds: u32,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Operation {
    /// Get one key
    Get,
    /// Wait for one key, then get it: what torch's client does for `get`
    WaitGet,
    /// Add 1 to a counter that only this client uses
    Add,
    /// Set 1,000 keys without waiting for answers, then get the last: one operation
    Sets,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::WaitGet => "wait-get",
            Self::Add => "add",
            Self::Sets => "sets",
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct StoreFigures {
    operation: &'static str,
    clients: u32,
    per_second: f64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
}

impl Report for StoreFigures {
    const KIND: &'static str = "BenchStore";

    fn table(&self) -> String {
        let Self { operation, clients, per_second, p50_us, p99_us, max_us } = self;
        format!(
            "{operation:<8} {clients:>3} clients {per_second:>9.0}/s  p50 {p50_us:>6} us  p99 {p99_us:>6} us  max {max_us:>6} us\n"
        )
    }
}

impl Verb for StoreArgs {
    const KIND: Kind<Self> = Kind::Once;

    async fn run(self, globals: &Globals) -> anyhow::Result<()> {
        let mut target = Target::open(&globals.connect, &self.target).await?;
        let client = target.worker("bench-store")?;
        let options = GatewayOptions {
            namespace: "default".into(),
            job: format!("bench-{:016x}", rand::random::<u64>()),
            round: 0,
            ticket: 0,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            insecure: false,
        };
        let (ready, listens) = oneshot::channel();
        let gateway = tokio::spawn(rollout_gateway::serve(client, options, |addr| {
            let _ = ready.send(addr);
        }));
        let Ok(addr) = listens.await else {
            gateway.await??;
            bail!("the gateway ended");
        };
        let seconds = Duration::from_secs(u64::from(self.seconds));
        for &operation in &self.operations {
            for &clients in &self.clients {
                let measured =
                    tokio::task::spawn_blocking(move || measure(addr, operation, clients, seconds));
                let figures = measured.await??;
                target.check_alive()?;
                output::emit_next(globals.format, &figures)?;
            }
        }
        gateway.abort();
        target.close().await
    }
}

fn measure(
    addr: SocketAddr,
    operation: Operation,
    clients: u32,
    seconds: Duration,
) -> anyhow::Result<StoreFigures> {
    let together = Arc::new(Barrier::new(clients as usize));
    let threads: Vec<_> = (0..clients)
        .map(|number| {
            let together = together.clone();
            std::thread::spawn(move || drive(addr, operation, number, seconds, &together))
        })
        .collect();
    let mut taken = Histogram::<u64>::new(3)?;
    for thread in threads {
        let own = thread.join().map_err(|_| anyhow::anyhow!("a client ended by a panic"))?;
        taken.add(own?)?;
    }
    Ok(StoreFigures {
        operation: operation.name(),
        clients,
        per_second: taken.len() as f64 / seconds.as_secs_f64(),
        p50_us: taken.value_at_quantile(0.5),
        p99_us: taken.value_at_quantile(0.99),
        max_us: taken.max(),
    })
}

/// One client: the duration of each of its operations, in microseconds.
fn drive(
    addr: SocketAddr,
    operation: Operation,
    number: u32,
    seconds: Duration,
    together: &Barrier,
) -> anyhow::Result<Histogram<u64>> {
    let mut taken = Histogram::new(3)?;
    let prepared = prepare(addr, number);
    // The others wait for a client that failed, too.
    together.wait();
    let mut tcp = prepared?;
    let (key, counter) = (format!("key-{number:012}"), format!("count-{number:010}"));
    let mut count = tcp.add(&counter, 0)?;
    let end = Instant::now() + seconds;
    loop {
        let begun = Instant::now();
        if begun >= end {
            return Ok(taken);
        }
        let value = match operation {
            Operation::Get => tcp.get(&key)?,
            Operation::WaitGet => {
                tcp.wait(&key)?;
                tcp.get(&key)?
            }
            Operation::Add => {
                count += 1;
                let sum = tcp.add(&counter, 1)?;
                if sum != count {
                    bail!("{counter} is {sum} after {count} were added");
                }
                vec![0; VALUE_BYTES]
            }
            Operation::Sets => {
                let keys = (0..SETS).map(|n| format!("set-{number}-{n}"));
                let keys: Vec<_> = keys.collect();
                keys.iter().try_for_each(|key| tcp.set(key, &[1; VALUE_BYTES]))?;
                let value = tcp.get(&keys[SETS - 1])?;
                if value != [1; VALUE_BYTES] {
                    bail!("a get does not see the set before it");
                }
                vec![0; VALUE_BYTES]
            }
        };
        if value != [0; VALUE_BYTES] {
            bail!("{key} has another value than the one that was set");
        }
        taken.record(begun.elapsed().as_micros() as u64)?;
    }
}

fn prepare(addr: SocketAddr, number: u32) -> anyhow::Result<Tcp> {
    let mut tcp = Tcp::connect(addr)?;
    let key = format!("key-{number:012}");
    tcp.set(&key, &[0; VALUE_BYTES])?;
    tcp.get(&key)?;
    Ok(tcp)
}

/// A connection like that of torch's client.
struct Tcp(TcpStream);

impl Tcp {
    fn connect(addr: SocketAddr) -> anyhow::Result<Self> {
        let mut stream =
            TcpStream::connect(addr).with_context(|| format!("cannot reach {addr}"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.write_all(&[&[VALIDATE][..], &MAGIC.to_le_bytes()].concat())?;
        Ok(Self(stream))
    }

    fn ask(&mut self, query: u8, parts: &[&[u8]], end: &[u8]) -> anyhow::Result<()> {
        let mut bytes = vec![query];
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        bytes.extend_from_slice(end);
        Ok(self.0.write_all(&bytes)?)
    }

    fn eight(&mut self) -> anyhow::Result<[u8; 8]> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes).context("no answer")?;
        Ok(bytes)
    }

    fn set(&mut self, key: &str, value: &[u8]) -> anyhow::Result<()> {
        self.ask(SET, &[key.as_bytes(), value], &[])
    }

    fn get(&mut self, key: &str) -> anyhow::Result<Vec<u8>> {
        self.ask(GET, &[key.as_bytes()], &[])?;
        let len = u64::from_le_bytes(self.eight()?);
        let mut value = vec![0; usize::try_from(len)?];
        self.0.read_exact(&mut value)?;
        Ok(value)
    }

    fn add(&mut self, key: &str, delta: i64) -> anyhow::Result<i64> {
        self.ask(ADD, &[key.as_bytes()], &delta.to_le_bytes())?;
        Ok(i64::from_le_bytes(self.eight()?))
    }

    fn wait(&mut self, key: &str) -> anyhow::Result<()> {
        let mut bytes = vec![WAIT];
        bytes.extend(1u64.to_le_bytes());
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend_from_slice(key.as_bytes());
        self.0.write_all(&bytes)?;
        let mut byte = [0];
        self.0.read_exact(&mut byte).context("no end of a wait")?;
        if byte != [0] { bail!("a wait was canceled") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_matches_the_golden_file() {
        let report = StoreFigures {
            operation: "get",
            clients: 8,
            per_second: 12_345.6,
            p50_us: 250,
            p99_us: 900,
            max_us: 12_000,
        };
        crate::golden::report("bench-store.txt", &report);
    }
}
