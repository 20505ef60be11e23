//! The confirmation before an irreversible operation.
//!
//! Invariant: without a terminal there is no prompt: `--yes` is the only consent. Absent: a confirmation
//! of operations that a second command can undo.

use std::io::{BufRead as _, IsTerminal as _, Write as _};

use super::Failure;

/// Whether `--yes` was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Consent {
    /// `--yes` was given.
    Given,
    /// The user must type the name.
    Wanted,
}

/// Asks the user to type the name of what will be deleted or changed, unless consent was given. `what` is the
/// irreversible operation: "deleting run x".
///
/// # Errors
/// Exit status 6 without consent.
pub(crate) fn confirm(what: &str, name: &str, consent: Consent) -> anyhow::Result<()> {
    if consent == Consent::Given {
        return Ok(());
    }
    if !std::io::stdin().is_terminal() {
        return Err(Failure::refused(format!(
            "{what} cannot be undone, and there is no terminal for a confirmation: add --yes"
        ))
        .into());
    }
    let mut stderr = std::io::stderr().lock();
    write!(stderr, "{what} cannot be undone; type {name} to continue: ")?;
    stderr.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    match answer.trim() == name {
        true => Ok(()),
        false => Err(Failure::refused(format!("nothing was done: that is not {name}")).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_consent_skips_the_prompt() {
        assert!(confirm("deleting run eval", "eval", Consent::Given).is_ok());
    }
}
