//! Owns: the port of the HTTP API: its threads, its connections and their ends.
//!
//! Invariant: callers of this port cannot delay heartbeats or workers, whatever they send or fail to read: the port has
//! threads of its own, which nothing else uses. Connections are bounded, and one that makes no progress is closed after
//! [`SILENCE_MAX`], whether it waits for a request, sends one slowly or does not read its answer.
//! Absent: what a request may do (`answer`).

use crate::config::Config;
use crate::grpc::Shared;
use crate::observe::audit::AuditLog;
use crate::openai::answer::{self, Gate};
use crate::openai::forward::Forwarding;
use crate::openai::state::ApiState;
use anyhow::{Context, Result};
use axum::Router;
use axum::body::Body;
use futures::StreamExt;
use http_body_util::BodyExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::GracefulShutdown;
use rollout_proto::{Incoming, ServerConn, ServerTls};
use rollout_storage::BlobStore;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// Threads of the port.
const THREADS: usize = 2;
/// How long a connection may stay open without progress: a byte of a body, a request or an answer. It is looked at
/// every [`LOOK_EVERY`], so a connection is closed at most that much later.
const SILENCE_MAX: Duration = Duration::from_secs(75);
const LOOK_EVERY: Duration = Duration::from_secs(15);
/// How long the head of a request may take. Between requests, the same time counts.
const HEAD_WITHIN: Duration = SILENCE_MAX;
/// Requests of one connection at a time.
const STREAMS_MAX: u32 = 100;
/// Size limit of a request's head.
const HEAD_BYTES_MAX: u32 = 32 << 10;
/// Headers of a request.
const HEADERS_MAX: usize = 64;
/// Bytes of a request's body that a connection holds before the handler reads them; also of one request.
const WINDOW_BYTES: u32 = 1 << 20;
/// Bytes of an answer that a connection holds until the caller reads them.
const SEND_BUFFER_BYTES: usize = 256 << 10;
/// How long requests in progress may take to end when the member stops.
const STOP_WITHIN: Duration = Duration::from_secs(1);

/// The port, open and not served yet.
pub(crate) struct ApiPort {
    incoming: Incoming,
    base_url: String,
}

impl ApiPort {
    /// Listens, if the port is configured.
    ///
    /// # Errors
    /// The address is in use, or the certificate cannot be used.
    pub(crate) async fn bind(config: &Config, connections_max: usize) -> Result<Option<Self>> {
        let Some(settings) = &config.api else { return Ok(None) };
        let addr = settings.listen;
        let listener = TcpListener::bind(addr).await;
        let listener = listener.with_context(|| format!("cannot listen on {addr} (api)"))?;
        let tls = ServerTls::for_https(&config.security).context("[tls]")?;
        let scheme = if tls.validity().is_some() { "https" } else { "http" };
        let base_url = settings.advertise.clone();
        let base_url = base_url.unwrap_or_else(|| format!("{scheme}://{addr}/v1"));
        let incoming = tls.incoming(listener).at_most(connections_max);
        Ok(Some(Self { incoming, base_url }))
    }

    /// Serves the API until `stop`.
    ///
    /// # Errors
    /// The system has no threads left, or the certificate cannot be used.
    pub(crate) fn serve(
        self,
        (shared, audit): (Arc<Shared>, Arc<AuditLog>),
        store: BlobStore,
        stop: CancellationToken,
    ) -> Result<ApiServer> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(THREADS)
            .thread_name("api")
            .enable_all()
            .build()
            .context("no threads for the HTTP API")?;
        let cluster = Arc::new(Forwarding::new(shared).context("[tls]")?);
        let gate = Gate::new(ApiState::new(cluster, store), audit);
        tracing::info!(base_url = self.base_url, "the HTTP API is served");
        let serving = runtime.spawn(serve(self.incoming, gate, stop));
        Ok(ApiServer { runtime: Some(runtime), serving })
    }
}

