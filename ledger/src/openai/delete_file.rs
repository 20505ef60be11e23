//! Deletes a file. Its content is then removed from the store.

use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use serde::{Deserialize, Serialize};

/// Deletes a file that no open batch uses. Has no effect if there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeleteFile {
    /// The file.
    pub id: String,
}

impl Operation for DeleteFile {
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

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_file(&self.id)
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.delete_file(&self.id)
    }
}

impl Ledger {
    /// What an operation on a file is about.
    fn subject_of_file(&self, id: &str) -> Subject<'_> {
        let file = self.api_files.files.get(id);
        file.map_or(Subject::Nothing, |file| Subject::Namespace(&file.spec.namespace))
    }

    fn delete_file(&mut self, id: &str) -> Result<Reply, Rejection> {
        let users = self.api_files.files.get(id).map_or(0, |file| file.users);
        if users > 0 {
            return Err(OpenAiRefusal::FileInUse { id: id.to_owned(), users }.into());
        }
        self.api_files.remove_file(id, self.meta.clock());
        Ok(Reply::Ok)
    }
}
