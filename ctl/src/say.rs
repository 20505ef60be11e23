//! Owns: writing to stdout and stderr.
//!
//! Invariant: a reader that has gone, such as `head`, never makes a command panic; the command's work is what counts.
//! In quiet mode, notes are not printed.
//! Absent: colors.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set before anything is said, by the command line alone.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on nothing is said aside.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether nothing is said aside.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Says on stderr, in a line, what is going on. Never what went wrong, which is said however quiet it is to be.
pub(crate) fn aside(line: fmt::Arguments<'_>) {
    if !is_quiet() {
        to_stderr(&format!("{line}\n"));
    }
}

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
