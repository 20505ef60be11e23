//! The network between all processes of a run: one TCP proxy per directed pair of names.
//!
//! *Invariant:* bytes from one name to another pass only while that direction is open, whichever side made the
//! connection. A shut direction keeps its connections and holds their bytes, like a network that drops packets:
//! neither side gets an error. A direction with latency passes all bytes, later.

use crate::delay::{Delay, OneWay, carry};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An open link without latency answers a probe at once; a silence this long is a cut.
const PROBE_LIMIT: Duration = Duration::from_millis(700);

/// The longest wait for a round trip.
const RTT_LIMIT: Duration = Duration::from_secs(5);

/// The result of probing a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probed {
    /// How long a round trip took.
    Took(Duration),
    /// No answer came, so its duration is unknown.
    NoAnswer,
}

/// One direction between two names.
#[derive(Default)]
struct Gate {
    shut: Mutex<bool>,
    opened: Condvar,
    delay: Delay,
}

impl Gate {
    fn set(&self, shut: bool) {
        *self.shut.lock().unwrap_or_else(PoisonError::into_inner) = shut;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut shut = self.shut.lock().unwrap_or_else(PoisonError::into_inner);
        while *shut {
            shut = self.opened.wait(shut).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

type Pair = (String, String);

#[derive(Default)]
pub struct Network {
    gates: Mutex<BTreeMap<Pair, Arc<Gate>>>,
    links: Mutex<BTreeMap<(Pair, String), String>>,
    /// Directions can get latency: see [`Network::set_distance`].
    long: bool,
}

impl Network {
    /// A network whose directions can get latency, which costs each chunk of bytes a hop between threads.
    #[must_use]
    pub fn with_distances() -> Self {
        Self { long: true, ..Self::default() }
    }

    fn gate(&self, from: &str, to: &str) -> Arc<Gate> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        gates.entry((from.to_owned(), to.to_owned())).or_default().clone()
    }

    /// The address that `from` dials to reach `addr` of `to`.
    ///
    /// # Errors
    /// When no port is free.
    pub fn link(&self, from: &str, to: &str, addr: &str) -> Result<String> {
        let key = ((from.to_owned(), to.to_owned()), addr.to_owned());
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(&key) {
            return Ok(link.clone());
        }
        let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
        let link = listener.local_addr()?.to_string();
        let (there, back) = (self.gate(from, to), self.gate(to, from));
        let (addr, long) = (addr.to_owned(), self.long);
        std::thread::spawn(move || {
            for inbound in listener.incoming().flatten() {
                let (there, back, addr) = (there.clone(), back.clone(), addr.clone());
                std::thread::spawn(move || {
                    there.pass();
                    if let Ok(outbound) = TcpStream::connect(&addr) {
                        forward(&inbound, &outbound, &there, back, long);
                    }
                });
            }
        });
        links.insert(key, link.clone());
        Ok(link)
    }

    /// Shuts one direction, or opens it again.
    pub fn set(&self, from: &str, to: &str, shut: bool) {
        self.gate(from, to).set(shut);
    }

    /// Sets the latency of one direction from now on.
    pub fn set_distance(&self, from: &str, to: &str, one_way: OneWay) {
        self.gate(from, to).delay.set(one_way);
    }

    /// Measures the time from dialing a new connection between the two to the first answer: two round trips, the
    /// first for the TCP handshake. `None` if the pair never dials and so has no link.
    pub fn probe_rtt(&self, from: &str, to: &str) -> Option<Probed> {
        self.probe_rtt_within(from, to, RTT_LIMIT)
    }

    fn probe_rtt_within(&self, from: &str, to: &str, limit: Duration) -> Option<Probed> {
        let addr = self.any_link(from, to)?;
        let begun = Instant::now();
        Some(match answers(&addr, limit) {
            true => Probed::Took(begun.elapsed() / 2),
            false => Probed::NoAnswer,
        })
    }

    fn any_link(&self, from: &str, to: &str) -> Option<String> {
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let mut links = links.iter();
        let (_, addr) = links.find(|((pair, _), _)| pair.0 == from && pair.1 == to)?;
        Some(addr.clone())
    }

    /// Probes whether a round trip on a link between the two fails: it sends garbage, which every TLS server answers
    /// or hangs up on. `None` if the pair never dials and so has no link.
    pub fn probe_cut(&self, from: &str, to: &str) -> Option<bool> {
        let addr = self.any_link(from, to)?;
        // Allow two round trips at the current latency: an open link with latency is not cut.
        let longest = |from: &str, to: &str| self.gate(from, to).delay.longest();
        let distance = 2 * (longest(from, to) + longest(to, from));
        Some(!answers(&addr, PROBE_LIMIT + distance))
    }
}

fn answers(addr: &str, limit: Duration) -> bool {
    let Ok(mut stream) = TcpStream::connect(addr) else { return false };
    if stream.set_read_timeout(Some(limit)).is_err() {
        return false;
    }
    let sent = stream.write_all(b"is anybody there?\r\n\r\n");
    sent.is_ok() && stream.read(&mut [0; 64]).is_ok()
}

fn forward(a: &TcpStream, b: &TcpStream, there: &Arc<Gate>, back: Arc<Gate>, long: bool) {
    let _ = (a.set_nodelay(true), b.set_nodelay(true));
    let (Ok(from_b), Ok(to_a)) = (b.try_clone(), a.try_clone()) else { return };
    let (Ok(from_a), Ok(to_b)) = (a.try_clone(), b.try_clone()) else { return };
    if !long {
        std::thread::spawn(move || copy(from_b, to_a, &back));
        return copy(from_a, to_b, there);
    }
    let (connected, gate) = (there.delay.connected(), there.clone());
    std::thread::spawn(move || {
        let gate = back.clone();
        carry(from_b, to_a, &back.delay, Instant::now(), move || gate.pass());
    });
    carry(from_a, to_b, &there.delay, connected, move || gate.pass());
}

fn copy(mut from: TcpStream, mut to: TcpStream, gate: &Gate) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        gate.pass();
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    gate.pass();
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The address of an echo server.
    fn echo() -> String {
        let echo = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = echo.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            for mut stream in echo.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut buffer = [0; 64];
                    while let Ok(read @ 1..) = stream.read(&mut buffer) {
                        let _ = stream.write_all(&buffer[..read]);
                    }
                });
            }
        });
        addr
    }

    #[test]
    fn a_direction_with_latency_delays_every_crossing_and_can_be_shut() {
        let network = Network::with_distances();
        network.link("a", "b", &echo()).unwrap();
        network.link("a", "c", &echo()).unwrap();
        let far = OneWay::of_rtt(Duration::from_millis(100));
        for (from, to) in [("a", "b"), ("b", "a")] {
            network.set_distance(from, to, far);
        }
        let took = |from: &str, to: &str| match network.probe_rtt(from, to) {
            Some(Probed::Took(took)) => took,
            other => panic!("{other:?}"),
        };
        assert!(took("a", "b") >= Duration::from_millis(100));
        assert!(took("a", "c") < Duration::from_millis(50));
        assert_eq!(network.probe_rtt("b", "a"), None, "it never dials");
        network.set("b", "a", true);
        assert_eq!(network.probe_cut("a", "b"), Some(true));
        let limit = Duration::from_millis(300);
        assert_eq!(network.probe_rtt_within("a", "b", limit), Some(Probed::NoAnswer));
        network.set("b", "a", false);
        // Two round trips take longer than the probe limit of a link without latency.
        let farther = OneWay::of_rtt(PROBE_LIMIT * 4 / 5);
        for (from, to) in [("a", "b"), ("b", "a")] {
            network.set_distance(from, to, farther);
        }
        assert_eq!(network.probe_cut("a", "b"), Some(false), "it is long and open");
        for (from, to) in [("a", "b"), ("b", "a")] {
            network.set_distance(from, to, OneWay::default());
        }
        assert!(took("a", "b") < Duration::from_millis(50));
    }

    #[test]
    fn a_shut_direction_holds_bytes_both_ways_of_asking_and_an_open_one_lets_them_through() {
        let network = Network::default();
        network.link("a", "b", &echo()).unwrap();
        assert_eq!(network.probe_cut("a", "b"), Some(false));
        for (from, to) in [("a", "b"), ("b", "a")] {
            network.set(from, to, true);
            assert_eq!(network.probe_cut("a", "b"), Some(true));
            network.set(from, to, false);
            assert_eq!(network.probe_cut("a", "b"), Some(false));
        }
        assert_eq!(network.probe_cut("b", "a"), None);
    }
}
