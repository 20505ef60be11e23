//! Accepts connections: handshakes run concurrently, and none holds up another.
//!
//! *Invariant:* connections beyond [`Incoming::at_most`], including unfinished handshakes, are closed at once, so that
//! a crowd of callers is refused and the process does not run out of files. At most [`HANDSHAKES_MAX`] handshakes are
//! in progress, each for at most [`HANDSHAKE_TIMEOUT`]; beyond that, callers wait in the kernel's backlog. One address
//! has at most a quarter of the unfinished handshakes, and one identity at most [`Incoming::at_most_of_one_identity`]
//! connections, so that a single caller does not take every place. The stream yields no error and never ends: a failed
//! handshake is logged and does not stop it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures::{FutureExt, Stream};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Sleep;

use super::conn::{ConnPermits, ServerConn};
use super::revoked::noting_revoked;
use super::server::ServerTls;
use super::share::{Share, Shares, counted_address};
use crate::identity::{PeerInfo, Role};

const HANDSHAKES_MAX: usize = 4096;
/// One address may have a fourth of the unfinished handshakes that the listener allows, and at least
/// [`OF_AN_ADDRESS_MIN`].
const PART_OF_AN_ADDRESS: usize = 4;
const OF_AN_ADDRESS_MIN: usize = 4;
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
// How often refused connections are logged.
const REPORT_EVERY: Duration = Duration::from_secs(1);
// How long accepting pauses when the process is out of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// The accepted connections of a listener, past their handshakes.
#[derive(Debug)]
pub struct Incoming {
    tls: ServerTls,
    listener: TcpListener,
    // Dropping it aborts unfinished handshakes.
    handshakes: JoinSet<Option<ServerConn>>,
    rest: Option<Pin<Box<Sleep>>>,
    places: Arc<Semaphore>,
    /// Unfinished handshakes by address, and how many one address may have.
    unfinished: (Shares<IpAddr>, usize),
    identities: Identities,
    /// Connections refused since the last log line, and when that was.
    refused: (u64, Option<Instant>),
}

/// Connections past their handshakes by identity, and how many one identity may have.
#[derive(Clone, Debug)]
struct Identities {
    open: Shares<String>,
    max: usize,
}

impl Incoming {
    pub(super) fn new(tls: ServerTls, listener: TcpListener) -> Self {
        let places = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        Incoming {
            tls,
            listener,
            handshakes: JoinSet::new(),
            rest: None,
            places,
            unfinished: (Shares::default(), of_an_address(HANDSHAKES_MAX)),
            identities: Identities { open: Shares::default(), max: usize::MAX },
            refused: (0, None),
        }
    }

    /// Accepts this many concurrent connections, and closes further ones. One address may have a quarter as many
    /// unfinished handshakes.
    #[must_use]
    pub fn at_most(mut self, connections_max: usize) -> Self {
        self.places = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        self.unfinished.1 = of_an_address(connections_max.min(HANDSHAKES_MAX));
        self
    }

    /// Accepts this many concurrent connections of one identity, and closes further ones. In plaintext and at an
    /// enrollment port all callers have the same identity, so there is no such bound.
    #[must_use]
    pub fn at_most_of_one_identity(mut self, connections_max: usize) -> Self {
        self.identities.max = connections_max;
        self
    }

    /// The address of the listener.
    ///
    /// # Errors
    /// The socket's error.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    fn refuse(&mut self, tcp: TcpStream, addr: SocketAddr, why: &str) {
        drop(tcp);
        let (count, reported_at) = &mut self.refused;
        *count += 1;
        if reported_at.is_none_or(|reported_at| reported_at.elapsed() >= REPORT_EVERY) {
            tracing::warn!(refused = *count, last = %addr, why, "too many connections: refused");
            (*count, *reported_at) = (0, Some(Instant::now()));
        }
    }

    fn begin(&mut self, tcp: TcpStream, addr: SocketAddr) {
        let (unfinished, max) = &self.unfinished;
        let Some(share) = unfinished.take(counted_address(addr.ip()), *max) else {
            return self.refuse(tcp, addr, "the address has too many unfinished handshakes");
        };
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return self.refuse(tcp, addr, "every place is taken");
        };
        let (tls, identities) = (self.tls.clone(), self.identities.clone());
        self.handshakes.spawn(handshake(tls, tcp, addr, (place, share), identities));
    }

    // Accepts connections until the kernel has no more, or there is no room.
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
                Poll::Ready(Ok((tcp, addr))) => self.begin(tcp, addr),
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
                // Without handshakes in progress, the listener or the end of the pause wakes the task.
                Poll::Ready(None) | Poll::Pending => return Poll::Pending,
            }
        }
    }
}

fn of_an_address(handshakes_max: usize) -> usize {
    (handshakes_max / PART_OF_AN_ADDRESS).max(OF_AN_ADDRESS_MIN)
}

async fn handshake(
    tls: ServerTls,
    tcp: TcpStream,
    addr: SocketAddr,
    (place, unfinished): (OwnedSemaphorePermit, Share<IpAddr>),
    identities: Identities,
) -> Option<ServerConn> {
    let on_revoked = tls.on_revoked();
    let (made, revoked) = noting_revoked(tls.handshake(tcp), HANDSHAKE_TIMEOUT).await;
    drop(unfinished);
    if let Some(identity) = revoked {
        tracing::info!(%addr, %identity, "refused a connection: the certificate is revoked");
        on_revoked(&identity, addr);
        return None;
    }
    match made {
        Ok(Ok(conn)) => return identities.admit(conn, place),
        Ok(Err(error)) => tracing::info!(%addr, %error, "refused a connection"),
        Err(_) => tracing::info!(
            %addr,
            timeout_ms = HANDSHAKE_TIMEOUT.as_millis(),
            "gave up on an unfinished handshake"
        ),
    }
    None
}

impl Identities {
    /// Attaches the connection's permits, unless its identity has used up its share.
    fn admit(&self, conn: ServerConn, place: OwnedSemaphorePermit) -> Option<ServerConn> {
        let PeerInfo { identity, addr, .. } = conn.peer();
        if identity.is_insecure() || identity.role == Role::Unenrolled {
            return Some(conn.with_permits(ConnPermits { _permit: place, _share: None }));
        }
        let Some(share) = self.open.take(identity.to_string(), self.max) else {
            let max = self.max;
            tracing::info!(%addr, %identity, max, "too many connections of one identity: refused");
            return None;
        };
        Some(conn.with_permits(ConnPermits { _permit: place, _share: Some(share) }))
    }
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
