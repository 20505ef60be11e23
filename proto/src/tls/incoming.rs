//! Accepting connections: handshakes run beside each other, and none holds up another.
//!
//! *Invariant:* connections beyond [`Incoming::at_most`] are closed at once, handshakes counted, so that a crowd of
//! callers is refused and the process does not run out of files. At most [`HANDSHAKES_MAX`] handshakes are under way, each for at most
//! [`HANDSHAKE_TIMEOUT`]; beyond that callers wait in the kernel's backlog. The stream yields
//! neither an error nor an end: one caller's failure is a log line and no reason to stop.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::{FutureExt, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::conn::ServerConn;
use super::server::ServerTls;

const HANDSHAKES_MAX: usize = 1024;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
// How often a crowd that is refused is worth a line.
const TELL_EVERY: Duration = Duration::from_secs(1);
// How long accepting rests when the process is out of descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// The accepted connections of a listener, past their handshakes.
#[derive(Debug)]
pub struct Incoming {
    tls: ServerTls,
    listener: TcpListener,
    // Dropping it aborts what is unfinished.
    handshakes: JoinSet<Option<ServerConn>>,
    rest: Option<Pin<Box<Sleep>>>,
    places: Arc<Semaphore>,
    /// Refused since it was last said, and when that was.
    refused: (u64, Option<Instant>),
}

impl Incoming {
    pub(super) fn new(tls: ServerTls, listener: TcpListener) -> Self {
        let places = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let handshakes = JoinSet::new();
        Incoming { tls, listener, handshakes, rest: None, places, refused: (0, None) }
    }

    /// Takes so many connections at a time and closes the others.
    #[must_use]
    pub fn at_most(mut self, connections_max: usize) -> Self {
        self.places = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// The address that is listened on.
    ///
    /// # Errors
    /// What the socket says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    fn refuse(&mut self, tcp: TcpStream, addr: SocketAddr) {
        drop(tcp);
        let (count, told) = &mut self.refused;
        *count += 1;
        if told.is_none_or(|told| told.elapsed() >= TELL_EVERY) {
            tracing::warn!(refused = *count, last = %addr, "too many connections: refused");
            (*count, *told) = (0, Some(Instant::now()));
        }
    }

    // Takes what the kernel has, until there is nothing more or no room for it.
    fn accept(&mut self, cx: &mut Context<'_>) {
        while self.handshakes.len() < HANDSHAKES_MAX {
            if let Some(rest) = &mut self.rest {
                if rest.poll_unpin(cx).is_pending() {
                    return;
                }
                self.rest = None;
            }
            match self.listener.poll_accept(cx) {
                Poll::Pending => return,
                Poll::Ready(Ok((tcp, addr))) => match self.places.clone().try_acquire_owned() {
                    Ok(place) => {
                        let tls = self.tls.clone();
                        self.handshakes.spawn(handshake(tls, tcp, addr, place));
                    }
                    Err(_) => self.refuse(tcp, addr),
                },
                Poll::Ready(Err(error)) if concerns_one_caller(&error) => {}
                Poll::Ready(Err(error)) => {
                    tracing::warn!(%error, "cannot accept connections, trying again");
                    self.rest = Some(Box::pin(tokio::time::sleep(ACCEPT_REST)));
                }
            }
        }
    }
}

impl Stream for Incoming {
    type Item = io::Result<ServerConn>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            self.accept(cx);
            match self.handshakes.poll_join_next(cx) {
                Poll::Ready(Some(Ok(Some(conn)))) => return Poll::Ready(Some(Ok(conn))),
                // A refused caller (already logged) made room: accept again.
                Poll::Ready(Some(_)) => {}
                // With nothing under way it is the listener, or the rest, that wakes the task.
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

async fn handshake(
    tls: ServerTls,
    tcp: TcpStream,
    addr: SocketAddr,
    place: OwnedSemaphorePermit,
) -> Option<ServerConn> {
    match tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.handshake(tcp)).await {
        Ok(Ok(conn)) => return Some(conn.at(place)),
        Ok(Err(error)) => tracing::info!(%addr, %error, "refused a connection"),
        Err(_) => tracing::info!(
            %addr,
            timeout_ms = HANDSHAKE_TIMEOUT.as_millis(),
            "gave up on an unfinished handshake"
        ),
    }
    None
}

fn concerns_one_caller(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}
