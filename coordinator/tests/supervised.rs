//! A member under a supervisor that uses `sd_notify(3)`: the test is the supervisor.

use std::os::unix::net::UnixDatagram;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

struct Member(Child);

impl Drop for Member {
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
fn a_member_says_when_it_serves_that_it_lives_and_that_it_stops() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = |name: &str| dir.path().join(name);
    let listener = UnixDatagram::bind(path("notify")).expect("bind");
    listener.set_read_timeout(Some(Duration::from_secs(120))).expect("a timeout");
    let config = format!(
        "name = \"c1\"\ndata_dir = {:?}\n[listen]\nclient = \"127.0.0.1:0\"\npeer = \"127.0.0.1:0\"\n\
         http = \"127.0.0.1:0\"\n[tls]\ninsecure_plaintext = true\n[store]\nurl = \"file://{}\"\n",
        path("data"),
        path("store").display()
    );
    std::fs::create_dir(path("store")).expect("a store");
    std::fs::write(path("c.toml"), config).expect("a configuration");
    let child = Command::new(env!("CARGO_BIN_EXE_rollout-coordinator"))
        .arg("--config")
        .arg(path("c.toml"))
        .env("NOTIFY_SOCKET", path("notify"))
        .env("WATCHDOG_USEC", "100000")
        .env_remove("WATCHDOG_PID")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut member = Member(child);
    until(&listener, "READY=1");
    until(&listener, "STATUS=waiting to be made part of a cluster");
    until(&listener, "WATCHDOG=1");
    until(&listener, "WATCHDOG=1");
    // SAFETY: a signal to a child that was not waited for.
    unsafe { libc::kill(member.0.id() as i32, libc::SIGTERM) };
    until(&listener, "STOPPING=1");
    assert!(member.0.wait().expect("it ends").success());
}
