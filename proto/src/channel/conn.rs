//! The bytes of a connection, plain or under TLS.
//!
//! *Invariant:* a server that refuses the client's certificate is reported as a failure of the
//! phase `tls`. With TLS 1.3 a server judges that certificate only after the client holds its side
//! of the handshake for done, so the first bytes of the server are awaited before the connection
//! counts as made. They are then read as if nothing had happened.
//!
//! Deliberately absent: making the connection (`channel`).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::OpenConnection;
use crate::revocations::UntilRefused;

/// How long the server's first bytes are awaited. An HTTP/2 server sends its settings at once; one
/// that waits for ours first is not held up for longer than this.
const FIRST_BYTES_WAIT: Duration = Duration::from_millis(300);

/// A connected stream.
pub(super) struct Conn {
    bytes: Bytes,
    /// Counted as open for as long as it lives.
    _open: Option<OpenConnection>,
    /// Ready when the other side's certificate is revoked.
    revoked: Option<UntilRefused>,
}

enum Bytes {
    /// Bare TCP.
    Plain(TcpStream),
    /// TLS, with what was read of it already.
    Tls(Box<TlsStream<TcpStream>>, BytesMut),
}

impl Conn {
    pub(super) fn plain(tcp: TcpStream) -> Self {
        Conn { bytes: Bytes::Plain(tcp), _open: None, revoked: None }
    }

    pub(super) fn counted(self, open: OpenConnection) -> Self {
        Conn { _open: Some(open), ..self }
    }

    /// Lasts no longer than the other side's certificate is accepted.
    pub(super) fn until(self, revoked: Option<UntilRefused>) -> Self {
        Conn { revoked, ..self }
    }

    /// Fails once the other side's certificate is revoked; wakes the task when that comes true.
    fn check_revocation(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.revoked.as_mut().is_some_and(|revoked| Pin::new(revoked).poll(cx).is_ready()) {
            true => {
                let why = "the other side's certificate is revoked";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
            false => Ok(()),
        }
    }

    /// Takes a stream whose handshake this side holds for done; fails where the server does not.
    pub(super) async fn tls(mut stream: TlsStream<TcpStream>) -> io::Result<Self> {
        let mut early = BytesMut::with_capacity(1024);
        match tokio::time::timeout(FIRST_BYTES_WAIT, stream.read_buf(&mut early)).await {
            Ok(Ok(0)) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other side closed the connection after the handshake",
            )),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => {
                let bytes = Bytes::Tls(Box::new(stream), early);
                Ok(Conn { bytes, _open: None, revoked: None })
            }
        }
    }
}

/// The TLS error inside an I/O error.
pub(super) fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>())
}

impl AsyncRead for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_revocation(cx)?;
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Bytes::Tls(_, early) if early.has_remaining() => {
                let len = early.len().min(buf.remaining());
                buf.put_slice(&early[..len]);
                early.advance(len);
                Poll::Ready(Ok(()))
            }
            Bytes::Tls(tls, _) => Pin::new(tls.as_mut()).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Conn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_revocation(cx)?;
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Bytes::Tls(tls, _) => Pin::new(tls.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_revocation(cx)?;
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Bytes::Tls(tls, _) => Pin::new(tls.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Bytes::Tls(tls, _) => Pin::new(tls.as_mut()).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_revocation(cx)?;
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Bytes::Tls(tls, _) => Pin::new(tls.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.bytes {
            Bytes::Plain(tcp) => tcp.is_write_vectored(),
            Bytes::Tls(tls, _) => tls.is_write_vectored(),
        }
    }
}
