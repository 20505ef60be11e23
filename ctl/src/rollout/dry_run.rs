//! Owns: `rollout infer batch --dry-run`.
//!
//! Invariant: nothing is contacted and nothing is written.
//! Absent: whether the cluster could serve the run.

use std::sync::Arc;

use rollout_proto::v1;
use rollout_storage::BlobStore;

use super::report;
use crate::batch::config::BatchConfig;
use crate::batch::error::BatchError;
use crate::batch::{spec, upload};
use crate::input::files::InputFile;
use crate::input::scan::{ScanControl, ScanOptions};
use crate::say::{to_stderr, to_stdout};

/// Errors that are listed.
const ERRORS_MAX: usize = 1000;

pub(super) async fn run(
    config: &BatchConfig,
    name: &str,
    run_spec: &v1::RunSpec,
    files: Vec<InputFile>,
) -> Result<u8, BatchError> {
    if !config.store.url.is_empty() {
        BlobStore::open(&config.store.url)?;
    }
    let options = ScanOptions { errors_max: ERRORS_MAX, ..ScanOptions::default() };
    let control = Arc::new(ScanControl::default());
    let scan = upload::check(files.clone(), spec::rules(run_spec)?, options, control).await?;
    to_stdout(&report::plan(name, run_spec, &files, &scan, &config.output.dir));
    to_stderr(&report::errors(&scan, &files, ERRORS_MAX));
    match scan.error_count {
        0 if scan.rows == 0 => Err(BatchError::Empty),
        0 => Ok(0),
        count => Err(BatchError::Input { count }),
    }
}
