//! One connection to one endpoint: name, TCP, TLS, HTTP/2, and which of them failed.
//!
//! *Invariant:* a failed connection reports its endpoint and the phase that failed. Both can be read back from the
//! status of the call that needed the connection; nothing of that call was sent.
//!
//! Absent: choosing an endpoint, and retries (`client`).

mod conn;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tonic::transport::Channel;

use self::conn::Conn;
use crate::connect_error::{ANSWERS_WITH_TLS, ConnectError, Phase};
use crate::endpoint::{DialMap, Endpoint, EndpointError, HostPort};
use crate::pki::{CertInfo, inspect_der};
use crate::tls::{ClientTls, server_name};

/// The largest gRPC message, both ways. Clients set it with `max_decoding_message_size` and
/// `max_encoding_message_size`, servers too.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes of one request that changes a shared store, as the cluster replicates it: the keys, the values and a few
/// bytes for each. It is the limit of a cluster's command, 4 MiB, less the other content of a command.
pub const STORE_REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024 - 4 * 1024;
/// HTTP/2 window of one stream.
pub const STREAM_WINDOW_BYTES: u32 = 1024 * 1024;
/// HTTP/2 window of a connection.
pub const CONNECTION_WINDOW_BYTES: u32 = 4 * 1024 * 1024;

/// How a channel connects, and how it detects that the peer is gone.
#[derive(Debug, Clone)]
pub struct ChannelOptions {
    /// Limit for resolving a name and reaching the port.
    pub connect_timeout: Duration,
    /// Limit of the TLS handshake. It is long because a member with thousands of simultaneous callers answers late,
    /// and handshakes that are given up and started again only add to its load.
    pub handshake_timeout: Duration,
    /// Silence after which a keep-alive ping is sent.
    pub keepalive_interval: Duration,
    /// How long the peer may take to answer it.
    pub keepalive_timeout: Duration,
    /// Without TLS, whether to wait for the peer's first bytes in order to recognize a server that speaks TLS. This
    /// takes a round trip.
    pub recognize_tls: bool,
}

impl Default for ChannelOptions {
    fn default() -> Self {
        ChannelOptions {
            connect_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(10),
            keepalive_interval: Duration::from_secs(5),
            keepalive_timeout: Duration::from_secs(3),
            recognize_tls: true,
        }
    }
}

/// A channel that connects when it is first used, and again whenever the connection is lost. This function makes no
/// connection; it fails only on a malformed endpoint.
pub fn channel(
    endpoint: &Endpoint,
    tls: &ClientTls,
    dial_map: &DialMap,
    options: &ChannelOptions,
) -> Result<Channel, EndpointError> {
    Ok(counted_channel(endpoint, tls, dial_map, options)?.0)
}

/// How many connections of a channel are open: one or none.
#[derive(Debug, Clone, Default)]
pub(crate) struct OpenConnections(Arc<AtomicUsize>);

impl OpenConnections {
    pub(crate) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    fn count(&self) -> OpenConnection {
        self.0.fetch_add(1, Ordering::Relaxed);
        OpenConnection(self.clone())
    }
}

/// Counts one connection for as long as it lives.
struct OpenConnection(OpenConnections);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// As [`channel`], with a counter that tells whether it is connected.
pub(crate) fn counted_channel(
    endpoint: &Endpoint,
    tls: &ClientTls,
    dial_map: &DialMap,
    options: &ChannelOptions,
) -> Result<(Channel, OpenConnections), EndpointError> {
    let dialer = Dialer::new(endpoint, tls, dial_map, options);
    let open = dialer.open.clone();
    // The scheme is `http` even over TLS, because the connector does TLS itself, below tonic.
    let uri = format!("http://{}", endpoint.addr);
    let bad = |_| EndpointError::NotHostPort(endpoint.addr.to_string());
    let transport = tonic::transport::Endpoint::from_shared(uri).map_err(bad)?;
    let transport = transport
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true);
    let connector = tower::service_fn(move |_: http::Uri| {
        let dialer = dialer.clone();
        async move { dialer.connect().await.map(TokioIo::new) }
    });
    Ok((transport.connect_with_connector_lazy(connector), open))
}

/// The content of the certificate that a member presents to a new connection, checked as for every connection; `None`
/// in plaintext.
///
/// # Errors
/// The phase at which the connection failed, and why.
pub async fn presented(
    endpoint: &Endpoint,
    tls: &ClientTls,
    dial_map: &DialMap,
    options: &ChannelOptions,
) -> Result<Option<CertInfo>, ConnectError> {
    let dialer = Dialer::new(endpoint, tls, dial_map, options);
    let tcp = dialer.connect_tcp().await?;
    let Some(connector) = tls.connector() else {
        return dialer.plain(tcp).await.map(|_| None);
    };
    let name = server_name(&dialer.server_addr);
    let name = name.map_err(|error| dialer.error(Phase::Tls, &error.to_string()))?;
    let limit = dialer.handshake_limit();
    let stream = dialer.within(Phase::Tls, limit, connector.connect(name, tcp)).await?;
    let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let none = || dialer.error(Phase::Tls, "it presents no certificate that can be read");
    leaf.and_then(inspect_der).map(Some).ok_or_else(none)
}

