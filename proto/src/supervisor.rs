//! Notifies the supervisor that started this process, by the protocol of `sd_notify(3)`.
//!
//! *Invariant:* without `NOTIFY_SOCKET` nothing is sent, and a supervisor that does not listen never blocks the
//! process.
//! Absent: the decision whether a process is ready, and its status.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// How often the status is sent, unless a watchdog needs it more often.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// The longest status that is sent, in bytes.
const STATUS_BYTES_MAX: usize = 256;

/// The supervisor of this process, if there is one that listens.
#[derive(Clone, Debug, Default)]
pub struct Supervisor {
    socket: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// Time without a sign of life after which the supervisor kills this process.
    watchdog: Option<Duration>,
}

impl Supervisor {
    /// The supervisor named by the environment: `NOTIFY_SOCKET`, and for the watchdog `WATCHDOG_USEC` and
    /// `WATCHDOG_PID`.
    pub fn from_env() -> Self {
        let variable = |name| std::env::var(name).ok();
        let own = std::process::id().to_string();
        let mine = variable("WATCHDOG_PID").is_none_or(|pid| pid == own);
        let watchdog = variable("WATCHDOG_USEC").and_then(|usec| usec.parse().ok());
        let socket = std::env::var_os("NOTIFY_SOCKET");
        Self::at(socket.as_deref(), watchdog.filter(|_| mine).map(Duration::from_micros))
    }

    /// The supervisor that listens at `socket`: a path or, after an `@`, a name in the abstract namespace.
    fn at(socket: Option<&OsStr>, watchdog: Option<Duration>) -> Self {
        let Some(name) = socket.filter(|name| !name.is_empty()) else { return Self::default() };
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            _ => SocketAddr::from_pathname(name),
        };
        let open = || -> std::io::Result<(UnixDatagram, SocketAddr)> {
            let socket = UnixDatagram::unbound()?;
            // If a supervisor's buffer is full, it gets the next message.
            socket.set_nonblocking(true)?;
            Ok((socket, address?))
        };
        match open() {
            Ok(pair) => Self { socket: Some(Arc::new(pair)), watchdog },
            Err(error) => {
                tracing::warn!(%error, "cannot speak to the supervisor that NOTIFY_SOCKET names");
                Self::default()
            }
        }
    }

    /// Reports that this process has started and serves.
    pub fn ready(&self) {
        self.notify("READY=1");
    }

    /// Reports that this process is shutting down on request.
    pub fn stopping(&self) {
        self.notify("STOPPING=1");
    }

    /// Sends signs of life twice as often as the watchdog requires, and the status of the process, forever.
    ///
    /// Runs on the threads that do the work: if they are stuck, the supervisor is right to restart the process.
    pub async fn keep_alive(self, standing: impl Fn() -> String) {
        if self.socket.is_none() {
            return std::future::pending().await;
        }
        let every = self.watchdog.map_or(REPORT_EVERY, |limit| REPORT_EVERY.min(limit / 2));
        let mut tick = tokio::time::interval(every.max(Duration::from_millis(1)));
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut sent = String::new();
        loop {
            tick.tick().await;
            if self.watchdog.is_some() {
                self.notify("WATCHDOG=1");
            }
            let now = standing();
            if now != sent {
                let line = now.lines().next().unwrap_or_default();
                let end = line.floor_char_boundary(STATUS_BYTES_MAX);
                self.notify(&format!("STATUS={}", &line[..end]));
                sent = now;
            }
        }
    }

    fn notify(&self, what: &str) {
        if let Some(socket) = &self.socket
            && let Err(error) = socket.0.send_to_addr(what.as_bytes(), &socket.1)
        {
            tracing::debug!(%error, what, "the supervisor does not listen");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut bytes = [0; 512];
        let length = listener.recv(&mut bytes).expect("a message within the timeout");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    fn listen(name: &OsStr) -> UnixDatagram {
        let address = match name.as_bytes() {
            [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest),
            _ => SocketAddr::from_pathname(name),
        };
        let listener = UnixDatagram::bind_addr(&address.expect("an address")).expect("bind");
        listener.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        listener
    }

    #[test]
    fn a_supervisor_hears_that_the_process_is_ready_and_that_it_stops() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify").into_os_string();
        let name = std::ffi::OsString::from(format!("@rollout-notify-{}", std::process::id()));
        for place in [path, name] {
            let listener = listen(&place);
            let supervisor = Supervisor::at(Some(&place), None);
            supervisor.ready();
            supervisor.stopping();
            assert_eq!([received(&listener), received(&listener)], ["READY=1", "STOPPING=1"]);
        }
    }

    #[tokio::test]
    async fn signs_of_life_come_twice_per_watchdog_period_and_a_status_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("notify").into_os_string();
        let listener = listen(&path);
        let supervisor = Supervisor::at(Some(&path), Some(Duration::from_millis(20)));
        let alive = tokio::spawn(supervisor.keep_alive(|| "following c1\n".into()));
        let all = tokio::task::spawn_blocking(move || [(); 4].map(|()| received(&listener)));
        let all = all.await.expect("heard");
        assert_eq!(all, ["WATCHDOG=1", "STATUS=following c1", "WATCHDOG=1", "WATCHDOG=1"]);
        alive.abort();
    }

    #[tokio::test]
    async fn without_a_supervisor_nothing_is_sent_and_nothing_fails() {
        for place in [None, Some(OsStr::new("")), Some(OsStr::new("/nowhere/at/all"))] {
            let supervisor = Supervisor::at(place, None);
            supervisor.ready();
            let alive = supervisor.keep_alive(String::new);
            let ended = tokio::time::timeout(Duration::from_millis(20), alive).await;
            assert!(ended.is_err());
        }
    }
}
