//! Records that the store no longer has removed content.

use crate::kernel::limits;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// The objects in folders of removed content are gone. Has no effect on a folder that is not being removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetContent {
    /// The namespace of the folders.
    pub namespace: String,
    /// The folders, at most [`FORGET_FOLDERS_MAX`](crate::limits::FORGET_FOLDERS_MAX).
    pub folders: Vec<String>,
}

impl Operation for ForgetContent {
    const SINCE: u32 = 5;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = false;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        false
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, _: &'a Ledger) -> Subject<'a> {
        Subject::Namespace(&self.namespace)
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.forget_content(self)
    }
}

impl Ledger {
    fn forget_content(&mut self, op: ForgetContent) -> Result<Reply, Rejection> {
        if op.folders.len() > limits::FORGET_FOLDERS_MAX {
            let max = limits::FORGET_FOLDERS_MAX as u64;
            return Err(Rejection::Limit { what: "folders in one operation".into(), max });
        }
        for folder in op.folders {
            self.api_files.removals.gone(&op.namespace, folder);
        }
        Ok(Reply::Ok)
    }
}
