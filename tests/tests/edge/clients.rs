//! Clients that take as much as they can, read nothing, or send invalid requests: members refuse them or wait for
//! them within bounds, no member dies of them, and well-behaved clients are served.

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use rollout_proto::pki::{self, IssueRequest};
use rollout_proto::{
    BytesCodec, ChannelOptions, ClientTls, DialMap, Endpoint, ErrorCode, Role, RpcError, channel,
    server_name, v1,
};
use rollout_tests::{Batch, Fleet, FleetOptions, WorkerOptions, eventually};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::transport::Channel;
use tonic::{Request, Status};

const USER: (&str, &str) = ("client", "user");
const ADMIN: (&str, &str) = ("admin", "operator");
const PATIENCE: Duration = Duration::from_secs(120);

fn dial(fleet: &Fleet, member: &str, role: &str, name: &str) -> Result<Channel> {
    let tls = ClientTls::load(&fleet.security(role, name))?;
    let endpoint = Endpoint::with_name(member, fleet.client_addr(member))?;
    Ok(channel(&endpoint, &tls, &DialMap::default(), &ChannelOptions::default())?)
}

/// A connection after its TLS handshake, with a certificate of the fleet, on which nothing was sent yet.
async fn tls(
    fleet: &Fleet,
    (role, name): (&str, &str),
    addr: &str,
) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> {
    let tls = ClientTls::load(&fleet.security(role, name))?;
    let connector = tls.connector().context("a fleet has TLS")?;
    Ok(connector.connect(server_name(addr)?, TcpStream::connect(addr).await?).await?)
}

/// The same, once the member has sent something: a refusal comes after the client's end of the handshake.
async fn let_in(
    fleet: &Fleet,
    (role, name): (&str, &str),
    addr: &str,
) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static> {
    let mut stream = tls(fleet, (role, name), addr).await?;
    tokio::time::timeout(PATIENCE, stream.read_exact(&mut [0])).await??;
    Ok(stream)
}

/// Raises this process's limit of open files: it plays many clients.
fn many_files() -> Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: both calls get a valid pointer to a local.
    let set = unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit)
    };
    ensure!(set == 0, "the limit of open files cannot be raised");
    Ok(limit.rlim_cur)
}

