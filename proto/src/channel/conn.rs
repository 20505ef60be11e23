//! The bytes of a connection, in plaintext or under TLS.
//!
//! *Invariant:* if a server refuses the client's certificate, that is reported as a failure of the phase `tls`. With
//! TLS 1.3 a server judges the certificate only after the client considers the handshake done. So a connection counts
//! as made only after the server's first bytes have arrived, which are then read as usual. Without TLS the first bytes
//! show whether the server speaks TLS, if the caller requests this check; if it does, no connection is made.
//!
//! Absent: making the connection (`channel`).

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::OpenConnection;
use crate::revocations::UntilRefused;

/// How long to wait for the server's first bytes. An HTTP/2 server sends its settings at once; one that waits for the
/// client's first is not delayed for longer than this.
const FIRST_BYTES_WAIT: Duration = Duration::from_millis(300);
/// The first bytes of an HTTP/2 client.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The first bytes of a TLS server's answer to bytes that are not a handshake: a TLS alert. No HTTP/2 server begins
/// with a frame whose length has these bytes, because its settings are shorter.
const TLS_ALERT: [u8; 2] = [0x15, 0x03];

/// A connected stream.
pub(super) struct Conn {
    bytes: Bytes,
    /// Bytes that were already read.
    early: BytesMut,
    /// How many bytes that HTTP/2 will write first were already sent.
    sent: usize,
    /// Counts as open while it lives.
    _open: Option<OpenConnection>,
    /// Ready when the peer's certificate is revoked.
    revoked: Option<UntilRefused>,
}

enum Bytes {
    /// Bare TCP.
    Plain(TcpStream),
    /// TLS.
    Tls(Box<TlsStream<TcpStream>>),
}

impl Conn {
    fn new(bytes: Bytes, early: BytesMut, sent: usize) -> Self {
        Conn { bytes, early, sent, _open: None, revoked: None }
    }

    /// A connection without TLS, whatever the server speaks.
    pub(super) fn unchecked(tcp: TcpStream) -> Self {
        Conn::new(Bytes::Plain(tcp), BytesMut::new(), 0)
    }

    /// A connection without TLS; `None` if the server answers with TLS. Only the preface is sent before the answer. A
    /// TLS server reads all of it, so the alert arrives before the connection is closed.
    pub(super) async fn plain(mut tcp: TcpStream) -> io::Result<Option<Self>> {
        tcp.write_all(PREFACE).await?;
        let mut early = BytesMut::with_capacity(1024);
        // If the server is silent or closes the connection, the first request will notice.
        let _ = tokio::time::timeout(FIRST_BYTES_WAIT, first_bytes(&mut tcp, &mut early)).await;
        if early.starts_with(&TLS_ALERT) {
            return Ok(None);
        }
        Ok(Some(Conn::new(Bytes::Plain(tcp), early, PREFACE.len())))
    }

    pub(super) fn counted(self, open: OpenConnection) -> Self {
        Conn { _open: Some(open), ..self }
    }

    /// Ends the connection when the peer's certificate is no longer accepted.
    pub(super) fn until(self, revoked: Option<UntilRefused>) -> Self {
        Conn { revoked, ..self }
    }

    /// Fails once the peer's certificate is revoked, and wakes the task then.
    fn check_revocation(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.revoked.as_mut().is_some_and(|revoked| Pin::new(revoked).poll(cx).is_ready()) {
            true => {
                let why = "the peer's certificate is revoked";
                Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
            }
            false => Ok(()),
        }
    }

    /// Takes a stream whose handshake is done for this side; fails if the server refuses it.
    pub(super) async fn tls(mut stream: TlsStream<TcpStream>) -> io::Result<Self> {
        let mut early = BytesMut::with_capacity(1024);
        match tokio::time::timeout(FIRST_BYTES_WAIT, stream.read_buf(&mut early)).await {
            Ok(Ok(0)) => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the other side closed the connection after the handshake",
            )),
            Ok(Err(error)) => Err(error),
            Ok(Ok(_)) | Err(_) => Ok(Conn::new(Bytes::Tls(Box::new(stream)), early, 0)),
        }
    }

    /// How many of the `len` bytes to write were already sent; `None` if there are none.
    fn already_sent(&mut self, len: usize) -> Option<usize> {
        let skipped = self.sent.min(len);
        self.sent -= skipped;
        (skipped > 0).then_some(skipped)
    }
}

/// Reads enough bytes to recognize an alert.
async fn first_bytes(tcp: &mut TcpStream, early: &mut BytesMut) -> io::Result<()> {
    while early.len() < TLS_ALERT.len() && tcp.read_buf(early).await? > 0 {}
    Ok(())
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
        let conn = self.get_mut();
        if conn.early.has_remaining() {
            let len = conn.early.len().min(buf.remaining());
            buf.put_slice(&conn.early[..len]);
            conn.early.advance(len);
            return Poll::Ready(Ok(()));
        }
        match &mut conn.bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Bytes::Tls(tls) => Pin::new(tls.as_mut()).poll_read(cx, buf),
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
        if let Some(len) = self.already_sent(buf.len()) {
            return Poll::Ready(Ok(len));
        }
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Bytes::Tls(tls) => Pin::new(tls.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_revocation(cx)?;
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Bytes::Tls(tls) => Pin::new(tls.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Bytes::Tls(tls) => Pin::new(tls.as_mut()).poll_shutdown(cx),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_revocation(cx)?;
        let first = bufs.iter().map(|buf| buf.len()).find(|len| *len > 0).unwrap_or(0);
        if let Some(len) = self.already_sent(first) {
            return Poll::Ready(Ok(len));
        }
        match &mut self.get_mut().bytes {
            Bytes::Plain(tcp) => Pin::new(tcp).poll_write_vectored(cx, bufs),
            Bytes::Tls(tls) => Pin::new(tls.as_mut()).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.bytes {
            Bytes::Plain(tcp) => tcp.is_write_vectored(),
            Bytes::Tls(tls) => tls.is_write_vectored(),
        }
    }
}
