//! Owns: writing to stdout and stderr from `rollout`.
//!
//! Invariant: a reader that has gone, such as `head`, never makes a command panic; the run is what counts.
//! Absent: colours.

use std::io::Write;

/// Writes a text to stderr.
pub(crate) fn to_stderr(text: &str) {
    // Nobody is left to be told.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Writes a text to stdout.
pub(crate) fn to_stdout(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // As above; a broken pipe is the reader's wish.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
