//! Owns: ending a member that must not continue.
//!
//! Invariant: nothing is acknowledged after [`stop_process`]: it does not unwind and runs no destructors, because a
//! destructor may wait for the very disk that failed.
//! Absent: recovery. The supervisor starts the process again, and it rejoins from its own disk.

use rollout_storage::{StorageError, end_without_space};

/// Ends the process after a failed write of this member that must not be retried.
pub(crate) fn stop_after(what: &str, error: &StorageError) -> ! {
    if error.is_no_space() {
        end_without_space(&format!("{what}: {error}"));
    }
    stop_process(&format!("{what}: {error}"))
}

/// Says why and ends the process at once.
pub(crate) fn stop_process(reason: &str) -> ! {
    tracing::error!(reason, "this member cannot continue and stops");
    // The subscriber may be asynchronous; the reason must not be lost with the process.
    eprintln!("rollout: this member cannot continue and stops: {reason}");
    std::process::abort()
}
