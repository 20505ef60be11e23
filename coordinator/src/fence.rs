//! The watchdog of a deposed leader.
//!
//! *Invariant:* from the moment at which a member learns that it leads no more, its streams are
//! closed within [`FENCE_WITHIN`], or the process aborts: a leader that cannot let go must not
//! live. The watchdog is a thread of its own, so that a stuck runtime cannot stop it.

use parking_lot::Mutex;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long closing everything may take: with the watchdog's own step the process is gone within
/// the 5 s that workers and the operator's guide count on.
const FENCE_WITHIN: Duration = Duration::from_millis(4500);

/// Says whether a fencing is under way.
#[derive(Clone, Default)]
pub(crate) struct Fence {
    begun: Arc<Mutex<Option<Instant>>>,
}

impl Fence {
    /// Starts the watchdog.
    pub(crate) fn start() -> std::io::Result<Self> {
        let fence = Self::default();
        let begun = fence.begun.clone();
        std::thread::Builder::new().name("fence".into()).spawn(move || {
            loop {
                std::thread::sleep(Duration::from_millis(100));
                if begun.lock().is_some_and(|at| at.elapsed() > FENCE_WITHIN) {
                    tracing::error!("a deposed leader did not close its streams in time: abort");
                    std::process::abort();
                }
            }
        })?;
        Ok(fence)
    }

    /// Leadership is lost: the time runs.
    pub(crate) fn begin(&self) {
        self.begun.lock().get_or_insert_with(Instant::now);
    }

    /// Everything is closed.
    pub(crate) fn done(&self) {
        *self.begun.lock() = None;
    }
}

/// Fences this process and never lets go, as a leader would that is stuck: what its watchdog is
/// tested with. Returns only where no watchdog can be started.
pub fn fence_and_never_let_go() -> ExitCode {
    crate::init_telemetry("info");
    match Fence::start() {
        Ok(fence) => fence.begin(),
        Err(error) => {
            eprintln!("error: cannot start the watchdog: {error}");
            return ExitCode::FAILURE;
        }
    }
    loop {
        std::thread::park();
    }
}
