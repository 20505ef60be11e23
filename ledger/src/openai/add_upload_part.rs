//! Adds a part to a pending upload.

use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::openai::content::{Extent, check_id};
use crate::openai::upload::{PART_ID_PREFIX, Upload, UploadState, is_part_of};
use serde::{Deserialize, Serialize};

/// Adds a part to a pending upload. A repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddUploadPart {
    /// The upload.
    pub upload: String,
    /// The id of the part.
    pub id: String,
    /// Its content, which is durable.
    pub content: Extent,
    /// Ledger time, at the member that wrote the content, before it began to write.
    pub begun_at: LedgerMs,
}

impl Operation for AddUploadPart {
    const SINCE: u32 = 5;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn cost(&self) -> Cost {
        Cost::Bounded
    }

    fn grows(&self) -> bool {
        true
    }

    fn rows(&self) -> u64 {
        0
    }

    fn subject<'a>(&'a self, ledger: &'a Ledger) -> Subject<'a> {
        ledger.subject_of_upload(&self.upload)
    }

    fn apply(self, ledger: &mut Ledger, _: &mut Context) -> Result<Reply, Rejection> {
        ledger.add_upload_part(self)
    }
}

impl Ledger {
    fn add_upload_part(&mut self, op: AddUploadPart) -> Result<Reply, Rejection> {
        if self.check_part(&op)? {
            self.api_files.add_part(&op.upload, op.id, op.content);
        }
        Ok(Reply::Ok)
    }

    /// Whether the part is new; false if the upload has it.
    fn check_part(&self, op: &AddUploadPart) -> Result<bool, Rejection> {
        let upload = self.find_pending_upload(&op.upload)?;
        check_id(PART_ID_PREFIX, &op.id)?;
        if !is_part_of(&op.id, &op.upload) {
            let AddUploadPart { id, upload, .. } = op;
            return Err(Rejection::Invalid(format!("{id} is no id of a part of {upload}")));
        }
        op.content.check(&op.id)?;
        let bytes = op.content.bytes();
        if !(1..=limits::UPLOAD_PART_BYTES_MAX).contains(&bytes) {
            let max = limits::UPLOAD_PART_BYTES_MAX;
            return Err(Rejection::Invalid(format!("a part has 1 to {max} bytes")));
        }
        if let Some(part) = upload.parts.get(&op.id) {
            let conflict = || OpenAiRefusal::FileConflict(op.id.clone()).into();
            return if *part == op.content { Ok(false) } else { Err(conflict()) };
        }
        if upload.parts.len() >= limits::UPLOAD_PARTS_MAX {
            let max = limits::UPLOAD_PARTS_MAX as u64;
            return Err(Rejection::Limit { what: "parts of an upload".into(), max });
        }
        let pieces = op.content.pieces.len() as u64;
        if upload.pieces().saturating_add(pieces) > limits::FILE_PIECES_MAX {
            return Err(Rejection::Limit {
                what: "pieces of a file".into(),
                max: limits::FILE_PIECES_MAX,
            });
        }
        let received = upload.received().saturating_add(bytes);
        if received > limits::UPLOAD_BYTES_MAX {
            let what = "bytes of an upload".into();
            return Err(Rejection::Limit { what, max: limits::UPLOAD_BYTES_MAX });
        }
        self.check_content(&upload.spec.namespace, &op.content, op.begun_at)?;
        self.admit_content(&upload.spec, bytes, pieces)?;
        Ok(true)
    }

    /// What an operation on an upload is about.
    pub(super) fn subject_of_upload(&self, id: &str) -> Subject<'_> {
        let upload = self.api_files.uploads.get(id);
        upload.map_or(Subject::Nothing, |upload| Subject::Namespace(&upload.spec.namespace))
    }

    pub(super) fn find_upload(&self, id: &str) -> Result<&Upload, Rejection> {
        let unknown = || OpenAiRefusal::UploadUnknown(id.to_owned()).into();
        self.api_files.uploads.get(id).ok_or_else(unknown)
    }

    fn find_pending_upload(&self, id: &str) -> Result<&Upload, Rejection> {
        let upload = self.find_upload(id)?;
        match upload.state {
            UploadState::Pending => Ok(upload),
            state => {
                Err(OpenAiRefusal::UploadEnded { id: id.to_owned(), state: state.name().into() }
                    .into())
            }
        }
    }
}
