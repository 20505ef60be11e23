//! Creates an upload, which accepts the parts of a file.

use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::openai::content::check_id;
use crate::openai::file::FileSpec;
use crate::openai::upload::{UPLOAD_ID_DRAWN, UPLOAD_ID_PREFIX, Upload, UploadState};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Creates an upload, or finds the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateUpload {
    /// Its id, which no other upload has.
    pub id: String,
    /// The file that it becomes.
    pub spec: Box<FileSpec>,
    /// How many bytes that file has.
    pub bytes: u64,
}

impl Operation for CreateUpload {
    const SINCE: u32 = 5;
    const IN_EXCHANGE: bool = false;
    const IS_BOUNDED: bool = true;

    fn since(&self) -> u32 {
        Self::SINCE.max(self.spec.purpose.came_with())
    }

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
        Subject::Namespace(&self.spec.namespace)
    }

    fn apply(self, ledger: &mut Ledger, ctx: &mut Context) -> Result<Reply, Rejection> {
        ledger.create_upload(ctx, self)
    }
}

impl Ledger {
    fn create_upload(&mut self, ctx: &Context, op: CreateUpload) -> Result<Reply, Rejection> {
        if !self.check_create_upload(&op)? {
            return Ok(Reply::Ok);
        }
        let upload = Upload {
            spec: *op.spec,
            bytes: op.bytes,
            created_ms: ctx.wall_ms,
            ends_at: LedgerMs(self.meta.clock().0.saturating_add(limits::UPLOAD_TTL_MS)),
            state: UploadState::Pending,
            parts: BTreeMap::new(),
        };
        self.api_files.add_upload(op.id, upload);
        Ok(Reply::Ok)
    }

    /// Whether the upload is new; false if it exists.
    fn check_create_upload(&self, op: &CreateUpload) -> Result<bool, Rejection> {
        check_id(UPLOAD_ID_PREFIX, &op.id)?;
        if op.id.len() != UPLOAD_ID_PREFIX.len() + UPLOAD_ID_DRAWN {
            return Err(Rejection::Invalid(format!(
                "the id of an upload has {UPLOAD_ID_DRAWN} letters and digits"
            )));
        }
        op.spec.check()?;
        if !(1..=limits::UPLOAD_BYTES_MAX).contains(&op.bytes) {
            let max = limits::UPLOAD_BYTES_MAX;
            return Err(Rejection::Invalid(format!("an upload has 1 to {max} bytes")));
        }
        if let Some(upload) = self.api_files.uploads.get(&op.id) {
            let same = upload.spec == *op.spec && upload.bytes == op.bytes;
            let conflict = || OpenAiRefusal::FileConflict(op.id.clone()).into();
            return if same { Ok(false) } else { Err(conflict()) };
        }
        let namespace = &op.spec.namespace;
        if !self.namespaces.contains_key(namespace) {
            return Err(Rejection::NamespaceUnknown(namespace.clone()));
        }
        if self.api_files.usage.of(namespace).uploads >= limits::UPLOADS_MAX {
            let what = "uploads of a namespace within an hour".into();
            return Err(Rejection::Limit { what, max: limits::UPLOADS_MAX });
        }
        if self.api_files.usage.uploads() >= limits::ALL_UPLOADS_MAX {
            let what = "uploads within an hour".into();
            return Err(Rejection::Limit { what, max: limits::ALL_UPLOADS_MAX });
        }
        self.admit_stored_bytes(&op.spec, op.bytes)?;
        Ok(true)
    }
}
