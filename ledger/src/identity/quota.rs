//! Quotas of namespaces: how many runs, pending rows and rows at workers they may have.
//!
//! *Invariant:* a request over a quota is refused whole, before anything changes. A namespace keeps what it has when
//! its quota is lowered, and rows that come back from workers stay: quotas stop only new work.
//!
//! `tally.rs` keeps the usage as runs change, so a check is one lookup. Absent: counters in the records.

use crate::identity::namespace::Namespace;
use crate::kernel::limits;
use crate::kernel::names;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// A change of a namespace's quota. A field that is `None` stays as it is; 0 means no bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quota {
    /// The namespace.
    pub namespace: String,
    /// Whether to create the namespace if it does not exist.
    pub create: bool,
    /// Rows that its runs may have without an outcome and at no worker.
    pub pending_rows_max: Option<u64>,
    /// Rows that its runs together may have at workers.
    pub running_rows_max: Option<u64>,
    /// Runs that have not ended.
    pub runs_max: Option<u32>,
}

/// A namespace at a glance.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceView {
    /// Its name.
    pub name: String,
    /// Rows without an outcome that no worker has.
    pub pending_rows: u64,
    /// How many of these it may have; 0 for no bound, as below.
    pub pending_rows_max: u64,
    /// Rows that workers hold.
    pub running_rows: u64,
    /// How many of these it may have.
    pub running_rows_max: u64,
    /// Runs that have not ended.
    pub runs: u32,
    /// How many of these it may have.
    pub runs_max: u32,
}

impl Operation for Quota {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        // It may create a namespace: their number is bounded.
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Cluster
    }

    fn dry_run(&self, ledger: &Ledger) -> Option<Result<(), Rejection>> {
        Some(ledger.check_quota(self))
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.set_quota(self)
    }
}

impl Ledger {
    fn check_quota(&self, quota: &Quota) -> Result<(), Rejection> {
        names::check_name("namespace's", &quota.namespace)?;
        let exists = self.namespaces.contains_key(&quota.namespace);
        if !exists && !quota.create {
            return Err(Rejection::NamespaceUnknown(quota.namespace.clone()));
        }
        if !exists && self.namespaces.len() >= limits::NAMESPACES_MAX {
            let max = limits::NAMESPACES_MAX as u64;
            return Err(Rejection::Limit { what: "namespaces".into(), max });
        }
        Ok(())
    }

    fn set_quota(&mut self, quota: Quota) -> Result<Reply, Rejection> {
        self.check_quota(&quota)?;
        let namespace = self.namespaces.change_or_make(quota.namespace);
        namespace.pending_rows_max = quota.pending_rows_max.unwrap_or(namespace.pending_rows_max);
        namespace.running_rows_max = quota.running_rows_max.unwrap_or(namespace.running_rows_max);
        namespace.runs_max = quota.runs_max.unwrap_or(namespace.runs_max);
        Ok(Reply::Ok)
    }

    /// Refuses one more run if the namespace has its maximum of runs that have not ended.
    pub(crate) fn admit_run(&self, namespace: &str) -> Result<(), Rejection> {
        let max = self.namespaces.get(namespace).map_or(0, |n| n.runs_max);
        if max == 0 {
            return Ok(());
        }
        let used = u64::from(self.tally.used(namespace).runs);
        match used < u64::from(max) {
            true => Ok(()),
            false => Err(over(namespace, "runs that have not ended", used, max.into())),
        }
    }

    /// Refuses `more` pending rows if they would exceed the quota.
    pub(crate) fn admit_rows(&self, namespace: &str, more: u64) -> Result<(), Rejection> {
        let max = self.namespaces.get(namespace).map_or(0, |n| n.pending_rows_max);
        if max == 0 || more == 0 {
            return Ok(());
        }
        let used = self.tally.used(namespace).open_rows;
        match used.saturating_add(more) <= max {
            true => Ok(()),
            false => Err(over(namespace, "pending rows", used, max)),
        }
    }

    /// One namespace.
    pub fn namespace_view(&self, name: &str) -> Option<NamespaceView> {
        self.namespaces.get(name).map(|namespace| self.view_namespace(name, namespace))
    }

    /// Every namespace, by name.
    pub fn namespace_views(&self) -> Vec<NamespaceView> {
        self.namespaces.iter().map(|(name, n)| self.view_namespace(name, n)).collect()
    }

    fn view_namespace(&self, name: &str, namespace: &Namespace) -> NamespaceView {
        let used = self.tally.used(name);
        NamespaceView {
            name: name.to_owned(),
            pending_rows: used.open_rows,
            pending_rows_max: namespace.pending_rows_max,
            running_rows: namespace.running(),
            running_rows_max: namespace.running_rows_max,
            runs: used.runs,
            runs_max: namespace.runs_max,
        }
    }
}

fn over(namespace: &str, what: &str, used: u64, max: u64) -> Rejection {
    Rejection::OverQuota { namespace: namespace.to_owned(), what: what.to_owned(), used, max }
}
