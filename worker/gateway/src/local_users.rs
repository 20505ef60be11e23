//! Owns: which users of this host may connect to a gateway on loopback. The kernel reports the owner of a connection's
//! socket.
//!
//! Invariant: a connection is served only if its socket belongs to a process of an allowed user. A socket that its
//! process has closed has no owner: the kernel lists it with root's uid and without an inode.
//! Absent: clients on other hosts. Only `insecure` admits them, and without this check.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;

/// A table that changes while it is read may miss an existing row, so it is read this many times.
const LOOKS: u32 = 3;
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(10);
/// The kernel's tables of this process's network namespace.
const TABLES: [&str; 2] = ["/proc/net/tcp", "/proc/net/tcp6"];

/// The users whose processes a gateway on loopback serves.
#[derive(Debug, Clone)]
pub struct LocalUsers(Vec<u32>);

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum UserRefusal {
    #[error(
        "it is from uid {0}, and this store is served to uids {1:?} only: list the uid in store_gateway.allow_uids of rollout-worker, or let everyone on this host in with insecure_tcpstore"
    )]
    Other(u32, Vec<u32>),
    #[error("its client has already closed it, or no process of this host has it")]
    Unknown,
    #[error("cannot determine its user: cannot read /proc/net/tcp or /proc/net/tcp6: {0}")]
    Tables(#[source] io::Error),
}

impl LocalUsers {
    /// This process's own user and root.
    pub fn own() -> Self {
        // SAFETY: geteuid(2) reads no memory and cannot fail.
        let own = unsafe { libc::geteuid() };
        Self(if own == 0 { vec![0] } else { vec![own, 0] })
    }

    /// These users, too.
    #[must_use]
    pub fn and(mut self, uids: &[u32]) -> Self {
        self.0.extend(uids);
        self
    }

    /// Checks that the other end of an accepted connection is a process of one of them.
    pub(super) async fn admit(&self, stream: &TcpStream) -> Result<(), UserRefusal> {
        let ends = stream.peer_addr().and_then(|peer| Ok((peer, stream.local_addr()?)));
        // Without an address the connection has ended.
        let (client, server) = ends.map_err(|_| UserRefusal::Unknown)?;
        for look in 0..LOOKS {
            if look > 0 {
                tokio::time::sleep(LOOK_AGAIN_AFTER).await;
            }
            let found = tokio::task::spawn_blocking(move || user_of(client, server)).await;
            match found.map_err(io::Error::other).flatten().map_err(UserRefusal::Tables)? {
                Some(uid) if self.0.contains(&uid) => return Ok(()),
                Some(uid) => return Err(UserRefusal::Other(uid, self.0.clone())),
                None => {}
            }
        }
        Err(UserRefusal::Unknown)
    }
}

/// The user that owns the client's end of a connection.
fn user_of(client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
    for path in TABLES {
        let table = match File::open(path) {
            Ok(table) => BufReader::new(table),
            // A kernel without IPv6 has no second table.
            Err(error) if error.kind() == ErrorKind::NotFound && path != TABLES[0] => continue,
            Err(error) => return Err(error),
        };
        if let Some(uid) = user_in(table, client, server)? {
            return Ok(Some(uid));
        }
    }
    Ok(None)
}

fn user_in(table: impl BufRead, client: SocketAddr, server: SocketAddr) -> io::Result<Option<u32>> {
    for line in table.lines() {
        if let Some(row) = Row::of(&line?)
            && row.inode != 0
            && (row.local, row.remote) == (canonical(client), canonical(server))
        {
            return Ok(Some(row.uid));
        }
    }
    Ok(None)
}

/// One line of a table.
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    uid: u32,
    inode: u64,
}

impl Row {
    fn of(line: &str) -> Option<Self> {
        // sl local remote state queues timer retransmits uid timeout inode ...
        let mut fields = line.split_ascii_whitespace().skip(1);
        let (local, remote) = (address(fields.next()?)?, address(fields.next()?)?);
        let uid = fields.nth(4)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Self { local, remote, uid, inode })
    }
}

/// An address as the tables write it: words of 32 bits, each in the order of this machine, and a port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| {
        let hex = ip.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(hex, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            Ipv6Addr::from(bytes).into()
        }
        _ => return None,
    };
    Some(canonical(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?)))
}