/// Checks that every member is alive, and that all have the same state.
fn unharmed(fleet: &mut Fleet) -> Result<()> {
    for name in fleet.member_names() {
        ensure!(fleet.member_process(&name).runs(), "{name} died{}", fleet.logs());
    }
    fleet.verify()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_beyond_the_open_files_are_refused_and_the_member_lives() -> Result<()> {
    many_files()?;
    let options = FleetOptions { open_files: Some(512), ..FleetOptions::default() };
    let mut fleet = Fleet::start(options)?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut batch = Batch::submit(&fleet, "crowded", 4000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    let leader = fleet.leader();
    let addr = fleet.client_addr(&leader).to_owned();
    // Open more silent connections than the member may have files.
    let mut silent = Vec::new();
    for _ in 0..900 {
        silent.extend(TcpStream::connect(&addr).await.ok());
    }
    let log = fleet.member_process(&leader).log.clone();
    let text = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the crowd is refused", PATIENCE, || {
        text().contains("too many connections").then_some(())
    });
    drop(silent);
    // Do the same at the probe port; probes are answered again before a supervisor gives up.
    let http = fleet.http_addr(&leader).to_owned();
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.extend(TcpStream::connect(&http).await.ok());
    }
    eventually("a probe is answered though the crowd stays", Duration::from_secs(30), || {
        fleet.http(&leader, "/healthz").is_ok_and(|(status, _)| status == 200).then_some(())
    });
    drop(silent);
    // Callers with a good certificate may be too many as well. Accepted ones stay.
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..400 {
        match let_in(&fleet, USER, &addr).await {
            Ok(stream) => held.push(stream),
            Err(_) => refused += 1,
        }
    }
    ensure!(held.len() < 256 && refused > 100, "{} held, {refused} refused", held.len());
    // All of them have one identity, which gets at most half of the places: another identity still gets one.
    let_in(&fleet, ADMIN, &addr).await.context("another identity than the crowd's")?;
    let taken = held.len();
    drop(held);
    eventually("there is room again", PATIENCE, || {
        let again = async { let_in(&fleet, USER, &addr).await.ok() };
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(again))
    });
    ensure!(!text().contains("Too many open files"), "it ran out of files: {}", text());
    println!("512 open files: {taken} connections taken, {refused} refused");
    batch.finish(&fleet)?;
    unharmed(&mut fleet)?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_never_read_cost_a_bounded_amount_and_delay_no_other() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut first = Batch::submit(&fleet, "first", 3000, "")?;
    first.finish(&fleet)?;
    let leader = fleet.leader();
    let before = resident(&fleet, &leader)?;
    let mut channels = Vec::new();
    let mut unread = Vec::new();
    for _ in 0..8 {
        let channel = dial(&fleet, &leader, "client", "user")?;
        let mut runs = v1::runs_client::RunsClient::new(channel.clone());
        let mut events = v1::events_client::EventsClient::new(channel.clone());
        for _ in 0..8 {
            let results = v1::ReadResultsRequest { run: 1, ..Default::default() };
            unread.push(Unread::Results(runs.read_results(results).await?.into_inner()));
            let name = "first".to_owned();
            let watch = v1::WatchRunRequest { name, interval_ms: 50, ..Default::default() };
            unread.push(Unread::Run(runs.watch_run(watch).await?.into_inner()));
            let all = v1::WatchEventsRequest {
                start: v1::EventStart::Oldest.into(),
                follow: true,
                ..Default::default()
            };
            // Readers of events have a bound of their own; more are refused.
            match events.watch_events(all).await {
                Ok(stream) => unread.push(Unread::Events(stream.into_inner())),
                Err(status) => ensure!(
                    RpcError::from_status(&status).code == ErrorCode::Overloaded,
                    "{status}"
                ),
            }
        }
        channels.push(channel);
    }
    ensure!(unread.len() >= 128, "{}", unread.len());
    // Users and workers continue as if these clients did not exist.
    let mut second = Batch::submit(&fleet, "second", 6000, "")?;
    second.finish(&fleet)?;
    let after = resident(&fleet, &leader)?;
    let most = 256 << 20;
    ensure!(after < before + most, "{before} bytes before, {after} with those who do not read");
    println!("resident: {before} bytes before, {after} with {} streams unread", unread.len());
    drop(unread);
    drop(channels);
    unharmed(&mut fleet)?;
    fleet.passed()
}

/// A stream that is kept and not read.
#[allow(dead_code)]
enum Unread {
    Results(tonic::Streaming<v1::ReadResultsResponse>),
    Run(tonic::Streaming<v1::WatchRunResponse>),
    Events(tonic::Streaming<v1::WatchEventsResponse>),
}

fn resident(fleet: &Fleet, member: &str) -> Result<u64> {
    let status = fleet.ctl_json(&["status"])?;
    let members = status["members"].as_array().context("members")?;
    let member = members.iter().find(|m| m["name"] == member).context("the member")?;
    Ok(member["says"]["residentBytes"].as_str().context("resident bytes")?.parse()?)
}

async fn send(channel: &Channel, path: &'static str, body: Bytes) -> Result<Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await?;
    let path = http_path(path);
    let answer =
        tokio::time::timeout(PATIENCE, grpc.unary(Request::new(body), path, BytesCodec)).await?;
    answer.err().context("what is no request was taken")
}

fn http_path(path: &'static str) -> tonic::codegen::http::uri::PathAndQuery {
    tonic::codegen::http::uri::PathAndQuery::from_static(path)
}

