//! A worker under a supervisor that speaks `sd_notify(3)`: the test is the supervisor.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for a message; others may come before it.
fn until(listener: &UnixDatagram, wanted: &str) {
    let mut bytes = [0; 512];
    loop {
        let length = listener.recv(&mut bytes).unwrap_or_else(|e| panic!("no {wanted}: {e}"));
        if &bytes[..length] == wanted.as_bytes() {
            return;
        }
    }
}

#[test]
fn a_worker_without_a_cluster_has_started_all_the_same_lives_and_says_that_it_stops() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let listener = UnixDatagram::bind(path("notify")).unwrap();
    listener.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let config = format!(
        "name = \"w1\"\ndata_dir = {:?}\nendpoints = [\"127.0.0.1:1\"]\n[tls]\ninsecure_plaintext = true\n\
         [compute]\nprovider = \"none\"\n[[engine]]\nkind = \"mock\"\n",
        path("data")
    );
    std::fs::write(path("w.toml"), config).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_rollout-worker"))
        .arg("--config")
        .arg(path("w.toml"))
        .env("NOTIFY_SOCKET", path("notify"))
        .env("WATCHDOG_USEC", "100000")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let agent = Agent(child);
    until(&listener, "READY=1");
    until(&listener, "WATCHDOG=1");
    until(&listener, "WATCHDOG=1");
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(agent.0.id() as i32, libc::SIGTERM) };
    until(&listener, "STOPPING=1");
}
