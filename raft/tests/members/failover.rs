//! Each member is a process of its own, killed with SIGKILL: measures the time until another member leads, and checks
//! that nothing acknowledged is lost.

use std::collections::HashSet;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{
    LIMIT, certificates, config, free_port, logging, open_clients, open_epoch, sessions,
};
use rollout_ledger::id::SessionId;
use rollout_ledger::limits::CLIENTS_MAX;
use rollout_proto::{Security, ServerTls, TlsFiles};
use rollout_raft::{Leadership, MemberRecord, Node, ProposeError};

/// Set in a child: the directory of everything, the member's name and its port.
const CHILD: &str = "ROLLOUT_TEST_MEMBER";
const NAMES: [&str; 3] = ["a", "b", "c"];

/// Not a separate test: the body of a child process.
#[test]
fn member_process() {
    let Ok(args) = std::env::var(CHILD) else { return };
    let [dir, name, ports] = args.splitn(3, '|').collect::<Vec<_>>()[..] else { panic!("{args}") };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(serve(Path::new(dir), name, ports));
}

fn security(dir: &Path, name: &str) -> Security {
    let dir = dir.join(name);
    Security::Mtls(TlsFiles {
        ca: dir.join("ca.pem"),
        cert: dir.join(format!("member-{name}.pem")),
        key: dir.join(format!("member-{name}.key")),
    })
}

/// Runs a member and prints on stdout when it leads; forms the cluster when it reads a line, then proposes forever.
async fn serve(dir: &Path, name: &str, ports: &str) {
    logging();
    let ports: Vec<u16> = ports.split(',').map(|port| port.parse().expect("a port")).collect();
    let me = NAMES.iter().position(|other| *other == name).expect("a name");
    let security = security(dir, name);
    let config = config(dir.join(format!("data-{name}")), name, security.clone());
    let node = Node::open(config).await.expect("opens");
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", ports[me])).await.expect("a port");
    let incoming = ServerTls::load(&security).expect("certificates").incoming(listener);
    let server = tonic::transport::Server::builder().add_service(node.peer_service());
    node.runtime().spawn(server.serve_with_incoming(incoming));
    print(&format!("up {name}"));
    let forming = node.clone();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            match line.as_str() {
                "form" => {
                    let formed = forming.runtime().block_on(forming.bootstrap(records(&ports)));
                    formed.expect("a cluster");
                }
                "pause" => PAUSED.store(true, Ordering::Relaxed),
                "state" => print(&state(&forming)),
                other => match other.strip_prefix("has ") {
                    Some(list) => print(&format!("lacks {}", lacking(&forming, list))),
                    None => panic!("{other}"),
                },
            }
        }
        // The parent is gone.
        std::process::exit(0);
    });
    let mut leadership = node.leadership();
    loop {
        let now = leadership.borrow_and_update().clone();
        if let Leadership::Leader { .. } = now {
            lead(&node).await;
        }
        leadership.changed().await.expect("running");
    }
}

/// Set when the parent wants to compare the members.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// The position of the ledger, its chain and its digest.
fn state(node: &Node) -> String {
    let read =
        node.with_ledger(|ledger| (ledger.applied().index, ledger.chain(), ledger.state_digest()));
    let (index, chain, digest) = read.expect("a member");
    let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("state {index}:{}:{}", hex(chain), hex(digest))
}

/// Those of a list of sessions that the ledger does not have.
fn lacking(node: &Node, list: &str) -> String {
    let session = |text: &str| SessionId(text.parse().expect("a session"));
    let lacking = node.with_ledger(|ledger| {
        let lacking = list.split(',').filter(|text| ledger.client_holder(session(text)).is_none());
        lacking.collect::<Vec<_>>().join(",")
    });
    lacking.expect("a member")
}