/// Pseudorandom bytes, the same ones in every run.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(step).take(len).collect()
}

/// Far more than the limit of a message, a header or a record.
const HUGE: usize = 100 << 20;

/// Checks that a far too large request is refused for its size, or cut off while it is still being sent: the refusal
/// may overtake the rest, and then the stream is reset.
async fn huge_is_refused(channel: &Channel, path: &'static str) -> Result<()> {
    let status = send(channel, path, Bytes::from(vec![0x0a; HUGE])).await.context(path)?;
    let code = RpcError::from_status(&status).code;
    let refused = matches!(code, ErrorCode::LimitExceeded | ErrorCode::UnsupportedVersion);
    ensure!(refused || code == ErrorCode::ConnectFailed, "{path}: {status}");
    println!("{path}: {code:?}, {status}");
    Ok(())
}

/// Sends `head` and then as much data without TLS: the member does not read to the end, and closes the connection.
async fn pour(addr: &str, head: &[u8]) -> Result<()> {
    let mut stream = TcpStream::connect(addr).await?;
    let part = vec![b'a'; 1 << 20];
    let poured = async {
        stream.write_all(head).await?;
        for _ in 0..HUGE / part.len() {
            stream.write_all(&part).await?;
        }
        stream.flush().await
    };
    let sent = tokio::time::timeout(PATIENCE, poured).await;
    let sent = sent.with_context(|| format!("{addr} neither reads nor closes"))?;
    ensure!(sent.is_err(), "{addr} took all of what is no request");
    Ok(())
}

