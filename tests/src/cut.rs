//! Links that can be cut, or be long: a TCP proxy for each directed pair, told to stop passing bytes or to pass them later.
//!
//! A cut link keeps its connections open and passes nothing, as a network does that drops packets:
//! no side is told. Healing lets what was held back through.

use anyhow::Result;
use rollout_jepsen::delay::{Delay, carry};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
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

    /// Lets them pass again, the held ones first.
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

/// A proxy in front of one address.
pub struct Link {
    /// Where to dial instead.
    pub addr: String,
    ended: Arc<AtomicBool>,
}

impl Link {
    /// Listens on a free port and forwards to `to`, while `cut` lets it.
    ///
    /// # Errors
    /// When no port is free.
    pub fn start(to: String, cut: Cut) -> Result<Self> {
        Self::new(to, cut, None)
    }

    /// The same for a link across a distance: bytes take as long as `delay` says, either way.
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
        let stop = ended.clone();
        std::thread::spawn(move || {
            for inbound in listener.incoming().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let (to, cut, delay) = (to.clone(), cut.clone(), delay.clone());
                std::thread::spawn(move || {
                    cut.pass();
                    let Ok(outbound) = TcpStream::connect(&to) else { return };
                    match delay {
                        None => forward(inbound, outbound, cut),
                        Some(delay) => forward_later(inbound, outbound, cut, delay),
                    }
                });
            }
        });
        Ok(Self { addr, ended })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(&self.addr);
    }
}

fn forward(a: TcpStream, b: TcpStream, cut: Cut) {
    let _ = (a.set_nodelay(true), b.set_nodelay(true));
    let (Ok(a2), Ok(b2)) = (a.try_clone(), b.try_clone()) else { return };
    let other = cut.clone();
    std::thread::spawn(move || copy(a2, b2, other));
    copy(b, a, cut);
}

fn forward_later(a: TcpStream, b: TcpStream, cut: Cut, delay: Delay) {
    let _ = (a.set_nodelay(true), b.set_nodelay(true));
    let (Ok(a2), Ok(b2)) = (a.try_clone(), b.try_clone()) else { return };
    let (other, same, connected) = (cut.clone(), delay.clone(), delay.connected());
    std::thread::spawn(move || carry(a2, b2, &same, connected, move || other.pass()));
    carry(b, a, &delay, Instant::now(), move || cut.pass());
}

fn copy(mut from: TcpStream, mut to: TcpStream, cut: Cut) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        cut.pass();
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    cut.pass();
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