/// The port while it is served. Its threads end when this is dropped, also within another runtime.
pub(crate) struct ApiServer {
    runtime: Option<Runtime>,
    serving: JoinHandle<()>,
}

impl ApiServer {
    /// Waits until the requests in progress have ended, for a bounded time. The caller has cancelled `stop`.
    pub(crate) async fn end(mut self) {
        let _ = (&mut self.serving).await;
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(incoming: Incoming, gate: Arc<Gate>, stop: CancellationToken) {
    let router = answer::router(gate.clone());
    let accepting = accept(incoming, router, GracefulShutdown::new(), &stop);
    tokio::select! {
        () = accepting => {}
        () = gate.follow_keys() => {}
    }
}

/// Serves connections until `stop`, and then those that are open until their requests have ended.
async fn accept(
    mut incoming: Incoming,
    router: Router,
    open: GracefulShutdown,
    stop: &CancellationToken,
) {
    let builder = builder();
    loop {
        let accepted = tokio::select! {
            accepted = incoming.next() => accepted,
            () = stop.cancelled() => break,
        };
        let Some(Ok(conn)) = accepted else { continue };
        tokio::spawn(serve_one(&builder, conn, router.clone(), &open));
    }
    drop(incoming);
    let _ = tokio::time::timeout(STOP_WITHIN, open.shutdown()).await;
}

fn builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_headers(HEADERS_MAX)
        .max_buf_size(HEAD_BYTES_MAX as usize);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .keep_alive_interval(LOOK_EVERY)
        .keep_alive_timeout(LOOK_EVERY);
    builder
}

/// One connection of a caller, as an extension of its requests.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) addr: SocketAddr,
    progress: Progress,
}

/// The future that serves a connection. It borrows nothing.
fn serve_one(
    builder: &Builder<TokioExecutor>,
    conn: ServerConn,
    router: Router,
    open: &GracefulShutdown,
) -> impl Future<Output = ()> + use<> {
    let connection = Connection { addr: conn.peer().addr, progress: Progress::default() };
    let progress = connection.progress.clone();
    let service = hyper::service::service_fn(move |request| {
        respond(router.clone(), connection.clone(), request)
    });
    let served = builder.serve_connection(TokioIo::new(conn), service).into_owned();
    let served = open.watch(served);
    async move {
        tokio::select! {
            ended = served => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection of the HTTP API failed");
                }
            }
            () = progress.stalled(LOOK_EVERY, SILENCE_MAX) => {}
        }
    }
}

async fn respond(
    router: Router,
    connection: Connection,
    mut request: http::Request<hyper::body::Incoming>,
) -> Result<http::Response<Body>, std::convert::Infallible> {
    let progress = connection.progress.clone();
    progress.note();
    request.extensions_mut().insert(connection);
    let received = progress.clone();
    let request = request.map(|body| Body::new(body.map_frame(move |frame| received.seen(frame))));
    let response = router.oneshot(request).await?;
    progress.note();
    Ok(response.map(|body| Body::new(body.map_frame(move |frame| progress.seen(frame)))))
}

/// Counts the steps of a connection.
#[derive(Clone, Debug, Default)]
struct Progress(Arc<AtomicU64>);

impl Progress {
    fn note(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn seen<F>(&self, frame: F) -> F {
        self.note();
        frame
    }

    /// Waits until there was no step for `silence_max`, in looks that are `look_every` apart.
    async fn stalled(&self, look_every: Duration, silence_max: Duration) {
        let (mut steps, mut silence) = (self.0.load(Ordering::Relaxed), Duration::ZERO);
        while silence < silence_max {
            tokio::time::sleep(look_every).await;
            let now = self.0.load(Ordering::Relaxed);
            silence = if now == steps { silence + look_every } else { Duration::ZERO };
            steps = now;
        }
    }
}

#[cfg(test)]
mod tests;
