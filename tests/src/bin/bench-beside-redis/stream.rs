//! The load on a Redis stream: a consumer group whose workers claim entries and acknowledge them.
//!
//! *Invariant:* an item counts once its XACK was answered. A worker sends the acknowledgment of one claim together
//! with the next claim, in one round trip, as a worker of rollout does.

use crate::{Figures, check_version};
use anyhow::{Context, Result, bail, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Client, Value, cmd, pipe};
use rollout_tests::{Process, free_addr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WARMUP: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(60);
/// Entries added to the stream in one round trip.
const ADD_BATCH: u64 = 10_000;
/// Upper bounds of items per second by batch size. They decide how many entries the stream starts with.
const FASTEST: [(u32, u64); 3] = [(1, 250_000), (32, 400_000), (4096, 800_000)];

/// What all workers have acknowledged, and whether they should stop.
struct Progress {
    done: AtomicU64,
    over: AtomicBool,
}

/// Starts a server in a directory of its own, and measures it.
pub(crate) fn measure(workers: u32, batch: u32, time: Duration) -> Result<Figures> {
    let said = Command::new("redis-server").arg("--version").output();
    let said = said.context("no redis-server in PATH: apt-get install redis-server")?;
    check_version(&String::from_utf8_lossy(&said.stdout))?;
    let dir = tempfile::tempdir()?;
    let addr = free_addr()?;
    let mut server = start(dir.path(), &addr)?;
    let runtime = tokio::runtime::Runtime::new()?;
    let figures = runtime.block_on(run(&addr, server.pid(), workers, batch, time))?;
    server.kill();
    Ok(figures)
}

fn start(dir: &Path, addr: &str) -> Result<Process> {
    let (host, port) = addr.split_once(':').context("an address has a port")?;
    let mut command = Command::new("redis-server");
    command.args(["--bind", host, "--port", port, "--dir"]).arg(dir);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
    // Disable rewriting the file, which would only slow Redis down.
    command.args(["--auto-aof-rewrite-percentage", "0"]);
    Process::start(command, &dir.join("log"))
}

async fn run(addr: &str, pid: u32, workers: u32, batch: u32, time: Duration) -> Result<Figures> {
    let client = Client::open(format!("redis://{addr}/"))?;
    fill(&client, entries(batch, time)).await?;
    let progress = Arc::new(Progress { done: AtomicU64::new(0), over: AtomicBool::new(false) });
    let mut running = tokio::task::JoinSet::new();
    for worker in 0..workers {
        let connection = client.get_multiplexed_async_connection().await?;
        running.spawn(work(connection, worker, batch, progress.clone()));
    }
    tokio::time::sleep(WARMUP).await; // Not a wait for a condition: this time is not measured.
    let reading = || Ok::<_, anyhow::Error>((cpu_us(pid)?, cpu_us(std::process::id())?));
    let (start, done, before) = (Instant::now(), progress.done.load(Ordering::Relaxed), reading()?);
    tokio::time::sleep(time).await;
    let (seconds, after) = (start.elapsed().as_secs_f64(), reading()?);
    let items = progress.done.load(Ordering::Relaxed) - done;
    progress.over.store(true, Ordering::Relaxed);
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    ensure!(items > 0, "no item was acknowledged");
    Ok(Figures {
        items_per_second: items as f64 / seconds,
        server_cpu_us: (after.0 - before.0) as f64 / items as f64,
        generator_cpu_us: (after.1 - before.1) as f64 / items as f64,
    })
}

fn entries(batch: u32, time: Duration) -> u64 {
    let fastest = FASTEST.iter().find(|(max, _)| batch <= *max).map_or(800_000, |(_, rate)| *rate);
    fastest * (WARMUP + time).as_secs()
}

async fn fill(client: &Client, entries: u64) -> Result<()> {
    let begun = Instant::now();
    let mut connection = loop {
        match client.get_multiplexed_async_connection().await {
            Ok(connection) => break connection,
            Err(e) if begun.elapsed() > PATIENCE => return Err(e.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    connection.set_response_timeout(PATIENCE);
    let group = ["CREATE", "s", "g", "0", "MKSTREAM"];
    cmd("XGROUP").arg(&group).query_async::<()>(&mut connection).await?;
    for _ in 0..entries.div_ceil(ADD_BATCH) {
        let mut adds = pipe();
        for _ in 0..ADD_BATCH {
            adds.cmd("XADD").arg(&["s", "*", "r", "1"]).ignore();
        }
        adds.query_async::<()>(&mut connection).await?;
    }
    Ok(())
}

async fn work(
    mut connection: MultiplexedConnection,
    worker: u32,
    batch: u32,
    progress: Arc<Progress>,
) -> Result<()> {
    connection.set_response_timeout(PATIENCE);
    let consumer = format!("w{worker}");
    let mut held: Vec<Vec<u8>> = Vec::new();
    while !progress.over.load(Ordering::Relaxed) {
        let mut exchange = pipe();
        if !held.is_empty() {
            exchange.cmd("XACK").arg("s").arg("g").arg(&held);
        }
        exchange.cmd("XREADGROUP").arg(&["GROUP", "g", &consumer, "COUNT"]).arg(batch);
        exchange.arg(&["STREAMS", "s", ">"]);
        let mut answers: Vec<Value> = exchange.query_async(&mut connection).await?;
        let claimed = ids(answers.pop().context("no answer to a claim")?)?;
        if let Some(acknowledged) = answers.pop() {
            ensure!(acknowledged == Value::Int(held.len() as i64), "XACK: {acknowledged:?}");
            progress.done.fetch_add(held.len() as u64, Ordering::Relaxed);
        }
        held = claimed;
    }
    Ok(())
}

/// The entries' ids in the answer to XREADGROUP of one stream: `[[name, [[id, fields], ...]]]`.
fn ids(answer: Value) -> Result<Vec<Vec<u8>>> {
    let Value::Array(mut streams) = answer else {
        bail!("the stream ran out of entries: {answer:?}")
    };
    let Some(Value::Array(mut stream)) = streams.pop() else { bail!("no stream in the answer") };
    let Some(Value::Array(entries)) = stream.pop() else { bail!("no entries in the answer") };
    let id = |entry| match entry {
        Value::Array(mut entry) if !entry.is_empty() => match entry.swap_remove(0) {
            Value::BulkString(id) => Ok(id),
            other => bail!("not an id: {other:?}"),
        },
        other => bail!("not an entry: {other:?}"),
    };
    entries.into_iter().map(id).collect()
}

/// Processor time of a process so far, user and system.
fn cpu_us(pid: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(") ").context("no name in stat")?.1;
    let ticks = |at: usize| fields.split(' ').nth(at).and_then(|t| t.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("no processor time in stat")?;
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
    Ok((user + system) * 1_000_000 / per_second.max(1))
}
