//! Owns: the steps of a submission: check and upload, reuse earlier results, create, declare.
//!
//! Invariant: the run is created only after the whole input was validated and is durable, and the reused results are
//! durable too. If another client has created the same run meanwhile, everything is copied to where that run has its
//! objects before it is declared.
//! Absent: names and local files; the caller decides them.

use std::sync::Arc;

use rollout_proto::{Session, v1};
use rollout_storage::{BlobError, BlobStore, part_key, segment_key};

use super::error::BatchError;
use super::upload::{Destination, Uploaded};
use super::{spec, submit, upload};
use crate::input::files::InputFile;
use crate::input::scan::{ScanControl, ScanOptions};
use crate::result_reuse::{self, Items, ReusedResults, Source};

/// A run to submit.
#[derive(Debug, Clone)]
pub struct Job {
    pub namespace: String,
    pub name: String,
    pub spec: v1::RunSpec,
    /// The input.
    pub files: Vec<InputFile>,
    /// The store of its objects.
    pub store: BlobStore,
    /// Their folder: the run's, or a newly chosen one.
    pub folder: String,
    /// Whether items are recorded, because earlier revisions may have finished some.
    pub revises: bool,
    /// Whether its input stays open for more rows.
    pub keep_open: bool,
}

/// A durable input.
#[derive(Debug)]
pub struct Prepared {
    /// The result of reading it, and its segments.
    pub uploaded: Uploaded,
    items: Items,
}

/// A submitted run.
#[derive(Debug, Clone)]
pub struct Submitted {
    /// The run's number.
    pub run: u32,
    /// False if the run already existed.
    pub created: bool,
    /// Its input.
    pub uploaded: Uploaded,
    pub reused: ReusedResults,
}

impl Job {
    fn destination(&self) -> Destination {
        let (namespace, folder) = (self.namespace.clone(), self.folder.clone());
        Destination { store: self.store.clone(), namespace, folder }
    }
}

/// Step 1: checks the input and makes its segments durable. Errors in rows are in the answer's scan.
pub async fn prepare(
    job: &Job,
    options: ScanOptions,
    control: Arc<ScanControl>,
) -> Result<Prepared, BatchError> {
    let (destination, mut items) = (job.destination(), Items::default());
    let rules = spec::rules(&job.spec)?;
    let uploaded =
        upload::upload(job.files.clone(), rules, options, control, &destination, |segment| {
            if job.revises {
                items.note(segment);
            }
        });
    let uploaded = uploaded.await?;
    Ok(Prepared { uploaded, items })
}

/// Refuses an input with errors or without rows.
pub fn check(uploaded: &Uploaded) -> Result<(), BatchError> {
    match uploaded.scan.error_count {
        0 if uploaded.scan.rows == 0 => Err(BatchError::Empty),
        0 => Ok(()),
        count => Err(BatchError::Input { count }),
    }
}

/// Step 2: reuses what earlier revisions have finished of it, durably. The run itself does not exist until it is
/// submitted.
pub async fn reuse_earlier_results(
    session: &Session,
    job: &Job,
    prepared: Prepared,
    sources: Vec<Source>,
) -> Result<(Uploaded, ReusedResults), BatchError> {
    let Prepared { uploaded, items } = prepared;
    check(&uploaded)?;
    let reused = match sources.is_empty() {
        true => ReusedResults::default(),
        false => {
            let (client, to) = (session.client(), job.destination());
            result_reuse::reuse_results(client, sources, items, &uploaded.segments, &to).await?
        }
    };
    Ok((uploaded, reused))
}

/// Step 3: creates the run, or finds it. It has no rows yet.
pub async fn create(session: &Session, job: &Job) -> Result<v1::CreateRunResponse, BatchError> {
    submit::create(session, &job.namespace, &job.name, job.spec.clone(), &job.folder).await
}

/// Step 3 for a run that exists with the same spec, apart from what may change. The cluster would refuse its creation:
/// the digest of its spec contains the deadline and the weight of its submission.
pub fn found(run: &v1::RunSummary) -> v1::CreateRunResponse {
    let (run, folder) = (run.run, run.folder.clone());
    v1::CreateRunResponse { run, folder, created: false, ..v1::CreateRunResponse::default() }
}

/// Step 4: declares its input with the reused results and closes it unless it stays open.
pub async fn declare(
    session: &Session,
    job: &Job,
    created: v1::CreateRunResponse,
    (mut uploaded, mut reused): (Uploaded, ReusedResults),
) -> Result<Submitted, BatchError> {
    if created.folder != job.folder {
        let moved = move_all(job, &created.folder, &mut uploaded, &mut reused).await;
        let url = job.store.url().to_owned();
        moved.map_err(|source| BatchError::Upload { url, source })?;
    }
    submit::declare(session, created.run, &job.name, &uploaded, reused.parts.clone()).await?;
    if !job.keep_open {
        submit::close(session, created.run, &job.name, &uploaded).await?;
    }
    Ok(Submitted { run: created.run, created: created.created, uploaded, reused })
}

/// Copies an input and its reused results to the folder of its run.
async fn move_all(
    job: &Job,
    folder: &str,
    uploaded: &mut Uploaded,
    reused: &mut ReusedResults,
) -> Result<(), BlobError> {
    for segment in &mut uploaded.segments {
        let key = |digest: &[u8; 32]| segment_key(&job.namespace, folder, digest);
        upload::move_to(&job.store, &mut segment.blob, key).await?;
    }
    for part in &mut reused.parts {
        let key = |digest: &[u8; 32]| part_key(&job.namespace, folder, digest);
        upload::move_to(&job.store, &mut part.blob, key).await?;
    }
    Ok(())
}
