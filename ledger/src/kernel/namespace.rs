//! Namespaces: the owners of runs, and how much each may use in total.
//!
//! *Invariant:* `default` exists from the start, and no namespace is ever removed while it has runs. `running` is
//! derived from the runs.

use crate::fleet::cordon::NameCordon;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The namespace of requests that name none.
pub(crate) const DEFAULT: &str = "default";

/// One namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Namespace {
    /// Rows that its runs together may have at workers; 0 for no cap.
    pub(crate) running_rows_max: u64,
    /// The operators' cordons of its workers, by name.
    pub(crate) cordons: BTreeMap<String, NameCordon>,
    /// Rows that they have there.
    #[serde(skip)]
    pub(crate) running: u64,
    /// The most rows of its runs without an outcome and not at a worker; 0 for no bound.
    pub(crate) pending_rows_max: u64,
    /// The most runs of it that have not ended; 0 for no bound.
    pub(crate) runs_max: u32,
}