/// The most memory that a process has had so far, in bytes.
fn peak_bytes(pid: u32) -> Result<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<usize>()? << 10)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hundred_megabytes_are_refused_without_a_certificate_and_never_kept() -> Result<()> {
    let options = FleetOptions { enrollment_lifetime_s: Some(3600), ..FleetOptions::default() };
    let mut fleet = Fleet::start(options)?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    Batch::submit(&fleet, "before", 500, "")?.finish(&fleet)?;
    let leader = fleet.leader();
    let pid = fleet.member_process(&leader).pid();
    let before = peak_bytes(pid)?;
    let enrollment = fleet.enrollment_addr(&leader).to_owned();
    let http = fleet.http_addr(&leader).to_owned();
    for addr in
        [fleet.client_addr(&leader), fleet.peer_addr(&leader), enrollment.as_str(), http.as_str()]
    {
        pour(addr, b"").await?;
    }
    pour(&http, b"GET /healthz HTTP/1.1\r\nx: ").await?;
    let pins = pki::authority_pins(&fleet.path("tls").join("ca.pem"))?;
    let unenrolled = ClientTls::pinned(&pins)?;
    let dialed = || {
        let options = ChannelOptions::default();
        channel(&Endpoint::seed(&enrollment)?, &unenrolled, &DialMap::default(), &options)
            .map_err(anyhow::Error::from)
    };
    huge_is_refused(&dialed()?, "/rollout.v1.Enrolment/Enrol").await?;
    // The next client with an invalid request gets an error that says so.
    let status = send(&dialed()?, "/rollout.v1.Enrolment/Enrol", noise(3, 300).into()).await?;
    let code = RpcError::from_status(&status).code;
    ensure!(code != ErrorCode::ConnectFailed, "{status}");
    let after = peak_bytes(pid)?;
    ensure!(after < before + HUGE, "{before} bytes at most before, {after} with what was refused");
    println!("the leader's peak: {before} bytes before, {after} after");
    let (status, said) = fleet.http(&leader, "/healthz")?;
    ensure!(status == 200, "{status}: {said}");
    Batch::submit(&fleet, "after", 500, "")?.finish(&fleet)?;
    unharmed(&mut fleet)?;
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_and_a_hundred_megabytes_are_refused_on_every_port() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let mut batch = Batch::submit(&fleet, "meanwhile", 4000, "")?;
    batch.until(&fleet, "rows are done", |c| c.done >= 100);
    let leader = fleet.leader();
    let ports = [
        fleet.client_addr(&leader).to_owned(),
        fleet.peer_addr(&leader).to_owned(),
        fleet.http_addr(&leader).to_owned(),
    ];
    // Before any handshake: noise, the request of a browser, the beginning of HTTP/2 without TLS.
    for (n, addr) in ports.iter().enumerate() {
        for words in [
            noise(n as u64 + 1, 1 << 16),
            b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
            vec![0x16, 0x03, 0x01, 0xff, 0xff, 1, 0xff, 0xff, 0xff],
        ] {
            let mut stream = TcpStream::connect(addr).await?;
            // The member may close the connection while this is still being sent.
            let _ = stream.write_all(&words).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await;
            ensure!(read.is_ok(), "{addr} neither answers nor closes");
        }
    }
    // After the handshake: noise, a frame of maximum length, a stream of settings.
    for addr in &ports[..2] {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let endless = [&preface[..], &settings.repeat(20_000)].concat();
        let long =
            [&preface[..], &settings, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1], &noise(7, 1 << 16)];
        for words in [noise(9, 1 << 16), long.concat(), endless] {
            let mut stream = tls(&fleet, USER, addr).await?;
            let _ = stream.write_all(&words).await;
            let _ = stream.shutdown().await;
            let mut answer = Vec::new();
            let read = stream.read_to_end(&mut answer);
            ensure!(tokio::time::timeout(PATIENCE, read).await.is_ok(), "{addr} holds on");
        }
    }
    // As requests: noise, and far too large messages.
    let channel = dial(&fleet, &leader, "client", "user")?;
    for path in ["/rollout.v1.Runs/CreateRun", "/rollout.v1.Store/Apply", "/rollout.v1.Runs/X"] {
        for seed in 1..20 {
            let status = send(&channel, path, noise(seed, 300 * seed as usize).into()).await?;
            let code = RpcError::from_status(&status).code;
            ensure!(code != ErrorCode::ConnectFailed, "{path}: {status}");
        }
        huge_is_refused(&channel, path).await?;
    }
    let mut cluster = v1::cluster_client::ClusterClient::new(channel);
    cluster
        .status(v1::StatusRequest::default())
        .await
        .context("the same caller is served afterward")?;
    let leads = fleet.counted(&leader, "rollout_raft_is_leader");
    ensure!(leads == Some(1), "the leader is another");
    batch.finish(&fleet)?;
    unharmed(&mut fleet)?;
    fleet.passed()
}

const IDLE_WORKERS: usize = 1000;

/// One session of an idle worker: it pulls, and sends heartbeats.
struct Idle {
    channel: Channel,
    session: u64,
    epoch: u64,
    heartbeat: Duration,
}

impl Idle {
    async fn register(fleet: &Fleet, leader: &str, number: usize) -> Result<Self> {
        let name = format!("idle-{number}");
        let request = IssueRequest {
            role: Role::Worker,
            name: name.clone(),
            namespaces: Vec::new(),
            dns_names: Vec::new(),
            ip_addrs: vec![[127, 0, 0, 1].into()],
            days: 1,
        };
        pki::issue(&fleet.path("ca"), &request, &fleet.path("tls"))?;
        let channel = dial(fleet, leader, "worker", &name)?;
        let slot = v1::SlotOffer {
            models: vec!["nobody/asks-for-it".into()],
            tasks: vec!["generate".into()],
            engine: "mock".into(),
            ..Default::default()
        };
        let register = v1::RegisterRequest {
            name,
            instance: 1,
            slots: vec![slot],
            address: "127.0.0.1:1".into(),
            ..Default::default()
        };
        let mut worker = v1::worker_client::WorkerClient::new(channel.clone());
        let answer = worker.register(register).await?.into_inner();
        let epoch = answer.header.context("a header")?.coord_epoch;
        let heartbeat = Duration::from_millis(answer.heartbeat_ms.max(50).into());
        Ok(Self { channel, session: answer.session, epoch, heartbeat })
    }

