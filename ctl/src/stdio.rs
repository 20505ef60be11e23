//! Owns: writing to stdout and stderr.
//!
//! Invariant: a reader that has gone, such as `head`, never makes a command panic; the command's work is what counts.
//! In quiet mode, notes are not printed.
//! Absent: colors.

use std::fmt;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

/// Set before anything is printed, by the command line alone.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on no notes are printed.
pub(crate) fn suppress_notes() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether notes are suppressed.
pub(crate) fn are_notes_suppressed() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a note about progress to stderr, as one line. It is not for errors, which are printed even in quiet mode.
pub(crate) fn print_note(line: fmt::Arguments<'_>) {
    if !are_notes_suppressed() {
        to_stderr(&format!("{line}\n"));
    }
}

/// Writes a text to stderr.
pub(crate) fn to_stderr(text: &str) {
    // If stderr is closed, there is no reader left.
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Writes a text to stdout.
pub(crate) fn to_stdout(text: &str) {
    let mut stdout = std::io::stdout().lock();
    // As above; a broken pipe means that the reader wants no more.
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}
