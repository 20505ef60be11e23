//! Creates a namespace, or changes how many of its rows may run.

use crate::kernel::names;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Creates a namespace, or changes its cap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetNamespace {
    /// Its name.
    pub name: String,
    /// Rows that its runs together may have at workers; 0 for no cap.
    pub running_rows_max: u64,
}

impl Operation for SetNamespace {
    const SINCE: u32 = 1;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.name)
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.set_namespace(self.name, self.running_rows_max)
    }
}

impl Ledger {
    fn set_namespace(&mut self, name: String, running_rows_max: u64) -> Result<Reply, Rejection> {
        names::check_name("namespace's", &name)?;
        self.namespaces.change_or_make(name).running_rows_max = running_rows_max;
        Ok(Reply::Ok)
    }
}
