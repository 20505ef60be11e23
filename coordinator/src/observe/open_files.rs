//! How many connections a member takes, by how many files it may have open.
//!
//! *Invariant:* the ports together leave half of the open-file limit, at most 4,096 files, to log, image and snapshots
//! (a quarter if that is more). Excess connections are refused, so the database never runs out of files, which would
//! end the member. A connection to the HTTP port, whose callers are unknown, keeps its place for a bounded time.
//! Absent: bounds for one address and one identity, which the listeners have.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Files that are reserved for the database if the limit allows it.
const DATABASE_FILES: u64 = 4096;
/// The limit that is assumed if the system sets none.
const UNLIMITED: u64 = 1 << 20;

/// Concurrent connections of each port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) clients: usize,
    pub(crate) peers: usize,
    pub(crate) http: usize,
    pub(crate) unenrolled: usize,
    /// 0 if this member does not serve the HTTP API.
    pub(crate) api: usize,
}

impl Shares {
    /// Divides a limit of open files, with or without the port of the HTTP API.
    pub(crate) fn of(files: u64, serves_api: bool) -> Self {
        let share = |part: u64, least: u64| usize::try_from(part.max(least)).unwrap_or(usize::MAX);
        let database = (files / 4).max((files / 2).min(DATABASE_FILES));
        // Few, and out of the clients' share, because these callers are not authenticated.
        let unenrolled = share((files / 64).min(64), 8);
        let peers = share((files / 16).min(1024), 16);
        let http = share((files / 16).min(1024), 8);
        let api = if serves_api { share((files / 8).min(4096), 16) } else { 0 };
        let others = database + (peers + http + unenrolled + api) as u64;
        Self { clients: share(files.saturating_sub(others), 16), peers, http, unenrolled, api }
    }
}

/// Raises the limit of open files as far as the system allows, and returns it.
pub(crate) fn raise_limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes to the struct that the pointer refers to.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return 1024;
    }
    if limit.rlim_cur < limit.rlim_max {
        let wanted = libc::rlimit { rlim_cur: limit.rlim_max.min(UNLIMITED), ..limit };
        // SAFETY: the call reads from the struct that the pointer refers to.
        if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const wanted) } == 0 {
            limit = wanted;
        }
    }
    limit.rlim_cur.min(UNLIMITED)
}

/// A listener for HTTP that closes connections at once beyond its share, and those that stay open too long.
pub(crate) struct Bounded {
    listener: TcpListener,
    room: Arc<Semaphore>,
    open_max: Duration,
}

impl Bounded {
    /// Accepts this many concurrent connections, each for at most `open_max`.
    pub(crate) fn new(listener: TcpListener, connections_max: usize, open_max: Duration) -> Self {
        let room = Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS)));
        Self { listener, room, open_max }
    }
}

impl axum::serve::Listener for Bounded {
    type Io = Counted;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Counted, SocketAddr) {
        loop {
            let (stream, addr) = axum::serve::Listener::accept(&mut self.listener).await;
            match self.room.clone().try_acquire_owned() {
                Ok(permit) => {
                    let ends = Box::pin(tokio::time::sleep(self.open_max));
                    return (Counted { stream, ends, _permit: permit }, addr);
                }
                Err(_) => tracing::debug!(%addr, "too many connections for HTTP: refused"),
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection that holds a place until it is closed. After its time it returns errors.
pub(crate) struct Counted {
    stream: TcpStream,
    ends: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl Counted {
    /// Fails once the time is over. Before that, it wakes the task when the time comes.
    fn check_time(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.ends.as_mut().poll(cx) {
            Poll::Ready(()) => Err(io::Error::new(io::ErrorKind::TimedOut, "open for too long")),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check_time(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_time(cx)?;
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::serve::Listener as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[test]
    fn all_ports_together_leave_files_to_the_database_and_the_clients_get_the_rest() {
        for (files, database) in
            [(512, 256), (1024, 512), (8192, 4096), (20_000, 5000), (65_536, 16_384)]
        {
            for serves_api in [false, true] {
                let Shares { clients, peers, http, unenrolled, api } =
                    Shares::of(files, serves_api);
                let all = clients + peers + http + unenrolled + api;
                assert_eq!(all as u64, files - database, "{files}");
                assert!(clients > peers && peers >= 16, "{files}");
                assert_eq!(api > 0, serves_api);
            }
        }
        let clients = |files| Shares::of(files, false).clients;
        assert!(clients(20_000) > 12_000 && clients(65_536) > 40_000);
    }

    #[tokio::test]
    async fn a_connection_over_the_share_is_closed_and_a_place_that_is_left_is_given_again() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let addr = listener.local_addr().expect("an address");
        let mut bounded = Bounded::new(listener, 1, Duration::from_secs(60));
        let _first = TcpStream::connect(addr).await.expect("connected");
        let (held, _) = bounded.accept().await;
        let accepting = tokio::spawn(async move { bounded.accept().await.1 });
        let mut second = TcpStream::connect(addr).await.expect("connected");
        let mut byte = [0];
        assert!(matches!(second.read(&mut byte).await, Ok(0) | Err(_)), "refused");
        drop(held);
        let third = TcpStream::connect(addr).await.expect("connected");
        let served = accepting.await.expect("accepted");
        assert_eq!(served, third.local_addr().expect("an address"));
    }

    #[tokio::test]
    async fn silent_or_endless_callers_hold_their_places_for_a_bounded_time() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
        let addr = listener.local_addr().expect("an address");
        let open_max = Duration::from_millis(300);
        let app = axum::Router::new().route("/", axum::routing::get(|| async { "served" }));
        let serving = axum::serve(Bounded::new(listener, 2, open_max), app);
        let serving = tokio::spawn(serving.into_future());
        let mut silent = TcpStream::connect(addr).await.expect("connected");
        let mut endless = TcpStream::connect(addr).await.expect("connected");
        let dripping = tokio::spawn(async move {
            let mut next: &[u8] = b"GET / HTTP/1.1\r\nx: ";
            while endless.write_all(next).await.is_ok() {
                next = b"x";
                tokio::time::sleep(open_max / 10).await;
            }
        });
        let mut byte = [0];
        let limit = Duration::from_secs(30);
        let closed = tokio::time::timeout(limit, silent.read(&mut byte)).await.expect("in time");
        assert!(matches!(closed, Ok(0) | Err(_)), "{closed:?}");
        tokio::time::timeout(limit, dripping).await.expect("in time").expect("no panic");
        // A busy machine may need longer than a connection may stay open.
        let begun = std::time::Instant::now();
        while !ask(addr).await.is_ok_and(|answer| answer.ends_with("served")) {
            assert!(begun.elapsed() < limit, "no caller is served");
        }
        serving.abort();
    }

    async fn ask(addr: SocketAddr) -> io::Result<String> {
        let mut stream = TcpStream::connect(addr).await?;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}
