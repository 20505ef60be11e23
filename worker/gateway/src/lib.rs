//! A training job's shared store as torch sees it: the store itself, and a gateway that serves TCPStore's protocol to
//! the processes of one host.
//!
//! Invariant: each connection has its own operations and waits, in the order in which its client sent them. An
//! operation in flight is repeated under one request ID until the cluster answers it, so it takes effect once.
//! Absent: state. A restarted gateway continues with what the cluster holds.

mod awaited_keys;
mod batches;
mod calls;
mod connection;
mod exchanges;
#[cfg(test)]
mod fake;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod job_store;
mod local_users;
mod round_address;
mod sessions;
mod unanswered;
mod wait_room;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use rollout_proto::{Client, ClientError, v1};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use self::awaited_keys::Waiting;
use self::connection::Connection;
pub use self::job_store::{JobStore, present};
pub use self::local_users::LocalUsers;
pub use self::round_address::round_address;
pub use self::sessions::{Lent, PAUSE, Sessions, until_answered, was_forgotten};
pub use self::wait_room::WaitRoom;

/// The default listen address of a gateway: torchrun's own port.
pub const LISTEN_DEFAULT: &str = "127.0.0.1:29400";
/// Connections at a time.
const CONNECTIONS_MAX: usize = 512;
/// The pause before the next accept if the last one failed.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Which store to serve, and where.
#[derive(Debug, Clone)]
pub struct GatewayOptions {
    pub namespace: String,
    pub job: String,
    /// The round of its rendezvous; 0 for data that outlives rounds.
    pub round: u64,
    /// The ticket of this host's member of the round; 0 for none.
    pub ticket: u64,
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Anyone who reaches the port may read and write the store. Otherwise only [`LocalUsers`] may.
    pub insecure: bool,
}

/// Why a gateway ended or did not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The port is reachable from other hosts, and the protocol has neither TLS nor passwords.
    #[error(
        "{0} can be reached from other hosts, and TCPStore has no TLS: listen on 127.0.0.1, or add --insecure-tcpstore"
    )]
    Exposed(SocketAddr),
    /// The gateway cannot listen on the address.
    #[error("cannot listen on {addr}: {cause}")]
    Listen { addr: SocketAddr, cause: std::io::Error },
    /// The cluster refuses this gateway.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Serves this process's own user and root until it is dropped, with all connections, or the cluster refuses it
/// permanently. `ready` receives the listen address.
pub async fn serve(
    client: Client,
    options: GatewayOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), GatewayError> {
    serve_users(client, options, LocalUsers::own(), ready).await
}

/// As [`serve`], for a client whose connection other waits use too: their waits share the places of `room`.
pub async fn serve_sharing(
    client: Client,
    room: WaitRoom,
    options: GatewayOptions,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), GatewayError> {
    serve_store((client, room), options, LocalUsers::own(), ready).await
}

/// As [`serve`], for these users of this host.
pub async fn serve_users(
    client: Client,
    options: GatewayOptions,
    users: LocalUsers,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), GatewayError> {
    serve_store((client, WaitRoom::new()), options, users, ready).await
}

async fn serve_store(
    (client, room): (Client, WaitRoom),
    options: GatewayOptions,
    users: LocalUsers,
    ready: impl FnOnce(SocketAddr),
) -> Result<(), GatewayError> {
    let listen = options.listen;
    if !listen.ip().is_loopback() && !options.insecure {
        return Err(GatewayError::Exposed(listen));
    }
    let failed = |cause| GatewayError::Listen { addr: listen, cause };
    let listener = TcpListener::bind(listen).await.map_err(failed)?;
    let addr = listener.local_addr().map_err(failed)?;
    let (namespace, job) = (options.namespace, options.job);
    let (round, ticket) = (options.round, options.ticket);
    let name = v1::StoreName { namespace, job, round, ticket };
    let store = JobStore::sharing(client, room, name);
    store.use_it().await?;
    ready(addr);
    let users = (!options.insecure).then_some(users);
    tokio::select! {
        () = accept(listener, store.clone(), users) => Ok(()),
        error = store.keep_using() => Err(error.into()),
    }
}

/// Serves connections of these users, or of everyone if there are none.
async fn accept(listener: TcpListener, store: JobStore, users: Option<LocalUsers>) {
    let users = Arc::new(users);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    // Dropping the gateway drops this set, which ends every connection.
    let mut connections = JoinSet::new();
    loop {
        // invariant: this semaphore is never closed.
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, from)) => {
                let (store, users) = (store.clone(), users.clone());
                connections.spawn(async move {
                    serve_one(stream, from, store, users.as_ref().as_ref()).await;
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

async fn serve_one(
    stream: TcpStream,
    from: SocketAddr,
    store: JobStore,
    users: Option<&LocalUsers>,
) {
    if let Some(users) = users
        && let Err(reason) = users.admit(&stream).await
    {
        tracing::warn!(%from, %reason, "a connection was refused");
        return;
    }
    if let Err(error) = Connection::new(stream, store).run().await {
        tracing::warn!(%from, %error, "a connection was closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    const VALIDATE: u8 = 0;
    const GET: u8 = 3;
    const WAIT: u8 = 6;

    fn sized(text: &[u8]) -> Vec<u8> {
        [&(text.len() as u64).to_le_bytes(), text].concat()
    }

    /// torch gets in two requests: a wait and a get.
    #[tokio::test]
    async fn a_get_of_a_missing_key_is_answered_with_the_value_at_the_end_of_its_wait() {
        let (client, asked, _member) = fake::start().await;
        let name = v1::StoreName { job: "j".into(), round: 1, ..Default::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(accept(listener, JobStore::new(client, name), None));
        let mut tcp = TcpStream::connect(address).await.expect("it listens");
        let hello = [&[VALIDATE][..], &wire::MAGIC.to_le_bytes()].concat();
        let wait = [&[WAIT][..], &1u64.to_le_bytes(), &sized(b"k")].concat();
        tcp.write_all(&[hello, wait].concat()).await.expect("it reads");
        assert_eq!(tcp.read_u8().await.expect("the end of the wait"), 0);
        tcp.write_all(&[&[GET][..], &sized(b"k")].concat()).await.expect("it reads");
        let mut value = vec![0; 8 + fake::VALUE.len()];
        tcp.read_exact(&mut value).await.expect("a value");
        assert_eq!(value, sized(fake::VALUE));
        assert_eq!(asked.counts(), (1, 1), "it looks once, waits once, and reads no more");
    }
}