/// Opens dispatch and writes until leadership is lost.
async fn lead(node: &Node) {
    let Ok(epoch) = node.barrier().await else { return };
    if node.propose(epoch, open_epoch(epoch)).await.is_err() {
        return;
    }
    print(&format!("leads {epoch}"));
    for count in 0.. {
        while PAUSED.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let command = open_clients(epoch, &[format!("{epoch}-{count}")]);
        match node.propose(epoch, command).await {
            Ok((index, replies)) => match sessions(&replies)[..] {
                [session] => print(&format!("done {index} {}", session.0)),
                _ => return,
            },
            // Out of touch for a moment, and leading still.
            Err(ProposeError::NotLeader { leader: None })
                if *node.leadership().borrow() == (Leadership::Leader { term: epoch }) => {}
            Err(_) => return,
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn print(line: &str) {
    let mut out = std::io::stdout().lock();
    // A parent that is gone hears nothing; the child ends with its stdin.
    drop(writeln!(out, "{line}").and_then(|()| out.flush()));
}

fn records(ports: &[u16]) -> Vec<MemberRecord> {
    let record = |(name, port): (&&str, &u16)| MemberRecord {
        name: (*name).to_owned(),
        peer_addr: format!("127.0.0.1:{port}"),
        client_addr: format!("127.0.0.1:{port}"),
        ..MemberRecord::default()
    };
    NAMES.iter().zip(ports).map(record).collect()
}

struct Process {
    child: Child,
    stdin: ChildStdin,
}

enum ProcessReport {
    Up,
    Leads(usize, u64),
    /// The index of a command, and the session that it opened.
    Done(u64, u64),
    State(usize, String),
    /// The sessions that a member does not have.
    Lacks(usize, String),
}

struct Processes {
    running: Vec<Option<Process>>,
    said: std::sync::mpsc::Receiver<ProcessReport>,
    sender: std::sync::mpsc::Sender<ProcessReport>,
    dir: tempfile::TempDir,
    ports: String,
    acknowledged: HashSet<u64>,
    /// The sessions that were opened, the latest last.
    sessions: Vec<u64>,
}

impl Processes {
    fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        certificates(dir.path(), &NAMES);
        let ports = NAMES.map(|_| free_port().to_string()).join(",");
        let (sender, said) = std::sync::mpsc::channel();
        let running = vec![None, None, None];
        let (acknowledged, sessions) = (HashSet::new(), Vec::new());
        let mut all = Self { running, said, sender, dir, ports, acknowledged, sessions };
        (0..3).for_each(|at| all.spawn(at));
        (0..3).for_each(|_| assert!(matches!(all.next(), ProcessReport::Up)));
        let first = all.running[0].as_mut().expect("running");
        writeln!(first.stdin, "form").expect("it reads");
        all
    }

    fn spawn(&mut self, at: usize) {
        let args = format!("{}|{}|{}", self.dir.path().display(), NAMES[at], self.ports);
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["failover::member_process", "--exact", "--nocapture", "--test-threads=1"])
            .env(CHILD, args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let stdin = child.stdin.take().expect("piped");
        let out = child.stdout.take().expect("piped");
        let sender = self.sender.clone();
        std::thread::spawn(move || listen(at, out, &sender));
        self.running[at] = Some(Process { child, stdin });
    }

    fn next(&mut self) -> ProcessReport {
        let said = self.said.recv_timeout(LIMIT).expect("a member says something");
        if let ProcessReport::Done(index, session) = said {
            // A lost entry's index would be given to another command.
            assert!(self.acknowledged.insert(index), "an index was acknowledged twice: {index}");
            self.sessions.push(session);
        }
        said
    }

    /// The next member that leads, after `term`.
    fn leader(&mut self, term: u64) -> (usize, u64) {
        loop {
            if let ProcessReport::Leads(at, epoch) = self.next() {
                assert!(epoch > term, "terms grow");
                return (at, epoch);
            }
        }
    }

    /// Waits for a few acknowledged commands.
    fn work(&mut self, count: usize) {
        let mut done = 0;
        while done < count {
            done += usize::from(matches!(self.next(), ProcessReport::Done(..)));
        }
    }

    fn send(&mut self, what: &str) {
        for process in self.running.iter_mut().flatten() {
            writeln!(process.stdin, "{what}").expect("it reads");
        }
    }

    /// Stops the writing and waits until all members have the same state, with all that was acknowledged in it.
    fn agree(&mut self) {
        self.send("pause");
        let start = Instant::now();
        loop {
            self.send("state");
            let mut states = vec![String::new(); 3];
            while states.iter().any(String::is_empty) {
                if let ProcessReport::State(at, state) = self.next() {
                    states[at] = state;
                }
            }
            if states.iter().all(|state| *state == states[0]) {
                return self.nothing_is_lost();
            }
            assert!(start.elapsed() < LIMIT, "the members differ: {states:?}");
        }
    }

    /// Every member has every session that was acknowledged, as far back as a ledger remembers them.
    fn nothing_is_lost(&mut self) {
        let remembered = self.sessions.len().saturating_sub(CLIENTS_MAX / 2);
        let list: Vec<String> = self.sessions[remembered..].iter().map(u64::to_string).collect();
        assert!(!list.is_empty(), "nothing was acknowledged");
        self.send(&format!("has {}", list.join(",")));
        let mut answers = HashSet::new();
        while answers.len() < 3 {
            if let ProcessReport::Lacks(at, lacking) = self.next() {
                assert_eq!(lacking, "", "member {at} lost acknowledged sessions");
                answers.insert(at);
            }
        }
    }

    fn signal(&self, at: usize, signal: &str) {
        let id = self.running[at].as_ref().expect("running").child.id().to_string();
        let sent = Command::new("kill").args([signal, &id]).status().expect("kill runs");
        assert!(sent.success());
    }

    fn kill(&mut self, at: usize) {
        let mut process = self.running[at].take().expect("running");
        process.child.kill().expect("SIGKILL");
        process.child.wait().expect("it ends");
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for mut process in self.running.iter_mut().filter_map(Option::take) {
            drop(process.child.kill());
            drop(process.child.wait());
        }
    }
}

fn listen(at: usize, out: ChildStdout, said: &std::sync::mpsc::Sender<ProcessReport>) {
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        let number = |text: &str| text.trim().parse::<u64>().expect("a number");
        // The test harness writes to the same pipe, sometimes before us on the same line.
        let told = if let Some((_, epoch)) = line.split_once("leads ") {
            ProcessReport::Leads(at, number(epoch))
        } else if let Some((_, done)) = line.split_once("done ") {
            let (index, session) = done.split_once(' ').expect("an index and a session");
            ProcessReport::Done(number(index), number(session))
        } else if let Some((_, lacking)) = line.split_once("lacks ") {
            ProcessReport::Lacks(at, lacking.trim().to_owned())
        } else if let Some((_, state)) = line.split_once("state ") {
            ProcessReport::State(at, state.trim().to_owned())
        } else if line.contains("up ") {
            ProcessReport::Up
        } else {
            continue;
        };
        if said.send(told).is_err() {
            return;
        }
    }
}

#[test]
fn a_killed_leader_is_succeeded_within_a_second_and_nothing_acknowledged_is_lost() {
    let rounds =
        std::env::var("ROLLOUT_TEST_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let mut processes = Processes::start();
    let (mut leader, mut epoch) = processes.leader(0);
    let mut gaps = Vec::new();
    for _ in 0..rounds {
        processes.work(20);
        let killed = Instant::now();
        processes.kill(leader);
        let dead = leader;
        (leader, epoch) = processes.leader(epoch);
        gaps.push(killed.elapsed());
        processes.work(5);
        processes.spawn(dead);
        processes.work(20);
    }
    processes.agree();
    gaps.sort();
    let (median, worst) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    eprintln!("from SIGKILL to an open epoch: median {median:?}, worst {worst:?}, all {gaps:?}");
    // Generous for a busy machine; the figures above are what counts.
    assert!(worst < Duration::from_secs(5), "{gaps:?}");
}

#[test]
fn a_leader_that_hangs_is_succeeded_and_follows_when_it_wakes() {
    let mut processes = Processes::start();
    let (mut leader, mut epoch) = processes.leader(0);
    for _ in 0..3 {
        processes.work(10);
        let hung = leader;
        processes.signal(hung, "-STOP");
        let since = Instant::now();
        (leader, epoch) = processes.leader(epoch);
        assert_ne!(leader, hung);
        eprintln!("from SIGSTOP to an open epoch: {:?}", since.elapsed());
        processes.work(10);
        processes.signal(hung, "-CONT");
        // If the woken member disturbed the others, this would see another leader.
        let done = processes.acknowledged.len();
        while processes.acknowledged.len() < done + 100 {
            let said = processes.next();
            assert!(
                !matches!(said, ProcessReport::Leads(..)),
                "the member that woke caused an election"
            );
        }
    }
    processes.agree();
}

#[test]
fn a_machine_under_full_load_keeps_its_leader() {
    let seconds =
        std::env::var("ROLLOUT_TEST_LOAD_S").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let mut processes = Processes::start();
    let (_, epoch) = processes.leader(0);
    processes.work(10);
    let stop = Arc::new(AtomicBool::new(false));
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let busy: Vec<_> = (0..cores)
        .map(|_| {
            let stop = stop.clone();
            std::thread::spawn(move || while !stop.load(Ordering::Relaxed) {})
        })
        .collect();
    let (since, before) = (Instant::now(), processes.acknowledged.len());
    let mut elections = 0;
    while since.elapsed() < Duration::from_secs(seconds) {
        elections += u32::from(matches!(processes.next(), ProcessReport::Leads(..)));
    }
    stop.store(true, Ordering::Relaxed);
    busy.into_iter().for_each(|thread| thread.join().expect("it ends"));
    let done = processes.acknowledged.len() - before;
    eprintln!("{seconds} s under load: {done} commands, {elections} elections after term {epoch}");
    // Other tests may share the machine; alone, it is 0.
    assert!(elections <= 1);
}
