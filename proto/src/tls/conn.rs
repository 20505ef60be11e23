//! One accepted connection, with who is at its other end.
//!
//! *Invariant:* a value of this type is past its handshake.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use crate::identity::PeerInfo;

/// A connection that a server accepted; requests on it carry its [`PeerInfo`].
#[derive(Debug)]
pub struct ServerConn {
    stream: Stream,
    peer: PeerInfo,
    // Given back when the connection is closed.
    _place: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Stream {
    Plain(TcpStream),
    // Boxed: the state of a TLS session is many times a socket's.
    Tls(Box<TlsStream<TcpStream>>),
}

impl ServerConn {
    pub(super) fn plain(stream: TcpStream, peer: PeerInfo) -> Self {
        ServerConn { stream: Stream::Plain(stream), peer, _place: None }
    }

    pub(super) fn tls(stream: TlsStream<TcpStream>, peer: PeerInfo) -> Self {
        ServerConn { stream: Stream::Tls(Box::new(stream)), peer, _place: None }
    }

    /// Takes this place among the connections of its listener, until it is dropped.
    pub(super) fn at(mut self, place: OwnedSemaphorePermit) -> Self {
        self._place = Some(place);
        self
    }

    /// Who is at the other end.
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
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_read(cx, buf))
    }
}

impl AsyncWrite for ServerConn {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_stream!(self, stream => stream.poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_stream!(self, stream => stream.poll_shutdown(cx))
    }
}
