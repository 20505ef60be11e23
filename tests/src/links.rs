//! Links that a test can cut or slow down: one TCP proxy per directed pair, which can stop passing bytes or pass them
//! later.
//!
//! A cut link keeps its connections open and passes nothing, like a network that drops packets: neither side gets an
//! error. Healing delivers what was held back. A test can also stop the busiest connection of a link and all later
//! ones, as a firewall that forgets a connection would.

use anyhow::Result;
use rollout_jepsen::delay::{Delay, carry};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Instant;

/// Whether bytes pass.
#[derive(Clone, Default)]
pub struct Cut {
    state: Arc<(Mutex<bool>, Condvar)>,
}

impl Cut {
    /// Stops all bytes.
    pub fn cut(&self) {
        *self.state.0.lock().expect("no panic holds it") = true;
    }

    /// Lets bytes pass again, the held ones first.
    pub fn heal(&self) {
        *self.state.0.lock().expect("no panic holds it") = false;
        self.state.1.notify_all();
    }

    fn pass(&self) {
        let mut cut = self.state.0.lock().expect("no panic holds it");
        while *cut {
            cut = self.state.1.wait(cut).expect("no panic holds it");
        }
    }
}

/// One connection through a proxy.
#[derive(Clone, Default)]
pub struct Connection {
    /// Bytes that have passed, either way.
    bytes: Arc<AtomicU64>,
    /// Messages that have passed from the side that dialed.
    from_dialer: Arc<AtomicU64>,
    own: Cut,
    link: Cut,
    ended: Arc<AtomicBool>,
}

impl Connection {
    /// Whether one side has closed it, and no cut hides that from the other side.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether the dialing side has sent more than its first message. With TLS, the other side cannot know its
    /// certificate before that.
    pub fn has_identity(&self) -> bool {
        self.from_dialer.load(Ordering::Relaxed) > 1
    }

    fn pass(&self, bytes: usize) {
        self.link.pass();
        self.own.pass();
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

/// A proxy in front of one address.
pub struct Link {
    /// The address to dial instead.
    pub addr: String,
    ended: Arc<AtomicBool>,
    /// Every connection that was ever made.
    connections: Arc<Mutex<Vec<Connection>>>,
    /// The cut for later connections.
    later: Cut,
}

impl Link {
    /// Listens on a free port and forwards to `to` while `cut` allows it.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(to: String, cut: Cut) -> Result<Self> {
        Self::new(to, cut, None)
    }

    /// The same for a link with latency: bytes take as long as `delay` says, in both directions.
    ///
    /// # Errors
    /// When no port is free.
    pub fn across(to: String, cut: Cut, delay: Delay) -> Result<Self> {
        Self::new(to, cut, Some(delay))
    }

    fn new(to: String, cut: Cut, delay: Option<Delay>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let addr = listener.local_addr()?.to_string();
        let ended = Arc::new(AtomicBool::new(false));
        let (connections, later) = (Arc::<Mutex<Vec<Connection>>>::default(), Cut::default());
        let (stop, made, new) = (ended.clone(), connections.clone(), later.clone());
        std::thread::spawn(move || {
            for inbound in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (to, cut, delay) = (to.clone(), cut.clone(), delay.clone());
                let (made, new) = (made.clone(), new.clone());
                std::thread::spawn(move || {
                    cut.pass();
                    new.pass();
                    let Ok(outbound) = TcpStream::connect(&to) else { return };
                    let connection = Connection { link: cut.clone(), ..Connection::default() };
                    made.lock().expect("no panic holds it").push(connection.clone());
                    let ended = connection.ended.clone();
                    match delay {
                        None => forward(inbound, outbound, connection),
                        Some(delay) => forward_later(inbound, outbound, (cut, connection), delay),
                    }
                    ended.store(true, Ordering::Relaxed);
                });
            }
        });
        Ok(Self { addr, ended, connections, later })
    }

    /// The connections that are open now.
    pub fn open(&self) -> Vec<Connection> {
        let connections = self.connections.lock().expect("no panic holds it");
        connections.iter().filter(|connection| !connection.has_ended()).cloned().collect()
    }

    /// Bytes that have passed over all its connections, either way. A link with latency counts none.
    pub fn bytes(&self) -> u64 {
        let connections = self.connections.lock().expect("no panic holds it");
        connections.iter().map(|connection| connection.bytes.load(Ordering::Relaxed)).sum()
    }

    /// Stops the connection that has carried most so far, and all later ones. The other connections continue.
    pub fn stall_busiest(&self) {
        self.later.cut();
        let connections = self.connections.lock().expect("no panic holds it");
        let busiest = connections.iter().max_by_key(|c| c.bytes.load(Ordering::Relaxed));
        busiest.inspect(|connection| connection.own.cut());
    }

    /// Lets everything pass again that [`stall_busiest`](Self::stall_busiest) has stopped.
    pub fn resume(&self) {
        self.connections.lock().expect("no panic holds it").iter().for_each(|c| c.own.heal());
        self.later.heal();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.addr);
    }
}

fn forward(a: TcpStream, b: TcpStream, connection: Connection) {
    let _ = (a.set_nodelay(true), b.set_nodelay(true));
    let (Ok(a2), Ok(b2)) = (a.try_clone(), b.try_clone()) else { return };
    let other = connection.clone();
    std::thread::spawn(move || copy(a2, b2, &other, true));
    copy(b, a, &connection, false);
}

fn forward_later(a: TcpStream, b: TcpStream, (cut, connection): (Cut, Connection), delay: Delay) {
    let _ = (a.set_nodelay(true), b.set_nodelay(true));
    let (Ok(a2), Ok(b2)) = (a.try_clone(), b.try_clone()) else { return };
    let (other, same, connected) = (cut.clone(), delay.clone(), delay.connected());
    let pass = move || {
        other.pass();
        connection.from_dialer.fetch_add(1, Ordering::Relaxed);
    };
    std::thread::spawn(move || carry(a2, b2, &same, connected, pass));
    carry(b, a, &delay, Instant::now(), move || cut.pass());
}

fn copy(mut from: TcpStream, mut to: TcpStream, connection: &Connection, of_dialer: bool) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        connection.pass(read);
        connection.from_dialer.fetch_add(of_dialer.into(), Ordering::Relaxed);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    connection.pass(0);
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
