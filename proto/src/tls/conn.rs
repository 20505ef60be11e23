//! One accepted connection, with the identity of its peer.
//!
//! *Invariant:* a value of this type has completed its handshake. It reads and writes nothing once the peer's
//! certificate has expired or is revoked. A peer that has a newer certificate by then reconnects with that one.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::share::Share;
use crate::identity::PeerInfo;
use crate::revocations::UntilRefused;

/// The longest timer: a connection is closed after this time at the latest, and made again.
const OPEN_MAX: Duration = Duration::from_secs(365 * 86_400);

/// A connection that a server accepted; requests on it carry its [`PeerInfo`].
#[derive(Debug)]
pub struct ServerConn {
    stream: Stream,
    peer: PeerInfo,
    /// Ready when the peer's certificate has expired; `None` if it has none.
    ends: Option<Pin<Box<Sleep>>>,
    /// Ready when that certificate is revoked.
    revoked: Option<UntilRefused>,
    // Released when the connection is closed.
    _permits: Option<ConnPermits>,
}

/// A connection's permits at its listener.
#[derive(Debug)]
pub(super) struct ConnPermits {
    pub(super) _permit: OwnedSemaphorePermit,
    /// Its place among its identity's connections.
    pub(super) _share: Option<Share<String>>,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    // Boxed, because the state of a TLS session is much larger than that of a socket.
    Tls(Box<TlsStream<TcpStream>>),
}

impl ServerConn {
    pub(super) fn plain(stream: TcpStream, peer: PeerInfo) -> Self {
        ServerConn {
            stream: Stream::Plain(stream),
            peer,
            ends: None,
            revoked: None,
            _permits: None,
        }
    }

    pub(super) fn tls(stream: TlsStream<TcpStream>, peer: PeerInfo) -> Self {
        ServerConn {
            stream: Stream::Tls(Box::new(stream)),
            peer,
            ends: None,
            revoked: None,
            _permits: None,
        }
    }

    /// Ends the connection when the peer's certificate expires. The remaining time is computed at the handshake, so
    /// that a later jump of the clock closes no connection.
    pub(super) fn until(mut self, not_after_unix: i64) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let not_after = Duration::from_secs(not_after_unix.try_into().unwrap_or(0));
        let left = not_after.saturating_sub(now).min(OPEN_MAX);
        self.ends = Some(Box::pin(tokio::time::sleep(left)));
        self
    }

    /// Ends the connection when the peer's certificate is refused.
    pub(super) fn or_until(mut self, revoked: UntilRefused) -> Self {
        self.revoked = Some(revoked);
        self
    }

    /// Attaches the connection's permits at its listener, which are released on drop.
    pub(super) fn with_permits(mut self, permits: ConnPermits) -> Self {
        self._permits = Some(permits);
        self
    }

    /// Why the connection has ended, if it has. Otherwise wakes the task when it ends.
    fn has_ended(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Option<io::Error> {
        let ended = self.ends.as_mut().is_some_and(|ends| ends.as_mut().poll(cx).is_ready());
        let revoked = self.revoked.as_mut().is_some_and(|at| Pin::new(at).poll(cx).is_ready());
        let why = match (ended, revoked) {
            (false, false) => return None,
            (_, true) => "the certificate is revoked",
            (true, false) => "the certificate has ended",
        };
        let PeerInfo { identity, addr, .. } = &self.peer;
        tracing::info!(%identity, %addr, why, "closed a caller's connection");
        Some(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }

    /// The identity and address of the peer.
    pub fn peer(&self) -> &PeerInfo {
        &self.peer
    }
}

impl Connected for ServerConn {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        self.peer.clone()
    }
}

macro_rules! on_stream {
    ($self:ident, $stream:ident => $call:expr) => {
        match &mut $self.get_mut().stream {
            Stream::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Stream::Tls($stream) => {
                let $stream = Pin::new($stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for ServerConn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(error) = self.as_mut().has_ended(cx) {
            return Poll::Ready(Err(error));
        }
        on_stream!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for ServerConn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(error) = self.as_mut().has_ended(cx) {
            return Poll::Ready(Err(error));
        }
        on_stream!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(error) = self.as_mut().has_ended(cx) {
            return Poll::Ready(Err(error));
        }
        on_stream!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(error) = self.as_mut().has_ended(cx) {
            return Poll::Ready(Err(error));
        }
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }
}
