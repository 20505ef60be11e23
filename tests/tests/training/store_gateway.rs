//! The port that torch's processes connect to, without torch: TCPStore's protocol, byte by byte, through gateways to
//! three members whose leader is killed halfway. `make test-torch` runs torch's own client against it.

use anyhow::{Context, Result, ensure};
use rollout_gateway::Sessions;
use rollout_proto::{Client, ClientConfig, ClientError, ErrorCode, RpcError, v1};
use rollout_recorded::check;
use rollout_tests::{Fleet, FleetOptions, Process, eventually_or_show, output, runs_as_root};
use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(180);
const MAGIC: u32 = 0x3C85_F7CE;
/// The numbers of TCPStore's requests.
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const ADD: u8 = 4;
const WAIT: u8 = 6;
const DELETE: u8 = 8;
const APPEND: u8 = 9;
const BARRIER: u8 = 18;
const STOP_WAITING: u8 = 0;

/// One connection, like that of a process of the job: it never reconnects.
struct Tcp(TcpStream);

impl Tcp {
    fn connect(addr: &str) -> Result<Self> {
        let mut stream = TcpStream::connect(addr)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(&[&[VALIDATE][..], &MAGIC.to_le_bytes()].concat())?;
        Ok(Self(stream))
    }

    fn ask(&mut self, query: u8, parts: &[&[u8]]) -> Result<()> {
        let mut bytes = vec![query];
        for part in parts {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part);
        }
        Ok(self.0.write_all(&bytes)?)
    }

    fn eight(&mut self) -> Result<[u8; 8]> {
        let mut bytes = [0; 8];
        self.0.read_exact(&mut bytes).context("an answer")?;
        Ok(bytes)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        self.ask(SET, &[key.as_bytes(), value.as_bytes()])
    }

    fn append(&mut self, key: &str, value: &str) -> Result<()> {
        self.ask(APPEND, &[key.as_bytes(), value.as_bytes()])
    }

    fn get(&mut self, key: &str) -> Result<String> {
        self.ask(GET, &[key.as_bytes()])?;
        let mut value = vec![0; u64::from_le_bytes(self.eight()?) as usize];
        self.0.read_exact(&mut value)?;
        Ok(String::from_utf8(value)?)
    }

    fn add(&mut self, key: &str, delta: i64) -> Result<i64> {
        self.ask(ADD, &[key.as_bytes()])?;
        self.0.write_all(&delta.to_le_bytes())?;
        Ok(i64::from_le_bytes(self.eight()?))
    }

    fn begin_wait(&mut self, keys: &[&str]) -> Result<()> {
        self.0.write_all(&[&[WAIT][..], &(keys.len() as u64).to_le_bytes()].concat())?;
        for key in keys {
            self.0.write_all(&(key.len() as u64).to_le_bytes())?;
            self.0.write_all(key.as_bytes())?;
        }
        Ok(())
    }

    fn begin_barrier(&mut self, key: &str, size: i64) -> Result<()> {
        self.ask(BARRIER, &[key.as_bytes()])?;
        Ok(self.0.write_all(&size.to_le_bytes())?)
    }

    fn delete(&mut self, key: &str) -> Result<bool> {
        self.ask(DELETE, &[key.as_bytes()])?;
        Ok(i64::from_le_bytes(self.eight()?) == 1)
    }

    fn released(&mut self) -> Result<bool> {
        let mut byte = [0];
        self.0.read_exact(&mut byte).context("the wait's end")?;
        Ok(byte[0] == STOP_WAITING)
    }
}

