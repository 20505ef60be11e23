//! Owns: how commands read an input, and what they show of it.
//!
//! Invariant: reading a bad input stops after a screen of errors.
//! Absent: `--dry-run`, which lists them all.

use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rollout_batch::input::files::InputFile;
use rollout_batch::input::scan::{ScanControl, ScanOptions};

use crate::progress::Progress;

/// Errors of an input that are shown before the command ends without submitting.
pub(super) const ERRORS_SHOWN: usize = 20;
const EVERY: Duration = Duration::from_millis(200);

/// Options that end the reading with the chunk of the last error that is shown.
pub(super) fn options() -> ScanOptions {
    ScanOptions {
        errors_max: ERRORS_SHOWN,
        stop_after_errors: ERRORS_SHOWN as u64,
        ..ScanOptions::default()
    }
}

/// Shows the progress of a reading until it is dropped.
pub(super) async fn show(
    progress: &Progress,
    control: &ScanControl,
    files: &[InputFile],
) -> Infallible {
    let total = files.iter().map(|file| file.bytes).sum();
    loop {
        tokio::time::sleep(EVERY).await;
        let bytes = control.bytes.load(Ordering::Relaxed);
        let rows = control.rows.load(Ordering::Relaxed);
        progress.reading(bytes, total, rows);
    }
}
