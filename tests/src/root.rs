//! Tests of behavior that needs root.
//!
//! *Invariant:* a skipped test never looks like a passed one: it says so, and if root is required, it fails.

use anyhow::{Result, bail};

/// If this is set, a test that needs root fails without it.
const REQUIRED: &str = "ROLLOUT_REQUIRE_ROOT";

/// Whether the test can run. `what` describes what stays untested if it cannot.
///
/// # Errors
/// When this process does not run as root, and root is required.
pub fn runs_as_root(what: &str) -> Result<bool> {
    // SAFETY: geteuid(2) reads no memory and cannot fail.
    if unsafe { libc::geteuid() } == 0 {
        return Ok(true);
    }
    if std::env::var_os(REQUIRED).is_some_and(|value| !value.is_empty()) {
        bail!("{what}: only root can test it, and {REQUIRED} is set: run the tests as root");
    }
    eprintln!("NOT RUN: {what}: only root can test it");
    Ok(false)
}
