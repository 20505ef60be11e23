//! The output files of a batch, as its last operation names them.
//!
//! *Invariant:* they are files like any other, and count for the namespace and the API key of the batch. Bounds of
//! files do not refuse them: rows that have run keep their results. A batch has two, and the number of batches is
//! bounded.

use crate::kernel::id::LedgerMs;
use crate::kernel::limits;
use crate::kernel::openai_refusal::OpenAiRefusal;
use crate::kernel::reply::Rejection;
use crate::machine::apply::Context;
use crate::machine::ledger::Ledger;
use crate::openai::batch::Batch;
use crate::openai::content::{self, Extent};
use crate::openai::file::{ApiFile, FILE_ID_PREFIX, FilePurpose, FileSpec};
use serde::{Deserialize, Serialize};

/// An output file whose content is in the store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchOutput {
    /// Its id, which no other file has.
    pub id: String,
    /// Its name.
    pub filename: String,
    /// Its content, which is durable.
    pub content: Extent,
    /// Ledger time, at the member that wrote the content, before it began to write.
    pub begun_at: LedgerMs,
}

impl Ledger {
    /// The files, with their ids, that these outputs of a batch become.
    ///
    /// # Errors
    /// If an output is out of bounds, or its content was begun too long ago.
    pub(super) fn output_files(
        &self,
        ctx: &Context,
        batch: &Batch,
        outputs: impl Iterator<Item = BatchOutput>,
    ) -> Result<Vec<(String, ApiFile)>, Rejection> {
        let mut files: Vec<(String, ApiFile)> = Vec::new();
        for output in outputs {
            let BatchOutput { id, filename, content, begun_at } = output;
            let spec = FileSpec {
                namespace: batch.namespace.clone(),
                key: batch.key.clone(),
                filename,
                purpose: FilePurpose::BatchOutput,
                ttl_ms: batch.spec.ttl_ms(),
            };
            content::check_id(FILE_ID_PREFIX, &id)?;
            spec.check()?;
            content.check(&id)?;
            if content.pieces.len() as u64 > limits::FILE_PIECES_MAX {
                let max = limits::FILE_PIECES_MAX;
                return Err(Rejection::Limit { what: "pieces of a file".into(), max });
            }
            if self.api_file(&id).is_some() || files.iter().any(|(other, _)| *other == id) {
                return Err(OpenAiRefusal::FileConflict(id).into());
            }
            self.check_content(&spec.namespace, &content, begun_at)?;
            let file = ApiFile {
                ends_at: spec.ends_at(self.meta.clock()),
                spec,
                request: None,
                bytes: content.bytes(),
                content: vec![content],
                created_ms: ctx.wall_ms,
                users: 0,
            };
            files.push((id, file));
        }
        Ok(files)
    }

    /// Refuses a file that cannot be the input of a batch of this namespace.
    pub(super) fn check_batch_input(&self, namespace: &str, id: &str) -> Result<(), Rejection> {
        let now = self.meta.clock();
        let file = self.api_file(id).filter(|file| file.spec.namespace == namespace);
        // The `Tick` that removes an expired file comes after the time at which it ends.
        let file = file.filter(|file| file.due().is_none_or(|at| at > now));
        match file.map(|file| file.spec.purpose) {
            Some(FilePurpose::Batch) => Ok(()),
            Some(_) => Err(OpenAiRefusal::FilePurpose(id.to_owned()).into()),
            None => Err(OpenAiRefusal::FileUnknown(id.to_owned()).into()),
        }
    }
}