/// A request of TCPStore: its number, then keys and values, each after its length.
fn request(query: u8, parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![query];
    for part in parts {
        bytes.extend((part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The same, with the number of keys before them.
fn counted(query: u8, count: u64, parts: &[&[u8]]) -> Vec<u8> {
    let parts = request(query, parts).split_off(1);
    [&[query][..], &count.to_le_bytes(), &parts[..]].concat()
}

/// One request of each kind, and the length of its answer in bytes.
fn requests() -> Vec<(&'static str, Vec<u8>, usize)> {
    let with = |bytes: Vec<u8>, number: i64| [&bytes[..], &number.to_le_bytes()].concat();
    let nonce = 0x0403_0201_u32.to_le_bytes();
    let ping = || [&[13_u8][..], &nonce].concat();
    vec![
        ("ping", ping(), 4),
        ("set", request(SET, &[b"k", b"v"]), 0),
        ("get", request(GET, &[b"k"]), 9),
        ("get nothing", request(GET, &[b"none"]), 8),
        ("append", request(APPEND, &[b"k", b"w"]), 0),
        ("multi get", counted(10, 2, &[b"k", b"none"]), 18),
        ("multi set", counted(11, 2, &[b"a", b"1", b"b", b"2"]), 0),
        ("compare set", request(2, &[b"a", b"1", b"3"]), 9),
        ("compare set another", request(2, &[b"a", b"1", b"4"]), 9),
        ("compare set nothing", request(2, &[b"c", b"", b"5"]), 9),
        ("add", with(request(ADD, &[b"n"]), 5), 8),
        ("add less", with(request(ADD, &[b"n"]), -7), 8),
        ("check", counted(5, 2, &[b"k", b"a"]), 1),
        ("check nothing", counted(5, 2, &[b"k", b"none"]), 1),
        ("wait", counted(WAIT, 1, &[b"k"]), 1),
        ("wait and cancel", [counted(WAIT, 1, &[b"none"]), vec![12]].concat(), 1),
        ("number of keys", vec![7], 8),
        ("delete", request(DELETE, &[b"b"]), 8),
        ("delete nothing", request(DELETE, &[b"b"]), 8),
        ("list keys", vec![17], 8 + 4 * 9),
        ("push", request(14, &[b"q", b"x"]), 0),
        ("length of a queue", request(16, &[b"q"]), 8),
        ("pop", request(15, &[b"q"]), 17),
        ("pop nothing", request(15, &[b"q"]), 8),
        ("barrier", with(request(BARRIER, &[b"all"]), 1), 1),
        // No bytes of earlier answers are left over.
        ("ping again", ping(), 4),
    ]
}

/// torch's client of every version reads these answers. `ROLLOUT_REWRITE=1` rewrites the file.
#[test]
fn each_request_is_answered_with_the_bytes_that_are_kept() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let (_gateway, addr) = gateway(&fleet, "gateway", &["--listen", "127.0.0.1:0"])?;
    let mut tcp = Tcp::connect(&addr)?;
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut text = String::new();
    for (name, request, answered) in requests() {
        tcp.0.write_all(&request)?;
        let mut answer = vec![0; answered];
        tcp.0.read_exact(&mut answer).with_context(|| format!("{name}\n{text}"))?;
        text.push_str(&format!("{name}: {} -> {}\n", hex(&request), hex(&answer)));
    }
    check(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/testdata/store-gateway.txt"), &text);
    fleet.passed()
}

/// Starts a gateway of job `train`, and returns its address too.
fn gateway(fleet: &Fleet, name: &str, more: &[&str]) -> Result<(Process, String)> {
    let args = [&["store-gateway", "--job", "train"][..], more].concat();
    let process = Process::start(fleet.rollout(&args), &fleet.path(&format!("{name}.log")))?;
    let addr = eventually_or_show("the gateway listens", PATIENCE, |seen| {
        *seen = process.log_tail();
        let line = seen.lines().find(|line| line.starts_with("store of train at "))?;
        Some(line.rsplit(' ').next()?.to_owned())
    });
    Ok((process, addr))
}

#[test]
fn requests_in_progress_at_a_gateway_count_once_although_the_leader_is_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1", &["--listen", "127.0.0.1:0"])?;
    let (_two, second) = gateway(&fleet, "gateway-2", &["--listen", "127.0.0.1:0"])?;
    let (mut here, mut there) = (Tcp::connect(&first)?, Tcp::connect(&second)?);
    here.set("word", "value")?;
    ensure!(here.get("word")? == "value" && there.get("word")? == "value", "one store");
    let mut waiter = Tcp::connect(&second)?;
    waiter.begin_wait(&["go"])?;
    // Both add while the leader dies, twice: each addition is answered, and counted once.
    let adder = std::thread::spawn(move || {
        (0..200).try_fold(0, |_, _| there.add("count", 1)).map(|_| there)
    });
    for n in 1..=200 {
        if n == 50 || n == 150 {
            let leader = fleet.leader();
            fleet.member_process(&leader).kill();
            here.add("count", 1)?;
            fleet.start_member(&leader)?;
        } else {
            here.add("count", 1)?;
        }
    }
    let mut there = adder.join().ok().context("the other adder")??;
    ensure!(here.add("count", 0)? == 400 && there.add("count", 0)? == 400, "the counter is exact");
    // The leader that got the wait is dead.
    here.set("go", "now")?;
    ensure!(waiter.released()?, "a wake-up was lost");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn no_client_passes_a_barrier_before_all_are_there_though_the_leader_is_killed() -> Result<()> {
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_one, first) = gateway(&fleet, "gateway-1", &["--listen", "127.0.0.1:0"])?;
    let (_two, second) = gateway(&fleet, "gateway-2", &["--listen", "127.0.0.1:0"])?;
    let mut looks = Tcp::connect(&second)?;
    let mut waiting = Vec::new();
    for addr in [&first, &second] {
        let mut tcp = Tcp::connect(addr)?;
        tcp.begin_barrier("all", 3)?;
        waiting.push(tcp);
    }
    eventually_or_show("two have arrived", PATIENCE, |seen| {
        let arrived = looks.add("all", 0).ok()?;
        *seen = format!("{arrived} have");
        (arrived == 2).then_some(())
    });
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    ensure!(looks.add("all", 0)? == 2, "the next leader has both");
    for tcp in &waiting {
        tcp.0.set_nonblocking(true)?;
        let early = tcp.0.peek(&mut [0]).is_ok();
        ensure!(!early, "one passed before the third came");
        tcp.0.set_nonblocking(false)?;
    }
    fleet.start_member(&leader)?;
    // Kill the leader again as the third arrives: the leader asked first must not answer any more.
    let leader = fleet.leader();
    fleet.member_process(&leader).kill();
    let mut third = Tcp::connect(&first)?;
    third.begin_barrier("all", 3)?;
    waiting.push(third);
    for tcp in &mut waiting {
        ensure!(tcp.released()?, "all are there");
    }
    ensure!(looks.add("all", 0)? == 3, "each arrival counts once");
    fleet.start_member(&leader)?;
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_key_that_comes_and_goes_counts_for_a_wait_for_it_and_another() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let (_gateway, addr) = gateway(&fleet, "gateway", &["--listen", "127.0.0.1:0"])?;
    let (mut waiter, mut other) = (Tcp::connect(&addr)?, Tcp::connect(&addr)?);
    waiter.begin_wait(&["comes", "stays"])?;
    // TCPStore counts the key when it is set. Here the leader must check while the key exists; repeating makes that
    // happen.
    for _ in 0..50 {
        other.set("comes", "and goes")?;
        ensure!(other.delete("comes")?, "it was there");
    }
    other.set("stays", "here")?;
    ensure!(waiter.released()?, "the wait ends");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_get_sees_every_earlier_set_of_its_connection_though_the_leader_is_killed() -> Result<()> {
    const SETS: usize = 2000;
    let mut fleet = Fleet::start(FleetOptions::default())?;
    let (_gateway, addr) = gateway(&fleet, "gateway", &["--listen", "127.0.0.1:0"])?;
    let (mut tcp, mut other) = (Tcp::connect(&addr)?, Tcp::connect(&addr)?);
    for round in 0..3 {
        let value = |n: usize| format!("{round}-{n}");
        for n in 0..SETS {
            tcp.set("same", &value(n))?;
            tcp.set(&format!("key-{n}"), &value(n))?;
            if round == 1 && n == SETS / 2 {
                let leader = fleet.leader();
                fleet.member_process(&leader).kill();
                fleet.start_member(&leader)?;
            }
        }
        // A set without a wait may be delayed; all sets before the get are done.
        ensure!(tcp.get("same")? == value(SETS - 1), "the last of them, and no other");
        for n in [0, 1, SETS / 2, SETS - 1] {
            ensure!(tcp.get(&format!("key-{n}"))? == value(n), "key-{n} of round {round}");
        }
        ensure!(other.get("same")? == value(SETS - 1), "what was answered is for all");
    }
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_set_that_is_refused_fails_its_connection_and_no_other() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let (_gateway, addr) = gateway(&fleet, "gateway", &["--listen", "127.0.0.1:0"])?;
    let mut other = Tcp::connect(&addr)?;
    // Write a value of maximum size, and then append beyond the limit of one key.
    let mut full = Tcp::connect(&addr)?;
    let value = "x".repeat(1 << 20);
    full.append("long", &value)?;
    full.append("long", "and more")?;
    let after = full.set("after", "it").and_then(|()| full.get("after"));
    ensure!(after.is_err(), "the connection has failed: {after:?}");
    other.set("word", "value")?;
    ensure!(other.get("word")? == "value", "the other one serves");
    ensure!(other.get("long")?.len() == 1 << 20, "what was refused has changed nothing");
    // The client learns of it even without another request.
    let mut idle = Tcp::connect(&addr)?;
    idle.append("long", "and more")?;
    let end = idle.0.read(&mut [0]).map_err(|error| error.kind());
    ensure!(matches!(end, Ok(0) | Err(ErrorKind::ConnectionReset)), "it is closed: {end:?}");
    fleet.verify()?;
    fleet.passed()
}

#[test]
fn a_get_right_after_a_wait_has_the_value_of_the_wait_or_a_later_one() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let (_gateway, addr) = gateway(&fleet, "gateway", &["--listen", "127.0.0.1:0"])?;
    let (mut tcp, mut other) = (Tcp::connect(&addr)?, Tcp::connect(&addr)?);
    for n in 0..50 {
        other.set("word", &n.to_string())?;
        ensure!(other.get("word")? == n.to_string(), "it is set");
        tcp.begin_wait(&["word"])?;
        ensure!(tcp.released()? && tcp.get("word")? == n.to_string(), "as torch gets");
        // A get alone has no earlier value.
        other.set("word", "later")?;
        ensure!(other.get("word")? == "later", "it is set");
        ensure!(tcp.get("word")? == "later", "a get of its own");
    }
    // A get long after a wait has no earlier value either.
    tcp.begin_wait(&["word"])?;
    ensure!(tcp.released()?, "it is there");
    other.set("word", "much later")?;
    ensure!(other.get("word")? == "much later", "it is set");
    std::thread::sleep(Duration::from_millis(1100)); // Not a wait for a condition: the value gets this old.
    ensure!(tcp.get("word")? == "much later", "no operation of torch takes this long");
    fleet.verify()?;
    fleet.passed()
}

/// A connection of another user of this host: a new socket belongs to the thread's file system user.
fn connect_as(uid: u32, addr: &str) -> Result<Tcp> {
    let addr = addr.to_owned();
    let connect = std::thread::spawn(move || {
        // SAFETY: setfsuid(2) reads no memory.
        unsafe { libc::setfsuid(uid) };
        Tcp::connect(&addr)
    });
    connect.join().ok().context("the thread that connects")?
}

#[test]
fn another_user_of_the_host_is_not_served() -> Result<()> {
    if !runs_as_root("a connection of another user to the store gateway")? {
        return Ok(());
    }
    let fleet = Fleet::start(FleetOptions::default())?;
    let (guarded, addr) = gateway(&fleet, "gateway", &["--listen", "127.0.0.1:0"])?;
    let mut own = Tcp::connect(&addr)?;
    own.set("word", "value")?;
    ensure!(own.get("word")? == "value", "its own user");
    // The gateway may close the connection before the request is written.
    let stranger = connect_as(54_321, &addr).and_then(|mut tcp| tcp.get("word"));
    ensure!(stranger.is_err(), "{stranger:?}");
    eventually_or_show("the gateway says why", PATIENCE, |seen| {
        *seen = guarded.log_tail();
        seen.contains("uid 54321").then_some(())
    });
    let open = ["--listen", "127.0.0.1:0", "--insecure-tcpstore"];
    let (_open, addr) = gateway(&fleet, "open", &open)?;
    ensure!(connect_as(54_321, &addr)?.get("word")? == "value", "everyone");
    fleet.passed()
}

#[test]
fn a_port_that_other_hosts_reach_needs_a_flag_that_says_so() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let exposed = ["store-gateway", "--job", "train", "--listen", "0.0.0.0:0"];
    let refused = output(fleet.rollout(&exposed), PATIENCE)?;
    let stderr = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(refused.status.code() == Some(2) && stderr.contains("--insecure-tcpstore"), "{stderr}");
    let (_gateway, addr) =
        gateway(&fleet, "gateway", &["--listen", "0.0.0.0:0", "--insecure-tcpstore"])?;
    let mut tcp = Tcp::connect(&addr.replace("0.0.0.0", "127.0.0.1"))?;
    tcp.set("word", "value")?;
    ensure!(tcp.get("word")? == "value", "it serves");
    fleet.passed()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_cluster_has_forgotten_is_not_used_again() -> Result<()> {
    let fleet = Fleet::start(FleetOptions::default())?;
    let endpoints = fleet.member_names().iter().map(|m| fleet.client_addr(m).to_owned()).collect();
    let config = ClientConfig::new(endpoints, fleet.security("client", "user"));
    for waits in [false, true] {
        let sessions = Sessions::new(Client::new(config.clone())?);
        // The sessions used for a change that is refused with this code.
        let refused = async |code| {
            let asked = Mutex::new(BTreeSet::new());
            let ask = |id: v1::RequestId| {
                asked.lock().expect("no panic holds it").insert(id.session);
                async move { Err::<(), ClientError>(RpcError::new(code, "no").into()) }
            };
            let answer = match waits {
                true => sessions.change_until_answered(ask).await,
                false => sessions.change(ask).await,
            };
            ensure!(answer.is_err(), "no other answer came");
            Ok::<_, anyhow::Error>(asked.into_inner()?)
        };
        let first = refused(ErrorCode::CheckpointConflict).await?;
        ensure!(first.len() == 1, "{first:?}");
        // A refusal does not end the session. If the session is unknown, the change is sent once more in a new one.
        let unknown = refused(ErrorCode::SessionUnknown).await?;
        ensure!(unknown.len() == 2 && unknown.is_superset(&first), "{first:?}, {unknown:?}");
        let next = refused(ErrorCode::CheckpointConflict).await?;
        ensure!(next.is_disjoint(&unknown), "one that is unknown came again: {next:?}");
    }
    fleet.passed()
}
