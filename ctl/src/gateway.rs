//! Owns: `rollout store-gateway`: TCPStore's protocol at this host, the replicated store behind it.
//!
//! Invariant: each connection has its own operations and its own waits, in the order in which its client sent them; an
//! operation under way is repeated under one request id until the cluster has answered it, so it counts once.
//! Absent: state. A gateway that is started again goes on with what the cluster has.

mod connection;
mod store;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rollout_proto::{Client, ClientError};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use self::connection::Connection;
use self::store::JobStore;

/// Where a gateway listens when nothing says otherwise: torchrun's own port.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:29400";
/// Connections at a time: each may have one request under way, and the cluster remembers answers to 1024 of a session.
const CONNECTIONS_MAX: usize = 512;
/// How often the store is used when nobody else does: well within the day after which it would be forgotten.
const USE_EVERY: Duration = Duration::from_secs(3600);
/// Before the next connection is accepted where the last one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Which store, and where.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    /// Namespace of the job.
    pub namespace: String,
    /// The job.
    pub job: String,
    /// The round of its rendezvous; 0 for what outlives rounds.
    pub round: u64,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Anybody who reaches the port may read and write the store.
    pub insecure: bool,
}

/// Why a gateway ended, or did not begin.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The port is reachable from elsewhere, and the protocol knows neither TLS nor passwords.
    #[error(
        "{0} can be reached from other hosts, and TCPStore knows no TLS: listen on 127.0.0.1, or say --insecure-tcpstore"
    )]
    Exposed(SocketAddr),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {cause}")]
    Listen {
        /// The address.
        addr: SocketAddr,
        /// Why.
        cause: std::io::Error,
    },
    /// The cluster refuses this gateway.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Serves until it is dropped, or the cluster refuses it for good. `ready` is told where it listens.
pub async fn serve(
    client: Client,
    options: GatewayOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), GatewayError> {
    let listen = options.listen;
    if !listen.ip().is_loopback() && !options.insecure {
        return Err(GatewayError::Exposed(listen));
    }
    let failed = |cause| GatewayError::Listen { addr: listen, cause };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let store = Arc::new(JobStore::open(client, &options).await?);
    store.use_it().await?;
    ready(addr);
    tokio::select! {
        () = accept(listener, store.clone()) => Ok(()),
        error = keep_using(&store) => Err(error.into()),
    }
}

async fn accept(listener: TcpListener, store: Arc<JobStore>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // invariant: nobody closes this semaphore.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, from)) => {
                let store = store.clone();
                tokio::spawn(async move {
                    if let Err(error) = Connection::new(stream, store).run().await {
                        tracing::warn!(%from, %error, "a connection was closed");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// A job may compute for days without its store; it must not be forgotten meanwhile.
async fn keep_using(store: &JobStore) -> ClientError {
    loop {
        tokio::time::sleep(USE_EVERY).await;
        if let Err(error) = store.use_it().await {
            return error;
        }
    }
}
