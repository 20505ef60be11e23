//! Link latency: bytes on a connection arrive later, at full bandwidth.
//!
//! *Invariant:* bytes arrive in order, each no earlier than its delay; a chunk in transit does not hold up the chunks
//! behind it. The end of a connection is delayed like its bytes.
//! Absent: packet loss and bandwidth limits.

use rand::Rng;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Chunks in transit in one direction of a connection, and bytes of each: further bytes wait at their sender.
const CHUNKS_MAX: usize = 4096;
const CHUNK_BYTES: usize = 16 << 10;

/// The latency of one direction: each chunk gets a random delay between these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OneWay {
    /// The shortest.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
}

impl OneWay {
    /// Half of a round trip that always takes this long.
    pub fn of_rtt(rtt: Duration) -> Self {
        Self { least: rtt / 2, most: rtt / 2 }
    }

    /// Half of a round trip with jitter: between half and one and a half times its mean, with `most` as the longest.
    pub fn of_rtt_with_jitter(most: Duration) -> Self {
        Self { least: most / 6, most: most / 2 }
    }
}

/// The delay of a link, which may change while it is in use. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Delay(Arc<Mutex<OneWay>>);

impl Delay {
    /// Sets the latency from now on.
    pub fn set(&self, one_way: OneWay) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = one_way;
    }

    /// The longest current delay.
    pub fn longest(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).most
    }

    fn draw(&self) -> Duration {
        let OneWay { least, most } = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rand::rng().random_range(least..=most.max(least))
    }

    /// When the first bytes of a connection dialed now arrive: a TCP handshake is a round trip.
    pub fn connected(&self) -> Instant {
        Instant::now() + self.draw() + self.draw()
    }
}

/// Carries bytes from one connection to the other until either ends, and ends both. Bytes read before `connected`
/// leave no earlier than that. `pass` returns when the link lets bytes through.
pub fn carry(
    mut from: TcpStream,
    mut to: TcpStream,
    delay: &Delay,
    connected: Instant,
    pass: impl Fn() + Send + 'static,
) {
    let Ok(source) = from.try_clone() else { return };
    let (line, arriving) = sync_channel::<(Instant, Vec<u8>)>(CHUNKS_MAX);
    let writing = std::thread::spawn(move || {
        for (due, bytes) in arriving {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            pass();
            if bytes.is_empty() || to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
        let _ = source.shutdown(Shutdown::Both);
    });
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut last = connected;
    loop {
        let read = from.read(&mut buffer).unwrap_or(0);
        last = last.max(Instant::now().max(connected) + delay.draw());
        if line.send((last, buffer[..read].to_vec())).is_err() || read == 0 {
            break;
        }
    }
    let _ = writing.join();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Both ends of a connection through a line.
    fn line(delay: &Delay) -> (TcpStream, TcpStream) {
        let pair = || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (one, listener.accept().unwrap().0)
        };
        let ((near, from), (to, far)) = (pair(), pair());
        let delay = delay.clone();
        std::thread::spawn(move || carry(from, to, &delay, Instant::now(), || {}));
        (near, far)
    }

    #[test]
    fn bytes_arrive_late_and_as_many_as_without_distance() {
        let delay = Delay::default();
        delay.set(OneWay::of_rtt(Duration::from_millis(200)));
        let (mut near, mut far) = line(&delay);
        let begun = Instant::now();
        // If each chunk waited for the one before it, this would take a minute and a half.
        let sent: Vec<u8> = (0..16 << 20).map(|at| (at % 251) as u8).collect();
        let expected = sent.clone();
        std::thread::spawn(move || near.write_all(&sent));
        let mut got = vec![0; expected.len()];
        far.read_exact(&mut got[..1]).unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(100), "{:?}", begun.elapsed());
        far.read_exact(&mut got[1..]).unwrap();
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert!(got == expected);
        // The sender is gone, and its end has arrived.
        assert_eq!(far.read(&mut [0; 1]).unwrap(), 0);
    }

    #[test]
    fn order_holds_while_the_delay_changes() {
        let delay = Delay::default();
        let (mut near, mut far) = line(&delay);
        for (at, ms) in [(0u8, 300), (1, 0), (2, 50), (3, 0)] {
            delay.set(OneWay::of_rtt(Duration::from_millis(2 * ms)));
            near.write_all(&[at]).unwrap();
            std::thread::sleep(Duration::from_millis(5)); // A chunk of its own.
        }
        let mut got = [0; 4];
        far.read_exact(&mut got).unwrap();
        assert_eq!(got, [0, 1, 2, 3]);
    }
}
