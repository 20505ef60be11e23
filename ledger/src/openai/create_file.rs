//! Creates a file whose content is in the store.
//!
//! *Invariant:* a repeat changes nothing: neither one with the same id, nor one with the same idempotency key. Either is
//! refused if it has another content or description.

use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::{Rejection, Reply};
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::machine::operation::{Cost, Operation, Subject};
use crate::openai::content::{self, Extent};
use crate::openai::file::{ApiFile, FILE_ID_PREFIX, FileSpec};
use serde::{Deserialize, Serialize};

/// Creates a file, or finds the same one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateFile {
    /// Its id, which no other file has.
    pub id: String,
    /// Its description.
    pub spec: Box<FileSpec>,
    /// Hash of the idempotency key of the request, if it has one. If the namespace has a file with the same hash and the
    /// same content, no file is created.
    pub request: Option<[u8; 16]>,
    /// Its content, all in one folder, which is durable.
    pub content: Extent,
    /// Ledger time, at the member that wrote the content, before it began to write.
    pub begun_at: LedgerMs,
}

impl Operation for CreateFile {
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
        ledger.create_file(ctx, self)
    }
}

impl Ledger {
    fn create_file(&mut self, ctx: &Context, op: CreateFile) -> Result<Reply, Rejection> {
        if !self.check_create_file(&op)? {
            return Ok(Reply::Ok);
        }
        let CreateFile { id, spec, request, content, .. } = op;
        let file = ApiFile {
            ends_at: spec.ends_at(self.meta.clock()),
            spec: *spec,
            request,
            bytes: content.bytes(),
            content: vec![content],
            created_ms: ctx.wall_ms,
            users: 0,
        };
        self.api_files.add_file(id, file);
        Ok(Reply::Ok)
    }

    /// Whether the file is new; false if it exists.
    fn check_create_file(&self, op: &CreateFile) -> Result<bool, Rejection> {
        content::check_id(FILE_ID_PREFIX, &op.id)?;
        op.spec.check()?;
        op.content.check(&op.id)?;
        let pieces = op.content.pieces.len() as u64;
        if pieces > limits::FILE_PIECES_MAX {
            return Err(Rejection::Limit {
                what: "pieces of a file".into(),
                max: limits::FILE_PIECES_MAX,
            });
        }
        if self.api_files.files.contains_key(&op.id) {
            return self.same_file(&op.id, op, OpenAiRefusal::FileConflict(op.id.clone()));
        }
        let of_request =
            op.request.and_then(|request| self.api_files.of_request(&op.spec.namespace, request));
        if let Some(id) = of_request {
            return self.same_file(id, op, OpenAiRefusal::IdempotencyKeyReused(id.to_owned()));
        }
        self.check_content(&op.spec.namespace, &op.content, op.begun_at)?;
        self.admit_content(&op.spec, op.content.bytes(), pieces)?;
        self.admit_file(&op.spec.namespace)?;
        Ok(true)
    }

    /// `Ok(false)` if the file is the one that the operation creates.
    fn same_file(
        &self,
        id: &str,
        op: &CreateFile,
        otherwise: OpenAiRefusal,
    ) -> Result<bool, Rejection> {
        let same = self.api_files.files.get(id).is_some_and(|file| {
            // Two keys of a namespace may repeat each other's requests.
            let spec = FileSpec { key: file.spec.key.clone(), ..(*op.spec).clone() };
            file.spec == spec
                && file.request == op.request
                && content::same_pieces(&file.content, std::slice::from_ref(&op.content))
        });
        if same { Ok(false) } else { Err(otherwise.into()) }
    }

    /// Refuses one more file of a namespace if there are too many.
    pub(super) fn admit_file(&self, namespace: &str) -> Result<(), Rejection> {
        if self.api_files.usage.of(namespace).files >= limits::FILES_MAX {
            return Err(Rejection::Limit {
                what: "files of a namespace".into(),
                max: limits::FILES_MAX,
            });
        }
        if self.api_files.usage.files() >= limits::ALL_FILES_MAX {
            return Err(Rejection::Limit { what: "files".into(), max: limits::ALL_FILES_MAX });
        }
        Ok(())
    }

    /// Refuses content that was begun too long ago, that is being removed, or whose namespace does not exist.
    pub(super) fn check_content(
        &self,
        namespace: &str,
        content: &Extent,
        begun_at: LedgerMs,
    ) -> Result<(), Rejection> {
        if !self.namespaces.contains_key(namespace) {
            return Err(Rejection::NamespaceUnknown(namespace.to_owned()));
        }
        if self.meta.clock() > content::write_ends(begun_at)
            || self.api_files.removals.contains(namespace, &content.folder)
        {
            return Err(OpenAiRefusal::ContentStale.into());
        }
        Ok(())
    }

    /// Refuses content that has no room in the ledger, or exceeds what its API key may store.
    pub(super) fn admit_content(
        &self,
        spec: &FileSpec,
        bytes: u64,
        pieces: u64,
    ) -> Result<(), Rejection> {
        if self.api_files.usage.pieces().saturating_add(pieces) > limits::ALL_PIECES_MAX {
            return Err(Rejection::Limit {
                what: "pieces of all files".into(),
                max: limits::ALL_PIECES_MAX,
            });
        }
        if self.api_files.removals.len() >= limits::REMOVALS_MAX {
            let max = limits::REMOVALS_MAX as u64;
            return Err(Rejection::Limit { what: "folders of removed content".into(), max });
        }
        self.admit_stored_bytes(spec, bytes)
    }

    /// Refuses bytes that exceed what the API key may store.
    pub(super) fn admit_stored_bytes(&self, spec: &FileSpec, bytes: u64) -> Result<(), Rejection> {
        let max = self.api_key(&spec.key).map_or(0, |key| key.spec.limits.stored_bytes);
        let used = self.api_files.usage.key_bytes(&spec.key);
        if max == 0 || used.saturating_add(bytes) <= max {
            return Ok(());
        }
        Err(OpenAiRefusal::StorageLimit { key: spec.key.clone(), used, max }.into())
    }
}
