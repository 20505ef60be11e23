//! Rows of one run under one attempt, as commands, replies and events name them.
//!
//! *Invariant:* the encoding is part of commands and never changes.
//! Absent: who holds them.

use crate::kernel::id::{Attempt, RunNo};
use crate::kernel::rows::Rows;
use serde::{Deserialize, Serialize};

/// Rows under one attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldRows {
    /// Their run.
    pub run: RunNo,
    /// The attempt.
    pub attempt: Attempt,
    /// The rows.
    pub rows: Rows,
}
