//! Makes a file of the parts of an upload. No content is copied.

use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::openai::content::{Extent, bytes_of};
use crate::openai::file::ApiFile;
use crate::openai::upload::{UploadState, file_of_upload};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Makes a file of the parts of an upload. A repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CompleteUpload {
    /// The upload.
    pub id: String,
    /// Its parts in the order of the file. The content of others is removed.
    pub parts: Vec<String>,
}

impl Operation for CompleteUpload {
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
        ledger.subject_of_upload(&self.id)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.complete_upload(ctx, self)
    }
}

impl Ledger {
    fn complete_upload(&mut self, ctx: &Context, op: CompleteUpload) -> Result<Reply, Rejection> {
        if !self.check_complete_upload(&op)? {
            return Ok(Reply::Ok);
        }
        let spec = self.find_upload(&op.id)?.spec.clone();
        let now = self.meta.clock();
        let content = self.api_files.end_upload(&op.id, UploadState::Completed, &op.parts, now);
        let file = ApiFile {
            ends_at: spec.ends_at(now),
            spec,
            request: None,
            bytes: bytes_of(&content),
            content,
            created_ms: ctx.wall_ms,
            users: 0,
        };
        self.api_files.add_file(file_of_upload(&op.id), file);
        Ok(Reply::Ok)
    }

    /// Whether the upload is pending; false if it is a file already.
    fn check_complete_upload(&self, op: &CompleteUpload) -> Result<bool, Rejection> {
        let upload = self.find_upload(&op.id)?;
        match upload.state {
            UploadState::Pending => {}
            UploadState::Completed => return Ok(false),
            UploadState::Cancelled => {
                let (id, state) = (op.id.clone(), upload.state.name().into());
                return Err(OpenAiRefusal::UploadEnded { id, state }.into());
            }
        }
        let mut seen = BTreeSet::new();
        let mut bytes = 0;
        for id in &op.parts {
            let part = upload.parts.get(id).ok_or(OpenAiRefusal::PartUnknown(id.clone()))?;
            if !seen.insert(id) {
                return Err(Rejection::Invalid(format!("part {id} is listed twice")));
            }
            bytes += Extent::bytes(part);
        }
        if bytes != upload.bytes {
            return Err(OpenAiRefusal::UploadBytes { bytes, declared: upload.bytes }.into());
        }
        let file = file_of_upload(&op.id);
        if self.api_files.files.contains_key(&file) {
            return Err(OpenAiRefusal::FileConflict(file).into());
        }
        self.admit_file(&upload.spec.namespace)?;
        Ok(true)
    }
}
