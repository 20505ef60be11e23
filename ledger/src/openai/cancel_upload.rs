//! Cancels an upload. The content of its parts is then removed from the store.

use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::openai::upload::UploadState;
use serde::{Deserialize, Serialize};

/// Cancels a pending upload. A repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelUpload {
    /// The upload.
    pub id: String,
}

impl Operation for CancelUpload {
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
        ledger.subject_of_upload(&self.id)
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.cancel_upload(self.id)
    }
}

impl Ledger {
    fn cancel_upload(&mut self, id: String) -> Result<Reply, Rejection> {
        match self.find_upload(&id)?.state {
            UploadState::Cancelled => Ok(Reply::Ok),
            UploadState::Completed => {
                let state = UploadState::Completed.name().into();
                Err(OpenAiRefusal::UploadEnded { id, state }.into())
            }
            UploadState::Pending => {
                let now = self.meta.clock();
                self.api_files.end_upload(&id, UploadState::Cancelled, &[], now);
                Ok(Reply::Ok)
            }
        }
    }
}
