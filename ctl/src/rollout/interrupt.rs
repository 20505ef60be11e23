//! Owns: Ctrl-C and SIGTERM.
//!
//! Invariant: neither harms a run, however often it comes.
//! Absent: canceling a run; `rollout run cancel` does that.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Signals, from the call of `listen` on.
#[derive(Debug)]
pub(super) struct Interrupts {
    user: Option<Signal>,
    terminate: Option<Signal>,
}

impl Interrupts {
    /// Starts to listen. If that fails, a signal ends the process as by default.
    pub(super) fn listen() -> Self {
        Self {
            user: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
        }
    }

    /// The next signal.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            () = received(&mut self.user) => {}
            () = received(&mut self.terminate) => {}
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    if let Some(signal) = signal
        && signal.recv().await.is_some()
    {
        return;
    }
    std::future::pending().await
}
