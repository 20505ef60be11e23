//! Namespaces: whose runs these are, and how much they may use together.
//!
//! *Invariant:* `default` exists from the start, and no namespace is ever removed while it has
//! runs. `running` is derived from the runs.

use crate::cordon::NameCordon;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The namespace of requests that name none.
pub(crate) const DEFAULT: &str = "default";

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    /// Rows that its runs together may have at workers; 0 for no cap.
    pub(crate) running_rows_max: u64,
    /// What operators have cordoned of its workers, by name.
    pub(crate) cordons: BTreeMap<String, NameCordon>,
    /// Rows that they have there.
    #[serde(skip)]
    pub(crate) running: u64,
    /// Rows without an outcome that its runs together may have at no worker; 0 for no bound.
    pub(crate) pending_rows_max: u64,
    /// Runs of it that may not have ended; 0 for no bound.
    pub(crate) runs_max: u32,
}