    fn message(&self, kind: v1::worker_message::Kind) -> v1::WorkerMessage {
        let (session, coord_epoch) = (self.session, self.epoch);
        v1::WorkerMessage { session, coord_epoch, kind: Some(kind), instance: 1 }
    }

    /// Pulls once and sends heartbeats until stopped; counts the answers.
    async fn idle(self, answered: Arc<AtomicU64>) -> Result<()> {
        let (out, queue) = tokio::sync::mpsc::channel(4);
        let mut worker = v1::worker_client::WorkerClient::new(self.channel.clone());
        let queue = tokio_stream::wrappers::ReceiverStream::new(queue);
        let pull = v1::Exchange { seq: 1, credit_rows: 8, ..Default::default() };
        out.send(self.message(v1::worker_message::Kind::Exchange(pull))).await?;
        let mut answers = worker.work(queue).await?.into_inner();
        let mut beat = tokio::time::interval(self.heartbeat);
        let mut seq = 0;
        loop {
            tokio::select! {
                _ = beat.tick() => {
                    seq += 1;
                    let heartbeat = v1::Heartbeat { seq, ..Default::default() };
                    out.send(self.message(v1::worker_message::Kind::Heartbeat(heartbeat))).await?;
                }
                answer = answers.message() => {
                    answer?.context("the stream ended")?;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_idle_workers_leave_a_cluster_that_serves_the_one_that_works() -> Result<()> {
    let files = many_files()?;
    ensure!(files > 4 * IDLE_WORKERS as u64, "{files} open files are too few for this test");
    // Long timeouts: a session that is late on a busy machine is no bug of the member.
    let lines = vec![("worker", "failure_ms = 30000"), ("worker", "self_fence_ms = 20000")];
    let mut fleet = Fleet::start(FleetOptions { member_lines: lines, ..Default::default() })?;
    fleet.start_worker("w1", &WorkerOptions::default())?;
    let leader = fleet.leader();
    let answered = Arc::new(AtomicU64::new(0));
    let mut idle = tokio::task::JoinSet::new();
    for n in (0..IDLE_WORKERS).step_by(4) {
        // Four at a time share the fsyncs.
        let register = |n| Box::pin(Idle::register(&fleet, &leader, n));
        let four =
            tokio::try_join!(register(n), register(n + 1), register(n + 2), register(n + 3))?;
        for one in <[Idle; 4]>::from(four) {
            idle.spawn(one.idle(answered.clone()));
        }
    }
    let resident_bytes = resident(&fleet, &leader)?;
    // Two heartbeats of each session are answered while the working one gets its rows.
    let mut batch = Batch::submit(&fleet, "among-many", 4000, "")?;
    let begun = (Instant::now(), answered.load(Ordering::Relaxed));
    batch.until(&fleet, "rows are done", |c| c.done >= 1000);
    eventually("all of them are heard", PATIENCE, || {
        (answered.load(Ordering::Relaxed) > begun.1 + 2 * IDLE_WORKERS as u64).then_some(())
    });
    batch.finish(&fleet)?;
    let status = fleet.ctl_json(&["status"])?;
    ensure!(status["workersReady"] == IDLE_WORKERS + 1, "{status}");
    if let Some(ended) = idle.try_join_next() {
        ended??;
        anyhow::bail!("a session ended");
    }
    println!(
        "{IDLE_WORKERS} idle workers: {resident_bytes} bytes resident at the leader, {} answers in {:?}",
        answered.load(Ordering::Relaxed) - begun.1,
        begun.0.elapsed()
    );
    idle.abort_all();
    unharmed(&mut fleet)?;
    fleet.passed()
}
