//! Owns: a submission as a whole: check and upload, create, declare.
//!
//! Invariant: the run is created only after the whole input was found good and is durable.
//! Absent: names and files on this host; the caller has decided them.

use std::sync::Arc;

use rollout_proto::{Session, v1};
use rollout_storage::BlobStore;

use super::error::BatchError;
use super::upload::{Destination, Uploaded};
use super::{spec, submit, upload};
use crate::input::files::InputFile;
use crate::input::scan::{ScanControl, ScanOptions};

/// What is submitted.
#[derive(Debug, Clone)]
pub struct Job {
    /// The run's namespace.
    pub namespace: String,
    /// The run's name.
    pub name: String,
    /// The run's spec.
    pub spec: v1::RunSpec,
    /// The input.
    pub files: Vec<InputFile>,
}

/// What was submitted.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The run's number.
    pub run: u32,
    /// False where the run was there already.
    pub created: bool,
    /// Its input.
    pub uploaded: Uploaded,
}

/// The first half: the input checked and its segments durable. Errors in rows are in the answer's scan.
pub async fn prepare(
    job: &Job,
    store: BlobStore,
    options: ScanOptions,
    control: Arc<ScanControl>,
) -> Result<Uploaded, BatchError> {
    let destination =
        Destination { store, namespace: job.namespace.clone(), run: job.name.clone() };
    let ids = spec::item_ids(&job.spec);
    upload::upload(job.files.clone(), ids, options, control, &destination).await
}

/// The second half: the run created, its input declared and closed. Refuses an input with errors or without rows.
pub async fn submit(
    session: &Session,
    job: &Job,
    uploaded: Uploaded,
) -> Result<Submitted, BatchError> {
    match uploaded.scan.error_count {
        0 if uploaded.scan.rows == 0 => return Err(BatchError::Empty),
        0 => {}
        count => return Err(BatchError::Input { count }),
    }
    let created = submit::create(session, &job.namespace, &job.name, job.spec.clone()).await?;
    submit::declare(session, created.run, &job.name, &uploaded).await?;
    Ok(Submitted { run: created.run, created: created.created, uploaded })
}