/// An IPv4-mapped IPv6 address becomes that IPv4 address. Scopes and flow labels are ignored.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    const HEAD: &str = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    fn uid(rows: &[&str], client: &str, server: &str) -> Option<u32> {
        let table = format!("{HEAD}{}\n", rows.join("\n"));
        let (client, server) = (client.parse().unwrap(), server.parse().unwrap());
        user_in(table.as_bytes(), client, server).unwrap()
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_connections_user_is_that_of_the_clients_end() {
        let rows = [
            "   0: 0100007F:72D8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 501 1 ffff 100 0 0 10 0",
            "   1: 0100007F:72D8 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 502 1 ffff 20 4 30 10 -1",
            "   2: 0100007F:9C40 0100007F:72D8 01 00000000:00000000 00:00000000 00000000  1001        0 503 1 ffff 20 4 30 10 -1",
        ];
        assert_eq!(uid(&rows, "127.0.0.1:40000", "127.0.0.1:29400"), Some(1001));
        assert_eq!(uid(&rows, "127.0.0.1:40001", "127.0.0.1:29400"), None);
        assert_eq!(uid(&rows, "127.0.0.1:40000", "127.0.0.1:29401"), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn a_socket_that_its_process_has_closed_is_not_roots() {
        let closed = "   2: 0100007F:9C40 0100007F:72D8 06 00000000:00000000 03:00001770 00000000     0        0 0 3 ffff";
        assert_eq!(uid(&[closed], "127.0.0.1:40000", "127.0.0.1:29400"), None);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn ipv6_and_ipv4_in_its_form_are_found() {
        let mapped = "   0: 0000000000000000FFFF00000100007F:9C40 0000000000000000FFFF00000100007F:72D8 01 00000000:00000000 00:00000000 00000000  1002        0 77 1 ffff";
        assert_eq!(uid(&[mapped], "127.0.0.1:40000", "127.0.0.1:29400"), Some(1002));
        let v6 = "   0: 00000000000000000000000001000000:9C40 00000000000000000000000001000000:72D8 01 00000000:00000000 00:00000000 00000000  1003        0 78 1 ffff";
        assert_eq!(uid(&[v6], "[::1]:40000", "[::1]:29400"), Some(1003));
    }

    /// Connects, as that user if this process may switch to it; returns the client's and the gateway's end.
    async fn connected(user: Option<u32>) -> (std::net::TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        // On a separate thread, because the file system's user is set per thread.
        let connect = std::thread::spawn(move || {
            if let Some(user) = user {
                // SAFETY: setfsuid(2) reads no memory.
                unsafe { libc::setfsuid(user) };
            }
            std::net::TcpStream::connect(address).unwrap()
        });
        let (stream, _) = listener.accept().await.unwrap();
        (connect.join().unwrap(), stream)
    }

    #[tokio::test]
    async fn this_process_is_served_and_a_client_that_has_gone_is_not() {
        let users = LocalUsers::own();
        let (client, stream) = connected(None).await;
        users.admit(&stream).await.unwrap();
        drop(client);
        assert!(matches!(users.admit(&stream).await, Err(UserRefusal::Unknown)));
    }

    #[tokio::test]
    async fn another_user_is_refused_unless_it_is_listed() {
        // SAFETY: geteuid(2) reads no memory and cannot fail.
        let own = unsafe { libc::geteuid() };
        // To a gateway of another user, this process is foreign. This needs no root.
        let users = LocalUsers(vec![own.wrapping_add(1)]);
        let (_client, stream) = connected(None).await;
        let refused = users.admit(&stream).await.unwrap_err();
        assert!(matches!(refused, UserRefusal::Other(uid, _) if uid == own), "{refused}");
        users.and(&[own]).admit(&stream).await.unwrap();
    }

    #[tokio::test]
    async fn root_does_not_serve_other_users() {
        // SAFETY: geteuid(2) reads no memory and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!(
                "NOT RUN: a connection of another user to root's gateway: only root can make it"
            );
            return;
        }
        let users = LocalUsers::own();
        let (_client, stream) = connected(Some(54_321)).await;
        let refused = users.admit(&stream).await.unwrap_err();
        assert!(matches!(refused, UserRefusal::Other(54_321, _)), "{refused}");
        users.and(&[54_321]).admit(&stream).await.unwrap();
    }
}
