//! Owns: Ctrl-C and SIGTERM.
//!
//! Invariant: the first one never harms a run; only a second Ctrl-C soon after it cancels.
//! Absent: cancelling.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// How long a second Ctrl-C is waited for.
pub(super) const SECOND_WITHIN: Duration = Duration::from_secs(3);

/// Which signal came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Interrupt {
    /// Ctrl-C.
    User,
    /// SIGTERM: whoever sent it does not read what is said.
    Terminate,
}

/// Signals from now on.
#[derive(Debug)]
pub(super) struct Interrupts {
    user: Option<Signal>,
    terminate: Option<Signal>,
}

impl Interrupts {
    /// Listens. Where that fails, a signal ends the process as it always did.
    pub(super) fn listen() -> Self {
        Self {
            user: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
        }
    }

    /// The next signal.
    pub(super) async fn next(&mut self) -> Interrupt {
        tokio::select! {
            () = received(&mut self.user) => Interrupt::User,
            () = received(&mut self.terminate) => Interrupt::Terminate,
        }
    }

    /// True where a second Ctrl-C comes soon.
    pub(super) async fn second(&mut self) -> bool {
        tokio::time::timeout(SECOND_WITHIN, received(&mut self.user)).await.is_ok()
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