fn shown(endpoint: &Endpoint, dial_map: &DialMap) -> String {
    let dialed = dial_map.resolve(endpoint);
    match *dialed == endpoint.addr {
        true => endpoint.to_string(),
        false => format!("{endpoint} by way of {dialed}"),
    }
}

#[derive(Clone)]
struct Dialer {
    shown: String,
    dialed: HostPort,
    server_addr: String,
    tls: ClientTls,
    connect_timeout: Duration,
    handshake_timeout: Duration,
    recognize_tls: bool,
    open: OpenConnections,
}

/// The deadline of a step, and its length.
#[derive(Clone, Copy)]
struct Limit {
    deadline: Instant,
    timeout: Duration,
}

impl Limit {
    fn from_now(timeout: Duration) -> Self {
        Limit { deadline: Instant::now() + timeout, timeout }
    }
}

impl Dialer {
    fn new(
        endpoint: &Endpoint,
        tls: &ClientTls,
        dial_map: &DialMap,
        options: &ChannelOptions,
    ) -> Self {
        Dialer {
            shown: shown(endpoint, dial_map),
            dialed: dial_map.resolve(endpoint).clone(),
            server_addr: endpoint.addr.to_string(),
            tls: tls.clone(),
            connect_timeout: options.connect_timeout,
            handshake_timeout: options.handshake_timeout,
            recognize_tls: options.recognize_tls,
            open: OpenConnections::default(),
        }
    }

    fn handshake_limit(&self) -> Limit {
        Limit::from_now(self.handshake_timeout)
    }

    async fn connect(&self) -> Result<Conn, ConnectError> {
        let tcp = self.connect_tcp().await?;
        // Fails only on a dead socket, which the next step reports better.
        let _ = tcp.set_nodelay(true);
        let conn = match self.tls.connector() {
            Some(connector) => self.handshake(connector, tcp).await?,
            None if self.recognize_tls => self.plain(tcp).await?,
            None => Conn::unchecked(tcp),
        };
        Ok(conn.counted(self.open.count()))
    }

    async fn connect_tcp(&self) -> Result<TcpStream, ConnectError> {
        let limit = Limit::from_now(self.connect_timeout);
        let lookup = tokio::net::lookup_host((self.dialed.host.as_str(), self.dialed.port));
        let addrs = self.within(Phase::Dns, limit, lookup).await?;
        let mut last = self.error(Phase::Dns, "the name has no address");
        for addr in addrs.take(8) {
            match self.within(Phase::Tcp, limit, TcpStream::connect(addr)).await {
                Ok(tcp) => return Ok(tcp),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn plain(&self, tcp: TcpStream) -> Result<Conn, ConnectError> {
        let conn = self.within(Phase::Http2, self.handshake_limit(), Conn::plain(tcp)).await?;
        conn.ok_or_else(|| ConnectError {
            permanent: true,
            ..self.error(Phase::Tls, ANSWERS_WITH_TLS)
        })
    }

    async fn handshake(
        &self,
        connector: TlsConnector,
        tcp: TcpStream,
    ) -> Result<Conn, ConnectError> {
        let limit = self.handshake_limit();
        let name = server_name(&self.server_addr);
        let name = name.map_err(|error| self.error(Phase::Tls, &error.to_string()))?;
        let stream = self.within(Phase::Tls, limit, connector.connect(name, tcp)).await?;
        let agreed = stream.get_ref().1.alpn_protocol();
        if agreed.is_some_and(|protocol| protocol != b"h2") {
            return Err(self.error(Phase::Http2, "the other side does not speak HTTP/2"));
        }
        let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let revoked = leaf.and_then(|leaf| self.tls.until_refused(leaf));
        Ok(self.within(Phase::Tls, limit, Conn::tls(stream)).await?.until(revoked))
    }

    async fn within<T>(
        &self,
        phase: Phase,
        limit: Limit,
        step: impl Future<Output = io::Result<T>>,
    ) -> Result<T, ConnectError> {
        match timeout_at(limit.deadline, step).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                let mut failed = self.error(phase, &plain_words(&error));
                failed.permanent = conn::tls_error(&error).is_some();
                Err(failed)
            }
            Err(_) => {
                let limit_ms = limit.timeout.as_millis();
                Err(self.error(phase, &format!("no answer within {limit_ms} ms")))
            }
        }
    }

    fn error(&self, phase: Phase, cause: &str) -> ConnectError {
        let endpoint = self.shown.clone();
        ConnectError { endpoint, phase, cause: cause.to_owned(), permanent: false }
    }
}

/// An I/O error in lower case and without the operating system's number.
fn plain_words(error: &io::Error) -> String {
    let words = error.to_string();
    match error.raw_os_error() {
        Some(number) => words.replace(&format!(" (os error {number})"), "").to_lowercase(),
        None => words,
    }
}

#[cfg(test)]
mod tests;
